#include "fileops.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "tree.h"

static int make_one(const char *path, const struct user *user, struct error *err)
{
        struct stat st;

        if (mkdir(path, 0755) == 0) {
                if (chown(path, user->uid, user->gid) < 0)
                        return error_errno(err, errno, "chown %s", path);
                return 0;
        }
        if (errno != EEXIST)
                return error_errno(err, errno, "mkdir %s", path);
        if (stat(path, &st) < 0)
                return error_errno(err, errno, "stat %s", path);
        if (S_ISDIR(st.st_mode))
                return 0;
        error_set(err, ERROR_INTERNAL, "path is a file: %s", path);
        return -ENOTDIR;
}

int fileops_make_directories(const char *path, const struct user *user, struct error *err)
{
        CLEANUP_FREE char *copy = xstrdup(path);
        int r = 0;

        for (char *p = copy; r >= 0 && *p; ) {
                p += strspn(p, "/");
                p += strcspn(p, "/");
                char end = *p;
                *p = 0;
                if (p > copy && p[-1] != '/')
                        r = make_one(copy, user, err);
                *p = end;
        }
        return r;
}

int fileops_make_parents(const char *path, const struct user *user, struct error *err)
{
        const char *slash = strrchr(path, '/');
        CLEANUP_FREE char *parent = slash && slash > path ? xstrndup(path, (size_t)(slash - path)) : xstrdup("/");

        return fileops_make_directories(parent, user, err);
}

int fileops_remove(const char *path)
{
        CLEANUP_FREE char *copy = xstrdup(path);
        CLEANUP_CLOSE int parent = -1;
        char *slash;

        for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
                copy[n - 1] = 0;
        slash = strrchr(copy, '/');
        if (!slash || !slash[1])
                return -EBUSY; /* the root */
        *slash = 0;
        parent = open(*copy ? copy : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (parent < 0)
                return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
        return tree_remove_at(parent, slash + 1);
}
