/* Theory of operation: the archive is first extracted into a private directory of the root file system, by rules
 * that let no entry out of it (no symlink among the parents, no "..", no devices). So a bad archive fails before
 * the target is touched, and the type of the source object is known before the target is decided. Then what was
 * selected is moved into place by rename(2), or copied where the target lies on another file system.
 *
 * Owner and mode are put into the entries while extracting; a link gets the owner itself and never a mode, so the
 * file that it points at stays as it is (known-failures D1 4).
 */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "context-archive.h"
#include "tar.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "tree.h"
#include "user.h"

#define STAGE_TEMPLATE "/.vmon-copy-XXXXXX"
#define DEPTH_MAX 1024

struct copy {
        const struct copy_request *request;
        struct copy_result *result;
        struct tree stage;
        uid_t uid;
        gid_t gid;
        bool has_mode;
        mode_t mode;
};

static int parse_id(const char *text, unsigned *ret)
{
        uint64_t n;

        if (!str_to_u64(text, UINT32_MAX - 1, &n))
                return -EINVAL;
        *ret = (unsigned)n;
        return 0;
}

static int parse_owner(struct copy *c, struct error *err)
{
        CLEANUP_FREE char *name = xstrdup(c->request->owner);
        char *group = strchr(name, ':');
        struct user user = {};

        if (!group || group == name || !group[1])
                return error_set(err, ERROR_INVALID, "owner '%s' is not of the form user:group", name);
        *group++ = 0;
        if (user_lookup(name, &user) == 0)
                c->uid = user.uid;
        else if (parse_id(name, &c->uid) < 0)
                return error_set(err, ERROR_INVALID, "user '%s' does not exist", name);
        user_free(&user);
        if (group_lookup(group, &c->gid) < 0 && parse_id(group, &c->gid) < 0)
                return error_set(err, ERROR_INVALID, "group '%s' does not exist", group);
        return 0;
}

static int parse_mode(struct copy *c, struct error *err)
{
        const char *text = c->request->mode;
        char *end;
        unsigned long mode;

        if (!*text)
                return 0;
        mode = strtoul(text, &end, 8);
        if (*end || mode > 07777 || *text < '0' || *text > '7')
                return error_set(err, ERROR_INVALID, "mode '%s' is no octal number up to 7777", text);
        c->has_mode = true;
        c->mode = (mode_t)mode;
        return 0;
}

int copy_map_source(const char *source, char *out)
{
        CLEANUP_FREE char *copy = xstrdup(source);
        char *glob = strpbrk(copy, "*?[{");

        if (glob) {
                while (glob > copy && glob[-1] != '/')
                        glob--;
                *glob = 0;
        }
        return tree_clean(copy, out);
}

/* Absolute or "..": refused, even where it would stay inside. */
static bool is_confined(const char *name)
{
        if (!name || *name == '/')
                return false;
        while (*name) {
                size_t n = strcspn(name, "/");

                if (n == 2 && name[0] == '.' && name[1] == '.')
                        return false;
                name += n;
                name += *name == '/';
        }
        return true;
}

static void count_bytes(uint64_t bytes, void *data)
{
        struct copy *c = data;

        c->result->bytes += bytes;
}

/* The later of two entries with one name wins, as for files; a link to itself stays. 0 or -1 and errno. */
static int link_at(int from, const char *name, int to, const char *as)
{
        struct stat a, b;

        if (linkat(from, name, to, as, 0) == 0)
                return 0;
        if (errno != EEXIST || fstatat(from, name, &a, AT_SYMLINK_NOFOLLOW) < 0 || fstatat(to, as, &b, AT_SYMLINK_NOFOLLOW) < 0)
                return -1;
        if (a.st_dev == b.st_dev && a.st_ino == b.st_ino)
                return 0;
        return tree_remove_at(to, as) < 0 ? -1 : linkat(from, name, to, as, 0);
}

static int stage_hard_link(struct copy *c, int parent, const char *name, const char *target, struct error *err)
{
        char clean[PATH_MAX];
        CLEANUP_FREE char *above = NULL;
        CLEANUP_CLOSE int fd = -1;
        const char *last;

        if (!is_confined(target) || tree_clean(target, clean) < 0 || !*clean)
                return error_set(err, ERROR_INVALID, "hard link to '%s' leaves the archive", target);
        last = strrchr(clean, '/');
        above = last ? xstrndup(clean, (size_t)(last - clean)) : xstrdup("");
        last = last ? last + 1 : clean;
        fd = tree_openat(&c->stage, above, O_RDONLY | O_DIRECTORY);
        if (fd < 0)
                return error_errno(err, fd, "hard link to '%s'", target);
        return link_at(fd, last, parent, name) < 0 ? error_errno(err, errno, "hard link to '%s'", target) : 0;
}

static int stage_object(struct copy *c, struct archive *a, struct archive_entry *e, const char *path, struct error *err)
{
        const char *target = archive_entry_hardlink(e), *name;
        bool directory = !target && archive_entry_filetype(e) == AE_IFDIR;
        struct stat st;
        int parent, r = tree_parent(&c->stage, path, true, &parent, &name, err);

        if (r == -ELOOP)
                return error_set(err, ERROR_INVALID, "the entry lies behind a symbolic link of the archive");
        if (r < 0)
                return r;
        if (target)
                return stage_hard_link(c, parent, name, target, err);
        if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !(directory && S_ISDIR(st.st_mode))) {
                r = tree_remove_at(parent, name);
                if (r < 0)
                        return error_errno(err, r, "replace an earlier entry");
        }
        archive_entry_set_uid(e, c->uid);
        archive_entry_set_gid(e, c->gid);
        if (c->has_mode && archive_entry_filetype(e) != AE_IFLNK)
                archive_entry_set_perm(e, c->mode);
        r = entry_create(a, e, parent, name, false, count_bytes, c, err);
        tree_forget(&c->stage);
        return r;
}

/* What says itself that it cannot fit is refused before anything is written. A sparse file's size says nothing. */
static int check_size(struct copy *c, struct archive_entry *e, struct error *err)
{
        int64_t size = archive_entry_size(e);
        struct statvfs fs;
        uint64_t left;

        if (archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e) || archive_entry_sparse_count(e) ||
            fstatvfs(c->stage.root, &fs) < 0)
                return 0;
        left = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (size <= 0 || (uint64_t)size <= left)
                return 0;
        return error_set(err, ERROR_UNAVAILABLE, "its %llu MB do not fit, the template's disk has %llu MB left",
                         (unsigned long long)size >> 20, (unsigned long long)left >> 20);
}

static int stage_entry(struct copy *c, struct archive *a, struct archive_entry *e, struct error *err)
{
        const char *name = archive_entry_pathname(e);
        char path[PATH_MAX];
        int r;

        if (!is_confined(name) || tree_clean(name, path) < 0)
                return error_set(err, ERROR_INVALID, "the archive's entry '%s' is absolute, holds '..' or is too long",
                                 name ? name : "");
        c->result->entries++;
        if (*path == 0)
                return 0;
        r = check_size(c, e, err);
        if (r >= 0)
                r = stage_object(c, a, e, path, err);
        return r < 0 ? error_wrap(err, r, "%s", path) : 0;
}

static int stage_archive(struct copy *c, struct error *err)
{
        struct context_archive *archive = NULL;
        struct archive_entry *e;
        int r = context_archive_open(c->request->archive, &archive, err);

        while (r >= 0 && (r = archive_next(context_archive_tar(archive), &e, err)) > 0)
                r = stage_entry(c, context_archive_tar(archive), e, err);
        if (r >= 0)
                r = context_archive_finish(archive, err);
        context_archive_close(archive);
        return r;
}

static int copy_content(int from, int to)
{
        ssize_t n;

        while ((n = sendfile(to, from, NULL, 16 << 20)) > 0)
                ;
        return n < 0 ? -errno : 0;
}

/* For a target on another file system. */
static int copy_across(int from, const char *name, int to, const char *as)
{
        CLEANUP_CLOSE int in = -1, out = -1;
        struct stat st;
        int r;

        if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        unlinkat(to, as, 0);
        if (S_ISLNK(st.st_mode)) {
                char target[PATH_MAX];
                ssize_t n = readlinkat(from, name, target, sizeof(target) - 1);

                if (n < 0)
                        return -errno;
                target[n] = 0;
                if (symlinkat(target, to, as) < 0)
                        return -errno;
                return fchownat(to, as, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
        }
        if (!S_ISREG(st.st_mode))
                return -EXDEV;
        in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        out = openat(to, as, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (in < 0 || out < 0)
                return -errno;
        r = copy_content(in, out);
        if (r < 0)
                return r;
        if (fchown(out, st.st_uid, st.st_gid) < 0 || fchmod(out, st.st_mode & 07777) < 0)
                return -errno;
        futimens(out, (struct timespec[]){ st.st_atim, st.st_mtim });
        return 0;
}

static int place(struct copy *c, int from, const char *name, int to, const char *as, struct error *err)
{
        int r = renameat(from, name, to, as) < 0 ? -errno : 0;

        if (r == -EXDEV) {
                r = copy_across(from, name, to, as);
                c->result->elsewhere = true;
        }
        if (r == -EISDIR)
                return error_set(err, ERROR_INVALID, "%s: a directory is there, a file cannot replace it", as);
        return r < 0 ? error_errno(err, r, "%s", as) : 0;
}

static int merge(struct copy *c, int from, int to, unsigned depth, struct error *err);

/* Makes or opens the directory `as`; one that was there, or that a link leads to, keeps its metadata. */
static int open_target_directory(struct copy *c, int from, int to, const char *as, struct error *err)
{
        bool existed = mkdirat(to, as, 0700) < 0;
        struct stat st;
        int fd;

        if (existed && errno != EEXIST)
                return error_errno(err, errno, "create the directory %s", as);
        fd = openat(to, as, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return error_errno(err, errno, "%s: not a directory that could be merged into", as);
        if (existed)
                return fd;
        if (fstat(from, &st) < 0 || fchown(fd, c->uid, c->gid) < 0 ||
            fchmod(fd, c->has_mode ? c->mode : st.st_mode & 07777) < 0) {
                int r = error_errno(err, errno, "%s: set owner and mode", as);

                close(fd);
                return r;
        }
        return fd;
}

static int merge_directory(struct copy *c, int from, const char *name, int to, const char *as, unsigned depth,
                           struct error *err)
{
        CLEANUP_CLOSE int in = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), out = -1;

        if (in < 0)
                return error_errno(err, errno, "%s", name);
        out = open_target_directory(c, in, to, as, err);
        if (out < 0)
                return out;
        int r = merge(c, in, out, depth + 1, err);

        return r < 0 ? error_wrap(err, r, "%s", as) : 0;
}

static int merge(struct copy *c, int from, int to, unsigned depth, struct error *err)
{
        CLEANUP_CLOSEDIR DIR *dir = fdopendir(openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        struct dirent *e;
        struct stat st;
        int r = 0;

        if (!dir)
                return error_errno(err, errno, "read the staged directory");
        if (depth > DEPTH_MAX)
                return error_set(err, ERROR_INVALID, "directories nested deeper than %d", DEPTH_MAX);
        while (r >= 0 && (e = readdir(dir))) {
                if (streq(e->d_name, ".") || streq(e->d_name, ".."))
                        continue;
                if (fstatat(from, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        r = error_errno(err, errno, "%s", e->d_name);
                else if (S_ISDIR(st.st_mode))
                        r = merge_directory(c, from, e->d_name, to, e->d_name, depth, err);
                else
                        r = place(c, from, e->d_name, to, e->d_name, err);
        }
        return r;
}

/* Opens the directory that holds `path`, created as root where missing; `ret_name` points into `path`. */
static int open_parent(char *path, const char **ret_name, struct error *err)
{
        char *slash = strrchr(path, '/');
        int fd, r;

        *slash = 0;
        r = dir_make(*path ? path : "/", 0755, err);
        if (r < 0)
                return r;
        fd = open(*path ? path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *ret_name = slash + 1;
        return fd < 0 ? error_errno(err, errno, "open %s", path) : fd;
}

/* Does the text alone say that a directory is meant? */
static bool names_directory(const char *target)
{
        return str_ends(target, "/") || str_ends(target, "/.") || str_ends(target, "/..");
}

static int place_file(struct copy *c, int from, const char *name, struct error *err)
{
        const char *target = c->request->target, *as;
        CLEANUP_FREE char *path = NULL;
        CLEANUP_CLOSE int parent = -1;
        struct stat st;

        if (names_directory(target) || (stat(target, &st) == 0 && S_ISDIR(st.st_mode)))
                path = xasprintf("%s/%s", target, name);
        else
                path = xstrdup(target);
        parent = open_parent(path, &as, err);
        return parent < 0 ? parent : place(c, from, name, parent, as, err);
}

static int place_directory(struct copy *c, int from, const char *name, struct error *err)
{
        CLEANUP_FREE char *path = xstrdup(c->request->target);
        CLEANUP_CLOSE int parent = -1;
        const char *as;

        /* "dir/" and "dir/." are "dir"; it may have to be made under that name. */
        for (size_t len = strlen(path); len > 1 && (path[len - 1] == '/' || str_ends(path, "/.")); len--)
                path[len - 1] = 0;
        if (streq(path, "/")) {
                parent = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                as = ".";
        } else
                parent = open_parent(path, &as, err);
        return parent < 0 ? parent : merge_directory(c, from, name, parent, as, 0, err);
}

static int place_source(struct copy *c, const char *source, struct error *err)
{
        const char *slash = strrchr(source, '/'), *name = slash ? slash + 1 : source;
        CLEANUP_FREE char *above = slash ? xstrndup(source, (size_t)(slash - source)) : xstrdup("");
        CLEANUP_CLOSE int from = tree_openat(&c->stage, above, O_RDONLY | O_DIRECTORY);
        struct stat st;

        if (!*name)
                name = ".";
        if (from < 0 || fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return error_set(err, ERROR_INVALID, "'%s' is not in the uploaded files", c->request->source);
        if (S_ISDIR(st.st_mode))
                return place_directory(c, from, name, err);
        if (S_ISREG(st.st_mode) || S_ISLNK(st.st_mode))
                return place_file(c, from, name, err);
        return error_set(err, ERROR_INVALID, "'%s' is neither file, directory nor link", c->request->source);
}

static int run(struct copy *c, const char *source, struct error *err)
{
        char stage[] = STAGE_TEMPLATE;
        int r;

        if (!mkdtemp(stage))
                return error_errno(err, errno, "create the staging directory");
        r = tree_open(&c->stage, stage, TREE_NO_LINKS, err);
        if (r >= 0) {
                /* What the archive root's own directory would get, when it becomes a target. */
                if (fchmod(c->stage.root, 0755) < 0)
                        r = error_errno(err, errno, "prepare the staging directory");
                if (r >= 0)
                        r = stage_archive(c, err);
                if (r >= 0)
                        r = place_source(c, source, err);
                tree_close(&c->stage);
        }
        tree_remove(stage, NULL);
        return r;
}

int copy_from_archive(const struct copy_request *request, struct copy_result *ret, struct error *err)
{
        struct copy c = { .request = request, .result = ret };
        char source[PATH_MAX];
        int r;

        *ret = (struct copy_result){};
        if (*request->target != '/')
                return error_set(err, ERROR_INVALID, "the target '%s' is not absolute", request->target);
        if (copy_map_source(request->source, source) < 0)
                return error_set(err, ERROR_INVALID, "the source '%s' leaves the context", request->source);
        r = parse_owner(&c, err);
        if (r >= 0)
                r = parse_mode(&c, err);
        if (r >= 0)
                r = run(&c, source, err);
        return r == -ENOSPC || r == -EDQUOT ? error_wrap(err, r, "the template's disk is full") : r;
}
