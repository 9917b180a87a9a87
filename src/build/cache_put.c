/* Adding a layer: its directory is made beside the cache, without the lock; then room is made for it and it is renamed into place. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "build/cache_internal.h"
#include "vm/digest.h"

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
        e->disk_digest = xstrdup(digest);
        cache_verified(e, to);
        return 0;
}

static int write_record(const char *dir, const struct build_layer *l, const struct entry *e, struct error *err)
{
        struct layer_record r = {
                .parent_key = e->parent_key, .parent_instance = e->parent_instance, .disk = e->disk, .disk_digest = e->disk_digest,
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
        struct entry *e = c->first;

        while (e)
                if (streq(e->key, key) || has_merged(e, key)) {
                        cache_drop(c, e);
                        e = c->first;
                } else {
                        e = e->next;
                }
}

static bool parent_is_there(const struct build_cache *c, const struct build_layer *parent)
{
        return !parent || (parent->kept && cache_same(c, parent->key, parent->instance));
}

/* Under the lock, which evictions release meanwhile: may it be added now? Makes the room. */
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
                if (cache_fits(c, 1, e->bytes))
                        return true;
                if (!cache_evict_one(c, c->bytes + e->bytes > c->max_bytes))
                        return false;
        }
}

static int publish(struct build_cache *c, struct build_layer *layer, struct entry *e, const char *dir, struct error *err)
{
        CLEANUP_FREE char *to = cache_path(c, layer->key, NULL);
        int r = file_publish(dir, to, err);

        if (r < 0)
                return r;
        e->pins = 1;
        cache_add(c, e);
        layer->kept = true;
        cache_use(c, e);
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
                cache_entry_free(e);
                if (dir)
                        tree_remove(dir, NULL);
        }
        return r;
}
