/* Theory of operation: the index in memory is what counts; the directory follows it. A layer comes by one rename of a finished
 * directory, goes by the removal of its directory, and changes (a merge) by the replacement of its record. Whatever a crash
 * leaves (half-written or half-removed directories, files that no record names) the next start removes.
 *
 * Here: opening and closing. cache_index.c holds the tree of layers, cache_find.c looks layers up and checks them, cache_put.c
 * adds them, cache_evict.c decides what goes, cache_merge.c evicts a layer that others stand on.
 */
#include "build/cache.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/cache_internal.h"

/* A crash inside a merge leaves the child's old or new disk. */
static void remove_strays(const char *dir, const char *disk)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        struct dirent *de;

        while (d && (de = readdir(d)))
                if (de->d_name[0] != '.' && !streq(de->d_name, "context.json") && !streq(de->d_name, disk))
                        unlinkat(dirfd(d), de->d_name, 0);
}

static struct entry *entry_new(const char *key, const struct layer_record *r)
{
        struct entry *e = xcalloc(1, sizeof(*e));

        strcpy(e->key, key);
        strcpy(e->instance, r->instance);
        e->parent_key = xstrdup_or_null(r->parent_key);
        e->parent_instance = xstrdup_or_null(r->parent_instance);
        e->disk = xstrdup_or_null(r->disk);
        e->disk_digest = xstrdup_or_null(r->disk_digest);
        e->merged = json_incref(r->merged);
        return e;
}

/* One directory of the cache as found at start; NULL when it is not a whole layer. */
static struct entry *load(const struct build_cache *c, const char *key)
{
        CLEANUP_FREE char *dir = cache_path(c, key, NULL), *context = cache_path(c, key, "context.json"), *disk = NULL;
        struct layer_record r = {};
        struct entry *e = NULL;
        struct stat st;

        if (!str_is_hex(key, BUILD_KEY_LEN) || layer_record_read(dir, &r, NULL) < 0)
                return NULL;
        disk = r.disk ? path_join(dir, r.disk) : NULL;
        if (stat(context, &st) == 0 && (!disk || path_exists(disk))) {
                remove_strays(dir, r.disk);
                e = entry_new(key, &r);
                e->used_ns = st.st_mtim.tv_sec * NSEC_PER_SEC + st.st_mtim.tv_nsec;
                e->bytes = tree_allocated_bytes(dir);
        }
        layer_record_free(&r);
        return e;
}

static bool orphan(const struct build_cache *c, const struct entry *e)
{
        return e->parent_key && !cache_same(c, e->parent_key, e->parent_instance);
}

static void drop_orphans(struct build_cache *c)
{
        struct entry *e = c->first;

        while (e)
                if (orphan(c, e)) {
                        cache_drop(c, e);
                        e = c->first;
                } else {
                        e = e->next;
                }
}

/* A crash may have come between the times of a layer and of what it stands on. */
static void order_uses(const struct build_cache *c)
{
        for (const struct entry *e = c->first; e; e = e->next)
                for (struct entry *below = cache_parent(c, e); below; below = cache_parent(c, below))
                        if (below->used_ns < e->used_ns)
                                below->used_ns = e->used_ns;
}

static int scan(struct build_cache *c, struct error *err)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(c->dir);
        struct dirent *de;

        if (!d)
                return error_errno(err, errno, "open %s", c->dir);
        while ((de = readdir(d))) {
                struct entry *e;

                if (de->d_name[0] == '.')
                        continue;
                e = load(c, de->d_name);
                if (e) {
                        cache_add(c, e);
                } else {
                        CLEANUP_FREE char *path = cache_path(c, de->d_name, NULL);

                        tree_remove(path, NULL);
                }
        }
        return 0;
}

int build_cache_open(const char *dir, unsigned max_layers, uint64_t max_bytes, struct build_cache **ret,
                     struct error *err)
{
        struct build_cache *c;
        int r = dir_make(dir, 0755, err);

        if (r < 0)
                return r;
        c = xcalloc(1, sizeof(*c));
        pthread_mutex_init(&c->lock, NULL);
        c->dir = xstrdup(dir);
        c->max_layers = max_layers;
        c->max_bytes = max_bytes;
        r = scan(c, err);
        if (r < 0) {
                build_cache_close(c);
                return r;
        }
        drop_orphans(c);
        order_uses(c);
        cache_evict_leaves(c);
        *ret = c;
        return 0;
}

void build_cache_close(struct build_cache *c)
{
        if (!c)
                return;
        for (struct entry *e = c->first, *next; e; e = next) {
                next = e->next;
                cache_entry_free(e);
        }
        free(c->dir);
        pthread_mutex_destroy(&c->lock);
        free(c);
}

unsigned build_cache_count(struct build_cache *c)
{
        unsigned n;

        pthread_mutex_lock(&c->lock);
        n = (unsigned)c->count;
        pthread_mutex_unlock(&c->lock);
        return n;
}

uint64_t build_cache_bytes(struct build_cache *c)
{
        uint64_t n;

        pthread_mutex_lock(&c->lock);
        n = c->bytes;
        pthread_mutex_unlock(&c->lock);
        return n;
}
