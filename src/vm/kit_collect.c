/* Which kits stay (design 5: while any snapshot or paused sandbox needs them).
 *
 * There are no counters that could go wrong: what needs a version is looked up. A snapshot names its kit in manifest.json, a
 * sandbox by the link `kit` in its directory, a running build (and a template that is held open) by the lock on kit.json that
 * kit_open() takes. Data directories are found through <kit_root>/users/, links that kit_add_user() makes, because a kit
 * root may be shared. Any doubt keeps everything: a kit too many costs 200 MB, one too few every snapshot that needs it.
 * Runs under the lock that kit_build() takes.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/kit.h"
#include "vm/kit_internal.h"
#include "vm/manifest.h"

struct needed {
        char **versions; /* "<arch>/<version>" */
        size_t count;
};

static void needed_free(struct needed *n)
{
        for (size_t i = 0; i < n->count; i++)
                free(n->versions[i]);
        free(n->versions);
}

static void need(struct needed *n, const char *arch, const char *version)
{
        n->versions = xreallocarray(n->versions, n->count + 1, sizeof(char *));
        n->versions[n->count++] = xasprintf("%s%s%s", arch, *arch ? "/" : "", version);
}

static bool is_needed(const struct needed *n, const char *arch, const char *version)
{
        CLEANUP_FREE char *name = xasprintf("%s/%s", arch, version);

        for (size_t i = 0; i < n->count; i++)
                if (streq(n->versions[i], name))
                        return true;
        return false;
}

/* Calls `each` with the path of every entry; a missing directory has none. */
static int each_entry(const char *dir, int (*each)(struct needed *n, const char *path, struct error *err), struct needed *n, struct error *err)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        struct dirent *de;
        int r = 0;

        if (!d)
                return errno == ENOENT ? 0 : error_errno(err, errno, "read %s", dir);
        while (r >= 0 && (de = readdir(d))) {
                CLEANUP_FREE char *path = path_join(dir, de->d_name);

                if (de->d_name[0] != '.')
                        r = each(n, path, err);
        }
        return r;
}

static int need_of_build(struct needed *n, const char *path, struct error *err)
{
        CLEANUP_FREE char *manifest = path_join(path, "manifest.json");
        struct vm_manifest m = {};
        struct error why = {};
        int r;

        if (!path_exists(manifest))
                return 0;
        r = vm_manifest_read(path, &m, &why);
        if (r < 0) /* a snapshot of another format is never loaded again */
                return why.kind == ERROR_CONFLICT ? 0 : error_set(err, why.kind, "%s", why.message);
        need(n, m.architecture, m.kit_version);
        vm_manifest_free(&m);
        return 0;
}

static int need_of_sandbox(struct needed *n, const char *path, struct error *err)
{
        CLEANUP_FREE char *link = path_join(path, "kit");
        char target[PATH_MAX];
        ssize_t len = readlink(link, target, sizeof(target) - 1);

        if (len < 0)
                return errno == ENOENT || errno == ENOTDIR ? 0 : error_errno(err, errno, "read %s", link);
        target[len] = '\0';
        need(n, "", target);
        return 0;
}

/* One link of <kit_root>/users. A data directory that is gone needs nothing any more; one that is there but empty may be a
 * file system that is not mounted now. */
static int need_of_user(struct needed *n, const char *path, struct error *err)
{
        CLEANUP_FREE char *data = realpath(path, NULL), *secret = NULL, *builds = NULL, *sandboxes = NULL;
        int r;

        if (!data && errno == ENOENT) {
                unlink(path);
                return 0;
        }
        if (!data)
                return error_errno(err, errno, "resolve %s", path);
        secret = path_join(data, "root-secret");
        if (!path_exists(secret))
                return error_set(err, ERROR_UNAVAILABLE, "%s, which uses these kits, holds no data of vmon (not mounted? if it is gone for "
                                 "good, remove %s)", data, path);
        builds = path_join(data, "builds");
        sandboxes = path_join(data, "sandboxes");
        r = each_entry(builds, need_of_build, n, err);
        return r < 0 ? r : each_entry(sandboxes, need_of_sandbox, n, err);
}

static void tell(void (*log)(const char *line), const char *format, const char *what)
{
        CLEANUP_FREE char *line = NULL;

        if (!log)
                return;
        line = xasprintf(format, what);
        log(line);
}

/* kit.json goes first: what is left after a crash is litter, not a kit with a part missing. */
static int remove_version(const char *dir, void (*log)(const char *line), struct error *err)
{
        CLEANUP_FREE char *description = path_join(dir, "kit.json");
        CLEANUP_CLOSE int fd = open(description, O_RDONLY | O_CLOEXEC);

        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
                return errno == EWOULDBLOCK ? 0 : error_errno(err, errno, "lock %s", description);
        unlink(description);
        tell(log, "removing kit %s, which nothing needs any more", dir);
        return tree_remove(dir, err);
}

/* "<version>" or what a crash left of making one. */
static bool is_version(const char *name, char version[KIT_VERSION_LEN + 1])
{
        size_t len = strnlen(name, KIT_VERSION_LEN);

        memcpy(version, name, len);
        version[len] = '\0';
        return len == KIT_VERSION_LEN && str_is_hex(version, KIT_VERSION_LEN) && (streq(name + KIT_VERSION_LEN, "") || streq(name + KIT_VERSION_LEN, ".tmp"));
}

static int collect(const char *base, const char *arch, const char *current, const struct needed *n, void (*log)(const char *line),
                   struct error *err)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(base);
        struct dirent *de;
        int r = 0;

        if (!d)
                return error_errno(err, errno, "read %s", base);
        while (r >= 0 && (de = readdir(d))) {
                CLEANUP_FREE char *path = path_join(base, de->d_name);
                char version[KIT_VERSION_LEN + 1];

                if (is_version(de->d_name, version) && !streq(de->d_name, current) && !is_needed(n, arch, de->d_name))
                        r = remove_version(path, log, err);
        }
        return r;
}

/* 1 = taken, 0 = busy (or nothing there). */
static int lock_base(const char *base, bool wait, int *ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(base, ".lock");
        CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);

        if (fd < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "open %s", path);
        if (flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB)) < 0)
                return errno == EWOULDBLOCK ? 0 : error_errno(err, errno, "lock %s", path);
        *ret = STEAL_FD(fd);
        return 1;
}

int kit_collect(const char *kit_root, const char *arch, bool wait, void (*log)(const char *line), struct error *err)
{
        CLEANUP(needed_free) struct needed n = {};
        CLEANUP_FREE char *users = path_join(kit_root, "users"), *base = NULL, *link = NULL;
        CLEANUP_CLOSE int lock = -1;
        const struct kit_arch *a;
        char current[PATH_MAX];
        ssize_t len;
        int r = kit_arch_find(arch, &a, err);

        if (r < 0 || !path_exists(users))
                return r;
        base = path_join(kit_root, a->name);
        link = path_join(base, "current");
        r = lock_base(base, wait, &lock, err);
        if (r <= 0)
                return r;
        len = readlink(link, current, sizeof(current) - 1);
        if (len < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "read %s", link);
        current[len] = '\0';
        r = each_entry(users, need_of_user, &n, err);
        if (r >= 0)
                r = collect(base, a->name, current, &n, log, err);
        return r < 0 ? error_wrap(err, r, "remove kits that nothing needs") : 0;
}

int kit_add_user(const char *kit_root, const char *data_dir, struct error *err)
{
        CLEANUP_FREE char *users = path_join(kit_root, "users"), *data = realpath(data_dir, NULL), *link = NULL;
        char name[65];
        int r;

        if (!data)
                return error_errno(err, errno, "resolve %s", data_dir);
        r = dir_make(users, 0755, err);
        if (r < 0)
                return r;
        kit_sha256_text(data, name);
        name[KIT_VERSION_LEN] = '\0';
        link = path_join(users, name);
        if (symlink(data, link) < 0 && errno != EEXIST)
                return error_errno(err, errno, "note %s as a user of the kits in %s", data, kit_root);
        return 0;
}
