/* Theory of operation: one inotify descriptor a watch; a table maps its watch descriptors to paths relative to
 * the root ("" = the root). A new directory gets watches for its whole subtree, and what is already in it is
 * reported as created, since it may have come before the watch (mkdir -p). Such a directory is marked, and the
 * kernel's own CREATE for it, if it still comes, is not reported twice. A directory that is renamed loses its
 * watches at MOVED_FROM and gets them under its new name at MOVED_TO, recognised by the cookie, silently.
 */
#include "watch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <uv.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "entry.h"
#include "loop.h"

#define WATCH_MASK (IN_CREATE | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_MOVED_TO | IN_MOVED_FROM | IN_MOVE_SELF | \
                    IN_ATTRIB)
#define READ_SIZE (64 * 1024)
#define DEPTH_MAX 256

struct directory {
        int wd;
        bool synthetic; /* reported as created by the scan */
        char *relative;
};

struct watch {
        char *root;
        bool recursive, include_entry, legacy, broken;
        int fd;
        uv_poll_t *poll;
        struct directory *directories;
        size_t count, cap;
        uint32_t moving; /* cookie of the directory that just left its place */
        const struct watch_ops *ops;
        void *data;
};

static char *absolute(const struct watch *w, const char *relative)
{
        return *relative ? xasprintf("%s%s%s", w->root, str_ends(w->root, "/") ? "" : "/", relative) : xstrdup(w->root);
}

static char *below(const char *relative, const char *name)
{
        return *relative ? xasprintf("%s/%s", relative, name) : xstrdup(name);
}

static struct directory *find(struct watch *w, int wd)
{
        for (size_t i = 0; i < w->count; i++)
                if (w->directories[i].wd == wd)
                        return &w->directories[i];
        return NULL;
}

static struct directory *find_path(struct watch *w, const char *relative)
{
        for (size_t i = 0; i < w->count; i++)
                if (streq(w->directories[i].relative, relative))
                        return &w->directories[i];
        return NULL;
}

static void forget(struct watch *w, struct directory *d)
{
        free(d->relative);
        *d = w->directories[--w->count];
        w->directories[w->count] = (struct directory){};
}

static int add(struct watch *w, const char *relative, bool synthetic)
{
        CLEANUP_FREE char *path = absolute(w, relative);
        int wd = inotify_add_watch(w->fd, path, WATCH_MASK | IN_ONLYDIR | (*relative ? IN_DONT_FOLLOW : 0));
        struct directory *d;

        if (wd < 0)
                return -errno;
        d = find(w, wd);
        if (!d) {
                if (w->count == w->cap) {
                        w->cap = w->cap ? 2 * w->cap : 16;
                        w->directories = xreallocarray(w->directories, w->cap, sizeof(*w->directories));
                }
                d = &w->directories[w->count++];
        } else
                free(d->relative);
        *d = (struct directory){ wd, synthetic, xstrdup(relative) };
        return 0;
}

static void emit(struct watch *w, const char *name, const char *type, bool with_entry)
{
        json_t *event = json_object();

        json_object_set_new(event, "name", entry_string(name));
        json_object_set_new(event, "type", json_string(type));
        if (with_entry && w->include_entry && !w->legacy) {
                CLEANUP_FREE char *path = absolute(w, streq(name, ".") ? "" : name);
                json_t *entry = entry_info(path, false);

                if (entry)
                        json_object_set_new(event, "entry", entry);
        }
        w->ops->event(event, w->data);
        json_decref(event);
}

/* Watches a directory and all below; `report` tells of what is found in it. Unreadable ones are skipped; running
 * out of watches is an error. */
static int add_tree(struct watch *w, const char *relative, bool report, bool synthetic, unsigned depth)
{
        CLEANUP_FREE char *path = absolute(w, relative);
        CLEANUP_CLOSEDIR DIR *dir = NULL;
        struct dirent *e;
        int r = add(w, relative, synthetic);

        if (r < 0)
                return r == -ENOSPC || r == -ENOMEM || !*relative ? r : 0;
        if (!w->recursive || depth > DEPTH_MAX)
                return 0;
        dir = opendir(path);
        while (dir && (e = readdir(dir)) && r >= 0) {
                CLEANUP_FREE char *child = NULL, *child_path = NULL;
                struct stat st;

                if (streq(e->d_name, ".") || streq(e->d_name, ".."))
                        continue;
                child = below(relative, e->d_name);
                child_path = absolute(w, child);
                if (lstat(child_path, &st) < 0)
                        continue;
                if (S_ISDIR(st.st_mode) && find_path(w, child))
                        continue; /* seen by an event meanwhile */
                if (report)
                        emit(w, child, "EVENT_TYPE_CREATE", true);
                if (S_ISDIR(st.st_mode))
                        r = add_tree(w, child, report, report, depth + 1);
        }
        return r;
}

static void drop_tree(struct watch *w, const char *relative)
{
        size_t len = strlen(relative);

        for (size_t i = 0; i < w->count; ) {
                struct directory *d = &w->directories[i];

                if (strncmp(d->relative, relative, len) == 0 && (d->relative[len] == 0 || d->relative[len] == '/')) {
                        inotify_rm_watch(w->fd, d->wd);
                        forget(w, d);
                } else
                        i++;
        }
}

static void break_watch(struct watch *w, const char *message)
{
        w->broken = true;
        uv_poll_stop(w->poll);
        w->ops->broken(message, w->data);
}

static void follow_directory(struct watch *w, const struct inotify_event *e, const char *name)
{
        if (e->mask & IN_MOVED_FROM) {
                w->moving = e->cookie;
                drop_tree(w, name);
        } else if (e->mask & (IN_CREATE | IN_MOVED_TO)) {
                bool renamed = (e->mask & IN_MOVED_TO) && e->cookie == w->moving;

                if (add_tree(w, name, !renamed, false, 0) < 0)
                        break_watch(w, "watcher error: no space left for inotify watches");
        }
}

/* The kernel's own CREATE for a directory that the scan has reported. */
static bool is_repeated(struct watch *w, const struct inotify_event *e, const char *name)
{
        struct directory *d = (e->mask & IN_CREATE) && (e->mask & IN_ISDIR) ? find_path(w, name) : NULL;

        if (!d || !d->synthetic)
                return false;
        d->synthetic = false;
        return true;
}

static void handle(struct watch *w, const struct inotify_event *e)
{
        struct directory *d = find(w, e->wd);
        CLEANUP_FREE char *name = NULL;

        if (e->mask & IN_Q_OVERFLOW) {
                break_watch(w, "watcher error: fsnotify: queue or buffer overflow");
                return;
        }
        if (!d)
                return;
        if (e->mask & IN_IGNORED) {
                forget(w, d);
                return;
        }
        /* What happens to a sub-directory itself is told by its parent's watch. */
        if (e->len == 0 && *d->relative)
                return;
        name = e->len ? below(d->relative, e->name) : xstrdup(".");
        if (is_repeated(w, e, name))
                return;
        if (e->mask & (IN_CREATE | IN_MOVED_TO))
                emit(w, name, "EVENT_TYPE_CREATE", true);
        if (e->mask & (IN_MOVED_FROM | IN_MOVE_SELF))
                emit(w, name, "EVENT_TYPE_RENAME", false);
        if (e->mask & IN_ATTRIB)
                emit(w, name, "EVENT_TYPE_CHMOD", true);
        if (e->mask & IN_MODIFY)
                emit(w, name, "EVENT_TYPE_WRITE", true);
        if (e->mask & (IN_DELETE | IN_DELETE_SELF))
                emit(w, name, "EVENT_TYPE_REMOVE", false);
        if (w->recursive && (e->mask & IN_ISDIR) && e->len)
                follow_directory(w, e, name);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
        struct watch *w = poll->data;
        char data[READ_SIZE] __attribute__((aligned(__alignof__(struct inotify_event))));
        ssize_t n = read(w->fd, data, sizeof(data));

        (void)status, (void)events;
        for (ssize_t at = 0; at < n && !w->broken; ) {
                const struct inotify_event *e = (const struct inotify_event *)(data + at);

                handle(w, e);
                at += (ssize_t)(sizeof(*e) + e->len);
        }
}

static int check_path(const struct watch_options *o, struct error *err)
{
        static const unsigned long network[] = { 0x6969, 0xFF534D42, 0x517B, 0xFE534D42, 0x65735546 };
        struct statfs fs;
        struct stat st;

        if (stat(o->path, &st) < 0)
                return error_set(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL,
                                 "path %s not found: stat %s: %s", o->path, o->path,
                                 errno == ENOENT ? "no such file or directory" : strerror(errno));
        if (!S_ISDIR(st.st_mode))
                return error_set(err, ERROR_INVALID, "path %s not a directory: it is a file", o->path);
        if (o->network_mounts || statfs(o->path, &fs) < 0)
                return 0;
        for (size_t i = 0; i < sizeof(network) / sizeof(network[0]); i++)
                if (((unsigned long)fs.f_type & 0xFFFFFFFF) == network[i])
                        return error_set(err, ERROR_INVALID, "cannot watch path on network filesystem: %s", o->path);
        return 0;
}

int watch_start(const struct watch_options *o, const struct watch_ops *ops, void *data, struct watch **ret,
                struct error *err)
{
        struct watch *w;
        int fd, r = check_path(o, err);

        if (r < 0)
                return r;
        fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (fd < 0)
                return error_errno(err, errno, "error creating watcher");
        w = xcalloc(1, sizeof(*w));
        *w = (struct watch){ .root = xstrdup(o->path), .recursive = o->recursive, .include_entry = o->include_entry,
                             .legacy = o->legacy, .fd = fd, .ops = ops, .data = data };
        w->poll = xcalloc(1, sizeof(*w->poll));
        uv_poll_init(agent_loop, w->poll, fd);
        w->poll->data = w;
        r = add_tree(w, "", false, false, 0);
        if (r < 0) {
                error_set(err, ERROR_INTERNAL, "error adding path %s to watcher: %s", o->path, strerror(-r));
                watch_free(w);
                return r;
        }
        uv_poll_start(w->poll, UV_READABLE, on_readable);
        *ret = w;
        return 0;
}

void watch_pause(struct watch *w, bool paused)
{
        if (w->broken)
                return;
        if (paused)
                uv_poll_stop(w->poll);
        else
                uv_poll_start(w->poll, UV_READABLE, on_readable);
}

static void free_poll(uv_handle_t *handle)
{
        free(handle);
}

void watch_free(struct watch *w)
{
        if (!w)
                return;
        uv_poll_stop(w->poll);
        uv_close((uv_handle_t *)w->poll, free_poll);
        close(w->fd);
        while (w->count)
                forget(w, &w->directories[0]);
        free(w->directories);
        free(w->root);
        free(w);
}
