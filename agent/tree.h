/* Creating and removing below a root directory without ever leaving it.
 *
 * Parents are opened by openat2(): symlinks of the tree resolve inside the root and magic links not at all, so
 * that a planted `x -> /` cannot lead out (known-failures D5 65). The last component is never followed.
 * Paths are relative to the root, cleaned by tree_clean(). Single-threaded per handle.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/error.h"

enum tree_links {
        TREE_FOLLOW_IN_ROOT, /* layers: parents may be symlinks, resolved inside the root */
        TREE_NO_LINKS,       /* archives of users: a symlink among the parents is an error */
};

struct tree {
        int root;                  /* descriptor of the root; owned */
        enum tree_links links;
        char cached[PATH_MAX];     /* the parent last opened, while cached_fd >= 0 */
        int cached_fd;
};

/* Opens `path` as a root. */
int tree_open(struct tree *t, const char *path, enum tree_links links, struct error *err);
void tree_close(struct tree *t);

/* Lexical cleaning of an entry's name: no leading slash, no "." and empty components, ".." taken back. "" is the
 * root itself. -EINVAL when ".." would leave the root or the name has PATH_MAX bytes or more. `out` holds
 * PATH_MAX bytes. */
int tree_clean(const char *name, char *out);

/* Splits a cleaned, non-empty path: opens the parent (kept in the cache: do not close) and points `ret_name` at
 * the last component inside `path`. With `create`, missing parents are made 0755 root, and a non-directory in
 * the way is replaced. */
int tree_parent(struct tree *t, const char *path, bool create, int *ret_fd, const char **ret_name,
                struct error *err);

/* Forgets the cached parent: call after a directory may have been removed or replaced. */
void tree_forget(struct tree *t);

/* Removes dir_fd/name with all below it, not crossing links; missing is success. -errno. */
int tree_remove_at(int dir_fd, const char *name);
/* Empties the directory `fd`; -errno. */
int tree_empty(int fd);

/* open(2) of an existing path by the rules of this tree, with O_CLOEXEC; a descriptor or -errno. */
int tree_openat(const struct tree *t, const char *path, int flags);
