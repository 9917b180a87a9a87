/* The index of the cache: the layers in memory and their tree. What leaves the index leaves the disk. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/cache_internal.h"
#include "vm/digest.h"

void cache_entry_free(struct entry *e)
{
        free(e->parent_key);
        free(e->parent_instance);
        free(e->disk);
        free(e->disk_digest);
        json_decref(e->merged);
        free(e);
}

char *cache_path(const struct build_cache *c, const char *key, const char *name)
{
        return name ? xasprintf("%s/%s/%s", c->dir, key, name) : xasprintf("%s/%s", c->dir, key);
}

struct entry *cache_find(const struct build_cache *c, const char *key)
{
        struct entry *e = c->first;

        while (e && !streq(e->key, key))
                e = e->next;
        return e;
}

struct entry *cache_parent(const struct build_cache *c, const struct entry *e)
{
        return e->parent_key ? cache_find(c, e->parent_key) : NULL;
}

struct entry *cache_same(const struct build_cache *c, const char *key, const char *instance)
{
        struct entry *e = cache_find(c, key);

        return e && streq(e->instance, instance) ? e : NULL;
}

/* The first layer from `from` on that stands directly on `e`, or NULL. */
static struct entry *child_from(struct entry *from, const struct entry *e)
{
        while (from && !streq(from->parent_key, e->key))
                from = from->next;
        return from;
}

struct entry *cache_child(const struct build_cache *c, const struct entry *e)
{
        return child_from(c->first, e);
}

struct entry *cache_only_child(const struct build_cache *c, const struct entry *e)
{
        struct entry *child = cache_child(c, e);

        return child && !child_from(child->next, e) ? child : NULL;
}

size_t cache_chain_length(const struct build_cache *c, const struct entry *e)
{
        size_t n = 0;

        for (; e; e = cache_parent(c, e))
                n++;
        return n;
}

void cache_add(struct build_cache *c, struct entry *e)
{
        e->at = &c->first;
        e->next = c->first;
        if (e->next)
                e->next->at = &e->next;
        c->first = e;
        c->count++;
        c->bytes += e->bytes;
}

static void take_out(struct build_cache *c, struct entry *e)
{
        *e->at = e->next;
        if (e->next)
                e->next->at = e->at;
        e->next = NULL;
        c->count--;
        c->bytes -= e->bytes;
}

/* What is no longer in the index. */
static void discard(const struct build_cache *c, struct entry *e)
{
        CLEANUP_FREE char *path = cache_path(c, e->key, NULL);

        cache_entry_free(e);
        failpoint("remove", path);
        tree_remove(path, NULL);
        failpoint("removed", path);
}

void cache_drop_one(struct build_cache *c, struct entry *e)
{
        take_out(c, e);
        discard(c, e);
}

/* A layer that nothing stands on, of those that stand on `e`; or `e` itself. */
static struct entry *leaf_above(const struct build_cache *c, struct entry *e)
{
        struct entry *child;

        while ((child = cache_child(c, e)))
                e = child;
        return e;
}

void cache_drop(struct build_cache *c, struct entry *e)
{
        struct entry *gone = NULL, **end = &gone, *leaf;

        do { /* from the top, so that no crash leaves a layer without what it stands on */
                leaf = leaf_above(c, e);
                take_out(c, leaf);
                *end = leaf;
                end = &leaf->next;
        } while (leaf != e);
        while (gone) {
                leaf = gone;
                gone = leaf->next;
                discard(c, leaf);
        }
}

void cache_set_time(const struct build_cache *c, const struct entry *e)
{
        CLEANUP_FREE char *path = cache_path(c, e->key, "context.json");
        const struct timespec time = {.tv_sec = e->used_ns / NSEC_PER_SEC, .tv_nsec = e->used_ns % NSEC_PER_SEC};

        /* Only the order of eviction after a restart depends on it. */
        (void)utimensat(AT_FDCWD, path, (const struct timespec[]){time, time}, 0);
}

void cache_use(struct build_cache *c, struct entry *e)
{
        int64_t now = clock_realtime_ns();

        for (; e; e = cache_parent(c, e)) {
                e->used_ns = now;
                cache_set_time(c, e);
        }
}

int cache_digest(const char *path, char *ret_hex, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        uint64_t size;
        int r = fd < 0 ? -errno : digest_file(fd, &size, ret_hex);

        return r < 0 ? error_errno(err, r, "read %s", path) : 0;
}

void cache_verified(struct entry *e, const char *path)
{
        struct stat st;

        e->verified = stat(path, &st) == 0;
        if (e->verified) {
                e->verified_size = st.st_size;
                e->verified_mtime = st.st_mtim;
        }
}

bool cache_is_verified(const struct entry *e, const char *path)
{
        struct stat st;

        return e->verified && stat(path, &st) == 0 && st.st_size == e->verified_size && st.st_mtim.tv_sec == e->verified_mtime.tv_sec &&
               st.st_mtim.tv_nsec == e->verified_mtime.tv_nsec;
}
