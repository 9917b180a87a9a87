#include "cluster/contexts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#define HASH_LEN 64

struct context {
        char *name;
        uint64_t bytes;
        int64_t used_s;
};

struct contexts {
        struct context *items;
        size_t count;
        uint64_t bytes; /* of all files, half-uploaded ones too */
};

static void contexts_free(struct contexts *c)
{
        for (size_t i = 0; i < c->count; i++)
                free(c->items[i].name);
        free(c->items);
}

static int by_use(const void *a, const void *b)
{
        const struct context *x = a, *y = b;

        return x->used_s < y->used_s ? -1 : x->used_s > y->used_s;
}

/* Least recently used first. A directory that is not there has none. */
static void contexts_read(const char *dir, struct contexts *ret)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        struct stat st;

        *ret = (struct contexts){};
        for (struct dirent *e; d && (e = readdir(d));) {
                if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                        continue;
                ret->bytes += (uint64_t)st.st_blocks * 512;
                if (!str_is_hex(e->d_name, HASH_LEN))
                        continue;
                ret->items = xreallocarray(ret->items, ret->count + 1, sizeof(*ret->items));
                ret->items[ret->count++] = (struct context){ xstrdup(e->d_name), (uint64_t)st.st_blocks * 512, st.st_mtim.tv_sec };
        }
        if (ret->count > 1)
                qsort(ret->items, ret->count, sizeof(*ret->items), by_use);
}

void context_touch(const char *file)
{
        utimensat(AT_FDCWD, file, NULL, AT_SYMLINK_NOFOLLOW);
}

static void remove_context(const char *dir, const char *name)
{
        CLEANUP_FREE char *path = path_join(dir, name);

        failpoint("remove", path);
        unlink(path);
        failpoint("removed", path);
}

uint64_t contexts_make_room(const char *dir, uint64_t quota, uint64_t make_room, int64_t now_s)
{
        CLEANUP(contexts_free) struct contexts c;

        contexts_read(dir, &c);
        for (size_t i = 0; make_room > 0 && i < c.count && c.bytes + make_room > quota; i++) {
                if (c.items[i].used_s > now_s - CONTEXT_SAFE_SECONDS)
                        break;
                remove_context(dir, c.items[i].name);
                c.bytes -= c.items[i].bytes;
        }
        return c.bytes;
}

/* Why the contexts of a team may go: NULL when none may. */
static int judge_team(struct records *r, const char *slug, bool *ret_all, bool *ret_none, struct error *err)
{
        CLEANUP(cleanup_team) struct team *team = NULL;
        struct build_record **active;
        struct error why = {};
        size_t count;
        int x = records_team_by_slug(r, slug, &team, &why);

        *ret_all = *ret_none = false;
        if (x < 0 && why.kind != ERROR_NOT_FOUND)
                return error_set(err, why.kind, "%s", why.message);
        if (x < 0) {
                *ret_all = true;
                return 0;
        }
        x = records_team_builds_active(r, team->id, &active, &count, err);
        if (x < 0)
                return x;
        *ret_none = count > 0;
        build_records_free(active, count);
        return 0;
}

struct visit {
        bool dry_run;
        int64_t now_s;
        void (*found)(void *data, const char *slug, const char *hash, const char *reason, uint64_t bytes);
        void *data;
};

static void visit_team(const struct visit *v, const char *dir, const char *slug, bool all)
{
        CLEANUP(contexts_free) struct contexts c;

        contexts_read(dir, &c);
        for (size_t i = 0; i < c.count; i++) {
                if (!all && c.items[i].used_s > v->now_s - CONTEXT_KEEP_SECONDS)
                        break; /* so are those behind it */
                if (!v->dry_run)
                        remove_context(dir, c.items[i].name);
                v->found(v->data, slug, c.items[i].name, all ? "its team was deleted" : "no build has used it for a week", c.items[i].bytes);
        }
        if (!v->dry_run && all)
                rmdir(dir); /* when nothing else is in it */
}

int contexts_collect(const char *data_dir, struct records *r, bool dry_run, int64_t now_s,
                     void (*found)(void *data, const char *slug, const char *hash, const char *reason, uint64_t bytes), void *data,
                     struct error *err)
{
        CLEANUP_FREE char *files = path_join(data_dir, "files");
        CLEANUP_CLOSEDIR DIR *d = opendir(files);
        const struct visit v = { dry_run, now_s, found, data };
        int x = 0;

        if (!d)
                return errno == ENOENT ? 0 : error_errno(err, errno, "read %s", files);
        for (struct dirent *e; x == 0 && (e = readdir(d));) {
                CLEANUP_FREE char *dir = path_join(files, e->d_name);
                bool all, none;

                if (!name_is_alias(e->d_name))
                        continue;
                x = judge_team(r, e->d_name, &all, &none, err);
                if (x == 0 && !none)
                        visit_team(&v, dir, e->d_name, all);
        }
        return x;
}
