/* Theory of operation: the index in memory is what counts; the directory follows it. A layer comes by one rename of a finished
 * directory, goes by the removal of its directory, and changes (a merge) by the replacement of its record. Whatever a crash
 * leaves (half-written or half-removed directories, files that no record names) the next start removes.
 */
#include "build/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "build/cache_internal.h"
#include "build/context.h"
#include "vm/digest.h"

void build_layer_free(struct build_layer *l)
{
        if (!l)
                return;
        free(l->disk);
        free(l->unchecked);
        build_context_free(&l->context);
        json_decref(l->image_env);
        free(l->init);
        *l = (struct build_layer){};
}

void build_cache_hit_free(struct build_cache_hit *h)
{
        free(h->layers);
        *h = (struct build_cache_hit){};
}

static void entry_free(struct entry *e)
{
        free(e->parent_key);
        free(e->parent_instance);
        free(e->disk);
        free(e->disk_sha256);
        json_decref(e->merged);
        free(e);
}

char *cache_path(const struct build_cache *c, const char *key, const char *name)
{
        return name ? xasprintf("%s/%s/%s", c->dir, key, name) : xasprintf("%s/%s", c->dir, key);
}

struct entry *cache_find(const struct build_cache *c, const char *key)
{
        for (size_t i = 0; i < c->count; i++)
                if (streq(c->entries[i]->key, key))
                        return c->entries[i];
        return NULL;
}

struct entry *cache_parent(const struct build_cache *c, const struct entry *e)
{
        return e->parent_key ? cache_find(c, e->parent_key) : NULL;
}

static void add(struct build_cache *c, struct entry *e)
{
        if (c->count == c->cap) {
                c->cap = c->cap ? 2 * c->cap : 16;
                c->entries = xreallocarray(c->entries, c->cap, sizeof(*c->entries));
        }
        c->entries[c->count++] = e;
        c->bytes += e->bytes;
}

static bool stands_on_doomed(const struct build_cache *c, const struct entry *e)
{
        for (size_t i = 0; i < c->count; i++)
                if (c->entries[i]->doomed && streq(c->entries[i]->key, e->parent_key))
                        return true;
        return false;
}

/* The layers on a doomed one are doomed. */
static void doom_children(struct build_cache *c)
{
        bool more = true;

        while (more) {
                more = false;
                for (size_t i = 0; i < c->count; i++)
                        if (!c->entries[i]->doomed && stands_on_doomed(c, c->entries[i]))
                                c->entries[i]->doomed = more = true;
        }
}

static void drop_at(struct build_cache *c, size_t i)
{
        struct entry *e = c->entries[i];
        CLEANUP_FREE char *path = cache_path(c, e->key, NULL);

        c->entries[i] = c->entries[--c->count];
        c->bytes -= e->bytes;
        entry_free(e);
        tree_remove(path, NULL);
}

void cache_drop_one(struct build_cache *c, struct entry *e)
{
        for (size_t i = 0; i < c->count; i++)
                if (c->entries[i] == e) {
                        drop_at(c, i);
                        return;
                }
}

/* Takes a layer and all that stands on it out of the index and off the disk. */
static void drop(struct build_cache *c, struct entry *e)
{
        e->doomed = true;
        doom_children(c);
        for (size_t i = 0; i < c->count;)
                if (c->entries[i]->doomed)
                        drop_at(c, i); /* another one is at i now */
                else
                        i++;
}

static bool has_child(const struct build_cache *c, const struct entry *e)
{
        for (size_t i = 0; i < c->count; i++)
                if (streq(c->entries[i]->parent_key, e->key))
                        return true;
        return false;
}

static bool fits(const struct build_cache *c, unsigned layers, uint64_t bytes)
{
        return c->count + layers <= c->max_layers && c->bytes + bytes <= c->max_bytes;
}

static struct entry *oldest_leaf(const struct build_cache *c)
{
        struct entry *oldest = NULL;

        for (size_t i = 0; i < c->count; i++) {
                struct entry *e = c->entries[i];

                if (!e->pins && !e->busy && !has_child(c, e) && (!oldest || e->used_ns < oldest->used_ns))
                        oldest = e;
        }
        return oldest;
}

/* Evicts leaves until `layers` more layers of `bytes` more bytes fit; false when that is not enough. */
static bool make_room(struct build_cache *c, unsigned layers, uint64_t bytes)
{
        while (!fits(c, layers, bytes)) {
                struct entry *oldest = oldest_leaf(c);

                if (!oldest)
                        return false;
                drop(c, oldest);
        }
        return true;
}

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
        e->disk_sha256 = xstrdup_or_null(r->disk_sha256);
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
        const struct entry *parent;

        if (!e->parent_key)
                return false;
        parent = cache_find(c, e->parent_key);
        return !parent || !streq(parent->instance, e->parent_instance);
}

static void drop_orphans(struct build_cache *c)
{
        for (size_t i = 0; i < c->count;)
                if (orphan(c, c->entries[i])) {
                        drop(c, c->entries[i]);
                        i = 0;
                } else {
                        i++;
                }
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
                        add(c, e);
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
        make_room(c, 0, 0);
        *ret = c;
        return 0;
}

void build_cache_close(struct build_cache *c)
{
        if (!c)
                return;
        for (size_t i = 0; i < c->count; i++)
                entry_free(c->entries[i]);
        free(c->entries);
        free(c->dir);
        pthread_mutex_destroy(&c->lock);
        free(c);
}

static void touch(struct build_cache *c, struct entry *e, int64_t now)
{
        CLEANUP_FREE char *path = cache_path(c, e->key, "context.json");

        e->used_ns = now;
        /* Only the order of eviction after a restart depends on it. */
        (void)utimensat(AT_FDCWD, path, NULL, 0);
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

static bool is_verified(const struct entry *e, const char *path)
{
        struct stat st;

        return e->verified && stat(path, &st) == 0 && st.st_size == e->verified_size && st.st_mtim.tv_sec == e->verified_mtime.tv_sec &&
               st.st_mtim.tv_nsec == e->verified_mtime.tv_nsec;
}

static struct entry *deepest(const struct build_cache *c, const char *const *keys, size_t count, size_t *ret_depth)
{
        for (size_t i = count; i-- > 0;) {
                struct entry *e = cache_find(c, keys[i]);

                if (e) {
                        *ret_depth = i;
                        return e;
                }
        }
        return NULL;
}

static void unpin(struct build_cache *c, const struct build_layer *l)
{
        struct entry *e = l->kept ? cache_find(c, l->key) : NULL;

        if (e && streq(e->instance, l->instance) && e->pins)
                e->pins--;
}

/* Gives a hit's layers back. */
static void put_back(struct build_cache *c, struct build_cache_hit *h)
{
        for (size_t i = 0; i < h->layer_count; i++) {
                unpin(c, &h->layers[i]);
                if (h->layers[i].disk)
                        unlink(h->layers[i].disk);
                build_layer_free(&h->layers[i]);
        }
        free(h->layers);
        h->layers = NULL;
        h->layer_count = 0;
}

/* Of `e` and what it stands on. */
static size_t chain_length(const struct build_cache *c, const struct entry *e)
{
        size_t n = 0;

        for (; e; e = cache_parent(c, e))
                n++;
        return n;
}

/* Links the disk and pins; *ret_damaged is set when the file has gone. */
static int hold(struct build_cache *c, struct entry *e, const char *link_prefix, struct build_layer *l, size_t number, bool *ret_damaged,
                struct error *err)
{
        if (e->disk) {
                CLEANUP_FREE char *from = cache_path(c, e->key, e->disk);

                l->disk = xasprintf("%s-%zu%s", link_prefix, number, strrchr(e->disk, '.'));
                if (link(from, l->disk) < 0) {
                        int r = errno;

                        *ret_damaged = r == ENOENT && !path_exists(from);
                        if (!*ret_damaged)
                                error_errno(err, r, "link %s to %s", from, l->disk);
                        free(l->disk);
                        l->disk = NULL;
                        return -r;
                }
                l->unchecked = is_verified(e, l->disk) ? NULL : xstrdup(e->disk_sha256);
        }
        strcpy(l->key, e->key);
        strcpy(l->instance, e->instance);
        l->kept = true;
        e->pins++;
        return 0;
}

static bool read_layer(const struct build_cache *c, const struct entry *e, struct build_layer *l)
{
        CLEANUP_FREE char *dir = cache_path(c, e->key, NULL);
        struct layer_record r = {};

        if (layer_record_read(dir, &r, NULL) < 0)
                return false;
        l->context = r.context;
        r.context = (struct build_context){};
        l->image_env = STEAL(r.image_env);
        l->init = STEAL(r.init);
        layer_record_free(&r);
        return true;
}

static void drop_damaged(struct build_cache *c, struct entry *e, struct build_cache_hit *h)
{
        put_back(c, h);
        drop(c, e);
        h->damaged++;
}

/* Under the lock: the chain that ends in `top`. 1: held; 0: damage was found, try again. */
static int hold_chain(struct build_cache *c, struct entry *top, const char *link_prefix, struct build_cache_hit *h, struct error *err)
{
        size_t n = chain_length(c, top);
        int64_t now = clock_realtime_ns();
        struct entry *e = top;

        h->layers = xcalloc(n, sizeof(*h->layers));
        h->layer_count = n;
        if (!read_layer(c, top, &h->layers[n - 1])) {
                drop_damaged(c, top, h);
                return 0;
        }
        for (size_t i = n; e && i-- > 0; e = cache_parent(c, e)) {
                bool damaged = false;
                int r = hold(c, e, link_prefix, &h->layers[i], i, &damaged, err);

                if (damaged) {
                        drop_damaged(c, e, h);
                        return 0;
                }
                if (r < 0) {
                        put_back(c, h);
                        return r;
                }
                touch(c, e, now);
        }
        return 1;
}

/* What the comparison of a held disk says about the layer; it may be another one by now. */
static void judge(struct build_cache *c, struct build_cache_hit *h, const struct build_layer *l, bool whole)
{
        struct entry *e = cache_find(c, l->key);

        if (e && (!streq(e->instance, l->instance) || !streq(e->disk_sha256, l->unchecked)))
                e = NULL;
        if (whole && e)
                cache_verified(e, l->disk);
        else if (!whole && e)
                drop(c, e);
        if (!whole) {
                put_back(c, h);
                h->damaged++;
        }
}

/* Without the lock. 1: whole; 0: damaged and dropped; negative: it could not be read. */
static int check_one(struct build_cache *c, struct build_cache_hit *h, const struct build_layer *l, struct error *err)
{
        char digest[DIGEST_HEX_LEN + 1];
        bool whole;
        int r;

        if (!l->unchecked || !l->disk)
                return 1;
        r = cache_digest(l->disk, digest, err);
        if (r < 0)
                return r;
        whole = streq(digest, l->unchecked);
        pthread_mutex_lock(&c->lock);
        judge(c, h, l, whole);
        pthread_mutex_unlock(&c->lock);
        return whole;
}

static int check_chain(struct build_cache *c, struct build_cache_hit *h, struct error *err)
{
        int r = 1;

        for (size_t i = 0; r > 0 && i < h->layer_count; i++)
                r = check_one(c, h, &h->layers[i], err);
        if (r < 0) {
                pthread_mutex_lock(&c->lock);
                put_back(c, h);
                pthread_mutex_unlock(&c->lock);
        }
        return r;
}

int build_cache_get(struct build_cache *c, const char *const *keys, size_t count, const char *link_prefix,
                    struct build_cache_hit *ret, struct error *err)
{
        struct build_cache_hit h = {};
        int r;

        do { /* ends: each further round has fewer layers to find */
                struct entry *e;

                pthread_mutex_lock(&c->lock);
                e = deepest(c, keys, count, &h.depth);
                r = e ? hold_chain(c, e, link_prefix, &h, err) : 1;
                pthread_mutex_unlock(&c->lock);
                if (r > 0 && e)
                        r = check_chain(c, &h, err);
        } while (r == 0);
        if (r < 0)
                return r;
        *ret = h;
        return 0;
}

/* The disk's part of a new layer's directory, with its digest. */
static int prepare_disk(const struct build_layer *l, const char *dir, struct entry *e, struct error *err)
{
        char digest[DIGEST_HEX_LEN + 1];
        CLEANUP_FREE char *to = NULL;
        int r;

        e->disk = xstrdup(str_ends(l->disk, ".qcow2") ? "layer.qcow2" : "layer.img");
        to = path_join(dir, e->disk);
        if (link(l->disk, to) < 0)
                return error_errno(err, errno, "link %s to %s", l->disk, to);
        r = file_fsync(to, err);
        if (r >= 0)
                r = cache_digest(to, digest, err);
        if (r < 0)
                return r;
        e->disk_sha256 = xstrdup(digest);
        cache_verified(e, to);
        return 0;
}

static int write_record(const char *dir, const struct build_layer *l, const struct entry *e, struct error *err)
{
        struct layer_record r = {
                .parent_key = e->parent_key, .parent_instance = e->parent_instance, .disk = e->disk, .disk_sha256 = e->disk_sha256,
                .context = l->context, .image_env = l->image_env, .init = l->init,
        };

        strcpy(r.instance, l->instance);
        return layer_record_write(dir, &r, err);
}

/* Everything that may take long, beside the cache and without its lock: the layer's directory under a name that the
 * next start removes. */
static int prepare(const struct build_cache *c, const struct build_layer *l, struct entry *e, char **ret_dir,
                   struct error *err)
{
        CLEANUP_FREE char *dir = xasprintf("%s/%s.%s.tmp", c->dir, l->key, l->instance);
        int r = dir_make(dir, 0755, err);

        if (r < 0)
                return r;
        if (l->disk)
                r = prepare_disk(l, dir, e, err);
        if (r >= 0)
                r = write_record(dir, l, e, err);
        e->bytes = tree_allocated_bytes(dir);
        *ret_dir = STEAL(dir);
        return r;
}

static bool has_merged(const struct entry *e, const char *key)
{
        json_t *one;
        size_t i;

        json_array_foreach(e->merged, i, one)
                if (streq(json_string_value(one), key))
                        return true;
        return false;
}

/* What a forced build must not find again: the layer of this key, also inside another, and what stands on it. */
static void drop_all_of(struct build_cache *c, const char *key)
{
        for (size_t i = 0; i < c->count;) {
                struct entry *e = c->entries[i];

                if (streq(e->key, key) || has_merged(e, key)) {
                        drop(c, e);
                        i = 0;
                } else {
                        i++;
                }
        }
}

static bool parent_is_there(const struct build_cache *c, const struct build_layer *parent)
{
        struct entry *p = parent ? cache_find(c, parent->key) : NULL;

        return !parent || (parent->kept && p && streq(p->instance, parent->instance));
}

/* Under the lock, which merges release meanwhile: may it be added now? Makes the room. */
static bool admit(struct build_cache *c, const struct entry *e, const struct build_layer *parent, bool replace)
{
        if (replace)
                drop_all_of(c, e->key);
        for (;;) {
                if (!parent_is_there(c, parent))
                        return false; /* nobody could use it */
                if (cache_find(c, e->key))
                        return false; /* another build was faster */
                if (e->bytes > c->max_bytes || c->max_layers == 0)
                        return false;
                if (make_room(c, 1, e->bytes))
                        return true;
                /* Merging frees a layer's place, but bytes only where both wrote the same blocks: not worth the keys it costs. */
                if (c->bytes + e->bytes > c->max_bytes || !cache_merge_one(c))
                        return false;
        }
}

static int publish(struct build_cache *c, struct build_layer *layer, struct entry *e, const char *dir, struct error *err)
{
        CLEANUP_FREE char *to = cache_path(c, layer->key, NULL);
        int64_t now = clock_realtime_ns();
        int r = file_publish(dir, to, err);

        if (r < 0)
                return r;
        e->pins = 1;
        add(c, e);
        layer->kept = true;
        for (; e; e = cache_parent(c, e))
                e->used_ns = now;
        return 0;
}

int build_cache_put(struct build_cache *c, struct build_layer *layer, const struct build_layer *parent,
                    const char *parent_instance, bool replace, struct error *err)
{
        struct entry *e = xcalloc(1, sizeof(*e));
        CLEANUP_FREE char *dir = NULL;
        int r;

        layer->kept = false;
        random_id(layer->instance, BUILD_INSTANCE_LEN);
        strcpy(e->key, layer->key);
        strcpy(e->instance, layer->instance);
        e->parent_key = parent ? xstrdup(parent->key) : NULL;
        e->parent_instance = xstrdup_or_null(parent ? parent->instance : parent_instance);
        r = prepare(c, layer, e, &dir, err);
        pthread_mutex_lock(&c->lock);
        if (r >= 0 && admit(c, e, parent, replace))
                r = publish(c, layer, e, dir, err);
        pthread_mutex_unlock(&c->lock);
        if (!layer->kept) {
                entry_free(e);
                if (dir)
                        tree_remove(dir, NULL);
        }
        return r;
}

void build_cache_release(struct build_cache *c, const struct build_layer *l)
{
        pthread_mutex_lock(&c->lock);
        unpin(c, l);
        pthread_mutex_unlock(&c->lock);
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
