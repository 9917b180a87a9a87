/* Theory of operation: entries of one directory come in a row in nearly every archive, so the parent last used
 * stays open. Removal of a directory invalidates that; the callers say so with tree_forget().
 *
 * A parent that cannot be opened is built component by component. A dangling symlink among the components is
 * resolved by hand and its target made, like containerd does; links are counted, as the kernel does.
 */
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/mem.h"

#define LINKS_MAX 40

int tree_open(struct tree *t, const char *path, enum tree_links links, struct error *err)
{
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0)
                return error_errno(err, errno, "open %s", path);
        *t = (struct tree){ .root = fd, .links = links, .cached_fd = -1 };
        return 0;
}

void tree_forget(struct tree *t)
{
        if (t->cached_fd >= 0)
                close(t->cached_fd);
        t->cached_fd = -1;
}

void tree_close(struct tree *t)
{
        tree_forget(t);
        if (t->root >= 0)
                close(t->root);
        t->root = -1;
}

int tree_clean(const char *name, char *out)
{
        size_t len = 0;

        while (*name) {
                size_t n = strcspn(name, "/");

                if (n == 2 && name[0] == '.' && name[1] == '.') {
                        if (len == 0)
                                return -EINVAL;
                        while (len > 0 && out[len - 1] != '/')
                                len--;
                        len -= len > 0;
                } else if (n > 0 && !(n == 1 && name[0] == '.')) {
                        if (len + n + 2 > PATH_MAX)
                                return -EINVAL;
                        if (len > 0)
                                out[len++] = '/';
                        memcpy(out + len, name, n);
                        len += n;
                }
                name += n;
                name += *name == '/';
        }
        out[len] = 0;
        return 0;
}

int tree_openat(const struct tree *t, const char *path, int flags)
{
        struct open_how how = {
                .flags = (unsigned)flags | O_CLOEXEC,
                .resolve = t->links == TREE_NO_LINKS ? RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS
                                                     : RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
        };
        int fd = (int)syscall(SYS_openat2, t->root, *path ? path : ".", &how, sizeof(how));

        return fd < 0 ? -errno : fd;
}

static int make_directory(struct tree *t, const char *path, unsigned *links);

/* `path` exists but does not open as a directory: a dangling link is completed, anything else replaced. */
static int mend_component(struct tree *t, int parent, const char *path, const char *name, unsigned *links)
{
        char target[PATH_MAX], joined[2 * PATH_MAX], clean[PATH_MAX];
        ssize_t n = readlinkat(parent, name, target, sizeof(target) - 1);

        if (n >= 0) {
                if (t->links == TREE_NO_LINKS || ++*links > LINKS_MAX)
                        return -ELOOP;
                target[n] = 0;
                if (target[0] == '/')
                        snprintf(joined, sizeof(joined), "%s", target);
                else
                        snprintf(joined, sizeof(joined), "%.*s%s", (int)(name - path), path, target);
                /* ".." beyond the root stays at the root, as in a chroot. */
                if (tree_clean(joined, clean) < 0)
                        return -ELOOP;
                return make_directory(t, clean, links);
        }
        if (unlinkat(parent, name, 0) < 0 && errno != ENOENT)
                return -errno;
        tree_forget(t);
        return mkdirat(parent, name, 0755) < 0 ? -errno : 0;
}

static int make_component(struct tree *t, const char *path, unsigned *links)
{
        const char *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path;
        CLEANUP_FREE char *above = slash ? xstrndup(path, (size_t)(slash - path)) : xstrdup("");
        CLEANUP_CLOSE int parent = -1, fd = -1;

        fd = tree_openat(t, path, O_RDONLY | O_DIRECTORY);
        if (fd >= 0)
                return 0;
        if (fd != -ENOENT && fd != -ENOTDIR)
                return fd;
        parent = tree_openat(t, above, O_RDONLY | O_DIRECTORY);
        if (parent < 0)
                return parent;
        if (mkdirat(parent, name, 0755) == 0)
                return 0;
        return errno == EEXIST ? mend_component(t, parent, path, name, links) : -errno;
}

static int make_directory(struct tree *t, const char *path, unsigned *links)
{
        CLEANUP_FREE char *copy = xstrdup(path);
        int r = 0;

        for (char *p = copy; r >= 0 && *p; ) {
                p += strcspn(p, "/");
                char end = *p;
                *p = 0;
                r = make_component(t, copy, links);
                *p = end;
                p += end == '/';
        }
        return r;
}

int tree_parent(struct tree *t, const char *path, bool create, int *ret_fd, const char **ret_name,
                struct error *err)
{
        const char *slash = strrchr(path, '/');
        size_t len = slash ? (size_t)(slash - path) : 0;
        unsigned links = 0;
        char parent[PATH_MAX];
        int fd;

        *ret_name = slash ? slash + 1 : path;
        if (t->cached_fd >= 0 && strlen(t->cached) == len && memcmp(t->cached, path, len) == 0) {
                *ret_fd = t->cached_fd;
                return 0;
        }
        memcpy(parent, path, len);
        parent[len] = 0;
        fd = tree_openat(t, parent, O_RDONLY | O_DIRECTORY);
        if (create && (fd == -ENOENT || fd == -ENOTDIR)) {
                fd = make_directory(t, parent, &links);
                if (fd >= 0)
                        fd = tree_openat(t, parent, O_RDONLY | O_DIRECTORY);
        }
        if (fd < 0)
                return error_errno(err, fd, "open the directory of %s", path);
        tree_forget(t);
        memcpy(t->cached, parent, len + 1);
        t->cached_fd = fd;
        *ret_fd = fd;
        return 0;
}

int tree_empty(int fd)
{
        int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CLEANUP_CLOSEDIR DIR *dir = NULL;
        struct dirent *e;
        int r = 0;

        if (copy < 0)
                return -errno;
        dir = fdopendir(copy);
        if (!dir) {
                close(copy);
                return -ENOMEM;
        }
        while ((e = readdir(dir))) {
                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                        continue;
                int k = tree_remove_at(fd, e->d_name);
                if (k < 0 && r == 0)
                        r = k;
        }
        return r;
}

int tree_remove_at(int dir_fd, const char *name)
{
        CLEANUP_CLOSE int fd = -1;
        int r;

        if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
                return 0;
        if (errno != EISDIR && errno != EPERM)
                return -errno;
        fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        r = tree_empty(fd);
        if (unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
                return r < 0 ? r : -errno;
        return r;
}
