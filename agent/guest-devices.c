#include "guest-devices.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "tree.h"

#define UEVENT_BYTES_MAX 4096
#define TARGET_MAX 4096

struct walk {
        dev_t file_system;
        /* Called for each entry; may remove it. Positive: go into it (a directory). */
        int (*visit)(struct walk *w, int dir, const char *name, const char *path, const struct stat *st, struct error *err);
        void *data;
};

static int walk_names(struct walk *w, int dir, const char *prefix, unsigned depth, struct error *err);

static int walk_into(struct walk *w, int dir, const char *name, const char *path, unsigned depth, struct error *err)
{
        CLEANUP_CLOSE int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        if (fd < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "open /dev/%s", path);
        return walk_names(w, fd, path, depth + 1, err);
}

static int walk_names(struct walk *w, int dir, const char *prefix, unsigned depth, struct error *err)
{
        CLEANUP_CLOSEDIR DIR *d = NULL;
        int r = 0, fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        d = fd < 0 ? NULL : fdopendir(fd);
        if (!d)
                return error_errno(err, errno, "read /dev/%s", prefix);
        for (struct dirent *e; r >= 0 && (e = readdir(d));) {
                CLEANUP_FREE char *path = xasprintf("%s%s%s", prefix, *prefix ? "/" : "", e->d_name);
                struct stat st;

                if (streq(e->d_name, ".") || streq(e->d_name, "..") || fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        continue;
                r = w->visit(w, dir, e->d_name, path, &st, err);
                if (r > 0 && S_ISDIR(st.st_mode) && st.st_dev == w->file_system && depth < DEVICE_DEPTH_MAX)
                        r = walk_into(w, dir, e->d_name, path, depth, err);
        }
        return r;
}

static int walk(int dir, struct walk *w, struct error *err)
{
        struct stat st;

        if (fstat(dir, &st) < 0)
                return error_errno(err, errno, "look at /dev");
        w->file_system = st.st_dev;
        return walk_names(w, dir, "", 0, err);
}

static char *link_target(int dir, const char *name)
{
        char target[TARGET_MAX];
        ssize_t n = readlinkat(dir, name, target, sizeof(target));

        return n < 0 ? NULL : xstrndup(target, (size_t)n);
}

static int remember(struct walk *w, int dir, const char *name, const char *path, const struct stat *st, struct error *err)
{
        struct device_list *list = w->data;

        if (list->count == DEVICE_NAMES_MAX)
                return error_set(err, ERROR_LIMIT, "there are more than %d names in /dev", DEVICE_NAMES_MAX);
        list->names = xreallocarray(list->names, list->count + 1, sizeof(*list->names));
        list->names[list->count++] = (struct device_name){
                .path = xstrdup(path), .mode = st->st_mode, .uid = st->st_uid, .gid = st->st_gid, .device = st->st_rdev,
                .target = S_ISLNK(st->st_mode) ? link_target(dir, name) : NULL };
        return 1;
}

int devices_remember(int dir, struct device_list *ret, struct error *err)
{
        struct walk w = { .visit = remember, .data = ret };
        int r;

        *ret = (struct device_list){};
        r = walk(dir, &w, err);
        if (r < 0)
                device_list_free(ret);
        return r < 0 ? r : 0;
}

static const struct device_name *find(const struct device_list *list, const char *path)
{
        for (size_t i = 0; i < list->count; i++)
                if (streq(list->names[i].path, path))
                        return &list->names[i];
        return NULL;
}

/* The same thing, whoever owns it. */
static bool same(const struct device_name *n, int dir, const char *name, const struct stat *st)
{
        CLEANUP_FREE char *target = S_ISLNK(st->st_mode) ? link_target(dir, name) : NULL;

        if ((n->mode & S_IFMT) != (st->st_mode & S_IFMT))
                return false;
        if (S_ISLNK(st->st_mode))
                return target && n->target && streq(target, n->target);
        return !(S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) || n->device == st->st_rdev;
}

static int set_owner(const struct device_name *n, int dir, const char *name, struct error *err)
{
        if (fchownat(dir, name, n->uid, n->gid, AT_SYMLINK_NOFOLLOW) < 0 ||
            (!S_ISLNK(n->mode) && fchmodat(dir, name, n->mode & 07777, 0) < 0))
                return error_errno(err, errno, "restore the owner and mode of /dev/%s", n->path);
        return 0;
}

struct restoring {
        const struct device_list *list;
        device_is_kernels kernels;
};

/* A directory that the kernel has made since the start holds a device of it. */
static bool holds_kernels(const struct restoring *x, int dir, const char *name, const char *path)
{
        CLEANUP_CLOSE int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        CLEANUP_CLOSEDIR DIR *d = fd < 0 ? NULL : fdopendir(fcntl(fd, F_DUPFD_CLOEXEC, 3));

        for (struct dirent *e; d && (e = readdir(d));) {
                CLEANUP_FREE char *inner = xasprintf("%s/%s", path, e->d_name);
                struct stat st;

                if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && x->kernels(inner, st.st_mode, st.st_rdev))
                        return true;
        }
        return false;
}

static int reconcile(struct walk *w, int dir, const char *name, const char *path, const struct stat *st, struct error *err)
{
        const struct restoring *x = w->data;
        const struct device_name *n = find(x->list, path);
        int r;

        if (n && same(n, dir, name, st)) {
                if (n->uid != st->st_uid || n->gid != st->st_gid || n->mode != st->st_mode) {
                        r = set_owner(n, dir, name, err);
                        if (r < 0)
                                return r;
                }
                return 1;
        }
        if (!n && (x->kernels(path, st->st_mode, st->st_rdev) || (S_ISDIR(st->st_mode) && holds_kernels(x, dir, name, path))))
                return 1;
        r = tree_remove_at(dir, name);
        return r < 0 ? error_errno(err, -r, "remove /dev/%s, which the step has made", path) : 0;
}

static int make(int dir, const struct device_name *n, struct error *err)
{
        int r;

        if (S_ISREG(n->mode) || S_ISSOCK(n->mode)) /* of a program that has ended */
                return 0;
        if (S_ISLNK(n->mode))
                r = n->target ? symlinkat(n->target, dir, n->path) : 0;
        else
                r = S_ISDIR(n->mode) ? mkdirat(dir, n->path, 0755) : mknodat(dir, n->path, n->mode, n->device);
        if (r < 0)
                return errno == EEXIST ? 0 : error_errno(err, errno, "make /dev/%s again, which the step has removed", n->path);
        return set_owner(n, dir, n->path, err);
}

int devices_restore(int dir, const struct device_list *list, device_is_kernels kernels, struct error *err)
{
        struct restoring x = { list, kernels };
        struct walk w = { .visit = reconcile, .data = &x };
        int r = walk(dir, &w, err);

        for (size_t i = 0; r >= 0 && i < list->count; i++)
                r = make(dir, &list->names[i], err);
        return r < 0 ? r : 0;
}

void device_list_free(struct device_list *list)
{
        for (size_t i = 0; i < list->count; i++) {
                free(list->names[i].path);
                free(list->names[i].target);
        }
        free(list->names);
        *list = (struct device_list){};
}

bool device_in_sysfs(const char *path, mode_t mode, dev_t number)
{
        CLEANUP_FREE char *file = NULL, *wanted = NULL;
        CLEANUP_BUF struct buf text = {};

        if (!S_ISCHR(mode) && !S_ISBLK(mode))
                return false;
        file = xasprintf("/sys/dev/%s/%u:%u/uevent", S_ISCHR(mode) ? "char" : "block", major(number), minor(number));
        if (file_read(file, UEVENT_BYTES_MAX, &text, NULL) < 0)
                return false;
        wanted = xasprintf("\nDEVNAME=%s\n", path);
        return strstr(buf_str(&text), wanted) != NULL;
}
