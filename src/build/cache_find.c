/* Looking layers up: the deepest one of a chain is held (linked and pinned) with what it stands on, under the lock; then, without
 * it, the disks that this process has not read yet are compared with their digests.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
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
        struct entry *e = l->kept ? cache_same(c, l->key, l->instance) : NULL;

        if (e && e->pins)
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
                l->unchecked = cache_is_verified(e, l->disk) ? NULL : xstrdup(e->disk_digest);
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
        cache_drop(c, e);
        h->damaged++;
}

/* Under the lock: the chain that ends in `top`. 1: held; 0: damage was found, try again. */
static int hold_chain(struct build_cache *c, struct entry *top, const char *link_prefix, struct build_cache_hit *h, struct error *err)
{
        size_t n = cache_chain_length(c, top);
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
        }
        cache_use(c, top);
        return 1;
}

/* What the comparison of a held disk says about the layer; it may be another one by now. */
static void judge(struct build_cache *c, struct build_cache_hit *h, const struct build_layer *l, bool whole)
{
        struct entry *e = cache_same(c, l->key, l->instance);

        if (e && !streq(e->disk_digest, l->unchecked))
                e = NULL;
        if (whole && e)
                cache_verified(e, l->disk);
        else if (!whole && e)
                cache_drop(c, e);
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

void build_cache_release(struct build_cache *c, const struct build_layer *l)
{
        pthread_mutex_lock(&c->lock);
        unpin(c, l);
        pthread_mutex_unlock(&c->lock);
}
