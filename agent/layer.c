/* Theory of operation: two passes over each layer's headers.
 *
 * Pass 1 carries out the markers: `.wh.name` removes name, `.wh..wh..opq` empties its directory, a character
 * device 0:0 (what overlayfs itself leaves) removes its own name. At that moment nothing of this layer exists
 * yet, so the markers hide lower content only, in whatever order the tar has them (known-failures D5 55).
 * Skipping data is one lseek per entry on a plain tar. The first layer has nothing below it and skips this pass.
 *
 * Pass 2 creates everything else. What is in the way is unlinked first, never opened: a hard link of a lower
 * layer keeps its bytes (D5 61) and a mode-000 file is no obstacle (D5 67). A later entry of the same path wins.
 * Mtimes of directories are set at the end, since creating children changes them.
 */
#include "layer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tar.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "tree.h"

#define WHITEOUT ".wh."
#define WHITEOUT_META ".wh..wh."
#define OPAQUE ".wh..wh..opq"

struct directory_time {
        char *path;
        struct timespec mtime;
};

struct layer {
        struct tree tree;
        struct layer_stats *stats;
        layer_progress progress;
        void *data;
        int64_t reported_ns;
        bool stale; /* the cached parent must be forgotten after this entry */
        struct directory_time *times;
        size_t time_count, time_cap;
};

/* Both passes read the same bytes. */
struct source {
        const char *path;
        const void *memory;
        size_t len;
};

static int source_open(const struct source *s, struct archive **ret, struct error *err)
{
        struct archive *a = archive_new();
        int r;

        if (s->path)
                r = archive_open_path(a, s->path, err);
        else if (archive_read_open_memory(a, s->memory, s->len) != ARCHIVE_OK)
                r = error_set(err, ERROR_INVALID, "open the layer: %s", archive_error_string(a));
        else
                r = 0;
        if (r < 0) {
                archive_read_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

static void tell_progress(struct layer *l)
{
        int64_t now = clock_monotonic_ns();

        if (!l->progress || now - l->reported_ns < NSEC_PER_SEC)
                return;
        l->reported_ns = now;
        l->progress(l->stats, l->data);
}

static void count_bytes(uint64_t bytes, void *data)
{
        struct layer *l = data;

        l->stats->bytes += bytes;
        tell_progress(l);
}

static bool is_device_whiteout(struct archive_entry *e)
{
        return archive_entry_filetype(e) == AE_IFCHR && archive_entry_rdev(e) == 0 && !archive_entry_hardlink(e);
}

static int entry_path(struct archive_entry *e, char *out, struct error *err)
{
        const char *name = archive_entry_pathname(e);

        if (!name || tree_clean(name, out) < 0)
                return error_set(err, ERROR_INVALID, "an entry's name leaves the root or is longer than %d bytes",
                                 PATH_MAX);
        return 0;
}

static const char *base_name(const char *path)
{
        const char *slash = strrchr(path, '/');

        return slash ? slash + 1 : path;
}

static int empty_lower(struct layer *l, const char *path, struct error *err)
{
        CLEANUP_CLOSE int fd = -1;
        const char *name;
        int parent, r;

        if (*path == 0) {
                r = tree_empty(l->tree.root);
        } else {
                /* The directory itself may be a symlink below, which this layer replaces: not followed. */
                if (tree_parent(&l->tree, path, false, &parent, &name, NULL) < 0)
                        return 0;
                fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                r = fd < 0 ? 0 : tree_empty(fd);
        }
        tree_forget(&l->tree);
        return r < 0 ? error_errno(err, r, "empty the opaque directory %s", path) : 0;
}

static int remove_lower(struct layer *l, const char *path, struct error *err)
{
        const char *name;
        int parent, r;

        if (*path == 0 || tree_parent(&l->tree, path, false, &parent, &name, NULL) < 0)
                return 0;
        r = tree_remove_at(parent, name);
        tree_forget(&l->tree);
        return r < 0 ? error_errno(err, r, "remove %s", path) : 0;
}

static int apply_marker(struct layer *l, struct archive_entry *e, struct error *err)
{
        char path[PATH_MAX];
        int r = entry_path(e, path, err);
        char *name;

        if (r < 0)
                return r;
        if (is_device_whiteout(e))
                return remove_lower(l, path, err);
        name = (char *)base_name(path);
        if (!str_starts(name, WHITEOUT))
                return 0;
        if (streq(name, OPAQUE)) {
                *name = 0;
                if (name > path)
                        name[-1] = 0;
                return empty_lower(l, path, err);
        }
        if (str_starts(name, WHITEOUT_META))
                return 0; /* AUFS bookkeeping */
        memmove(name, name + strlen(WHITEOUT), strlen(name) - strlen(WHITEOUT) + 1);
        if (*name == 0 || streq(name, ".") || streq(name, ".."))
                return error_set(err, ERROR_INVALID, "the whiteout of %s names nothing", path);
        return remove_lower(l, path, err);
}

static int mark_pass(struct layer *l, const struct source *s, struct error *err)
{
        CLEANUP_ARCHIVE struct archive *a = NULL;
        struct archive_entry *e;
        int r = source_open(s, &a, err);

        while (r >= 0 && (r = archive_next(a, &e, err)) > 0)
                r = apply_marker(l, e, err);
        return r;
}

static void remember_time(struct layer *l, const char *path, struct archive_entry *e)
{
        if (!archive_entry_mtime_is_set(e))
                return;
        if (l->time_count == l->time_cap) {
                l->time_cap = l->time_cap ? 2 * l->time_cap : 256;
                l->times = xreallocarray(l->times, l->time_cap, sizeof(*l->times));
        }
        l->times[l->time_count++] = (struct directory_time){
                xstrdup(path), { archive_entry_mtime(e), archive_entry_mtime_nsec(e) }
        };
}

static void set_times(struct layer *l)
{
        for (size_t i = 0; i < l->time_count; i++) {
                struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, l->times[i].mtime };
                CLEANUP_CLOSE int fd = tree_openat(&l->tree, l->times[i].path, O_RDONLY | O_DIRECTORY);

                if (fd >= 0)
                        futimens(fd, times);
                free(l->times[i].path);
        }
        free(l->times);
}

/* Opens the directory of a hard link's target and points `ret_last` into `clean` (PATH_MAX bytes). */
static int open_link_target(struct layer *l, const char *target, char *clean, const char **ret_last)
{
        CLEANUP_FREE char *above = NULL;

        if (tree_clean(target, clean) < 0 || *clean == 0)
                return -EINVAL;
        *ret_last = base_name(clean);
        above = *ret_last > clean ? xstrndup(clean, (size_t)(*ret_last - clean - 1)) : xstrdup("");
        return tree_openat(&l->tree, above, O_RDONLY | O_DIRECTORY);
}

static int make_hard_link(struct layer *l, int dir_fd, const char *name, const char *target, struct error *err)
{
        char clean[PATH_MAX];
        const char *last;
        CLEANUP_CLOSE int parent = open_link_target(l, target, clean, &last);

        if (parent < 0)
                return error_errno(err, parent, "hard link to '%s'", target);
        if (linkat(parent, last, dir_fd, name, 0) < 0)
                return error_errno(err, errno, "hard link to '%s'", target);
        return 0;
}

/* Is dir_fd/name already the object that the link's target names, perhaps through a symlinked directory? Then
 * there is nothing to do, and unlinking first would destroy it. */
static bool links_to_itself(struct layer *l, int dir_fd, const char *name, const char *target)
{
        char clean[PATH_MAX];
        const char *last;
        struct stat here, there;
        CLEANUP_CLOSE int parent = open_link_target(l, target, clean, &last);

        return parent >= 0 && fstatat(dir_fd, name, &here, AT_SYMLINK_NOFOLLOW) == 0 &&
               fstatat(parent, last, &there, AT_SYMLINK_NOFOLLOW) == 0 && here.st_dev == there.st_dev &&
               here.st_ino == there.st_ino;
}

static int make_way(struct layer *l, int dir_fd, const char *name, bool directory, struct error *err)
{
        struct stat st;
        int r;

        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "look at what is there");
        if (S_ISDIR(st.st_mode) && directory)
                return 0;
        /* The cached parent may lie below, or have been reached through, what goes. */
        l->stale = S_ISDIR(st.st_mode) || S_ISLNK(st.st_mode);
        r = tree_remove_at(dir_fd, name);
        return r < 0 ? error_errno(err, r, "replace what is there") : 0;
}

static int apply_root(struct layer *l, struct archive_entry *e, struct error *err)
{
        if (archive_entry_filetype(e) != AE_IFDIR)
                return 0;
        remember_time(l, "", e);
        return entry_apply_directory(e, l->tree.root, err);
}

static int create_entry(struct layer *l, struct archive *a, struct archive_entry *e, const char *path,
                        struct error *err)
{
        const char *target = archive_entry_hardlink(e);
        bool directory = !target && archive_entry_filetype(e) == AE_IFDIR;
        const char *name;
        int parent, r;

        r = tree_parent(&l->tree, path, true, &parent, &name, err);
        if (r < 0)
                return r;
        if (target && links_to_itself(l, parent, name, target))
                return 0;
        r = make_way(l, parent, name, directory, err);
        if (r < 0)
                return r;
        if (is_device_whiteout(e))
                return 0;
        if (target)
                return make_hard_link(l, parent, name, target, err);
        if (directory)
                remember_time(l, path, e);
        return entry_create(a, e, parent, name, true, count_bytes, l, err);
}

static int apply_entry(struct layer *l, struct archive *a, struct archive_entry *e, struct error *err)
{
        char path[PATH_MAX];
        int r = entry_path(e, path, err);

        if (r < 0)
                return r;
        l->stats->entries++;
        tell_progress(l);
        if (*path == 0)
                return apply_root(l, e, err);
        if (str_starts(base_name(path), WHITEOUT))
                return 0;
        r = create_entry(l, a, e, path, err);
        if (l->stale)
                tree_forget(&l->tree);
        l->stale = false;
        return r < 0 ? error_wrap(err, r, "%s", path) : 0;
}

static int create_pass(struct layer *l, const struct source *s, struct error *err)
{
        CLEANUP_ARCHIVE struct archive *a = NULL;
        struct archive_entry *e;
        int r = source_open(s, &a, err);

        while (r >= 0 && (r = archive_next(a, &e, err)) > 0)
                r = apply_entry(l, a, e, err);
        return r;
}

static int apply(const struct source *s, const char *root, bool first, struct layer_stats *stats,
                 layer_progress progress, void *data, struct error *err)
{
        struct layer l = { .stats = stats, .progress = progress, .data = data, .reported_ns = clock_monotonic_ns() };
        int r = tree_open(&l.tree, root, TREE_FOLLOW_IN_ROOT, err);

        if (r < 0)
                return r;
        if (!first)
                r = mark_pass(&l, s, err);
        tree_forget(&l.tree);
        if (r >= 0)
                r = create_pass(&l, s, err);
        tree_forget(&l.tree);
        set_times(&l);
        tree_close(&l.tree);
        return r;
}

int layer_apply(const char *tar, const char *root, bool first, struct layer_stats *stats, layer_progress progress,
                void *data, struct error *err)
{
        return apply(&(struct source){ .path = tar }, root, first, stats, progress, data, err);
}

int layer_apply_memory(const void *tar, size_t len, const char *root, bool first, struct layer_stats *stats,
                       struct error *err)
{
        return apply(&(struct source){ .memory = tar, .len = len }, root, first, stats, NULL, NULL, err);
}
