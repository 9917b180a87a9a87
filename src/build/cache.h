/* The step cache of this node: cache/steps/<key>/ holds one layer, its disk delta (layer.img for a base, layer.qcow2
 * for a step, none where a step changed no disk) and context.json.
 *
 * A qcow2 delta is valid only over exactly the blocks it was written on, so every layer has a random identity and
 * names its parent's; a layer whose parent was rebuilt is stale and goes. A build that uses layers holds hard links of
 * their files in its own scratch directory: eviction and replacement can never pull a disk from under a VM.
 *
 * At most `max_layers` layers and `max_bytes` allocated bytes; what is evicted is always a leaf of the tree that no
 * build has in use, the least recently used first. Using a layer uses its ancestors too, so they are never older.
 * All calls are thread-safe.
 */
#pragma once

#include <stdint.h>

#include "build/build.h"
#include "build/key.h"

#define BUILD_INSTANCE_LEN 24

struct build_layer {
        char key[BUILD_KEY_LEN + 1];
        char instance[BUILD_INSTANCE_LEN + 1]; /* this very layer's identity */
        char *disk;      /* the build's own link of the disk delta, or NULL: the disk is the parent's */
        struct build_context context;
        json_t *image_env;
        char *init;      /* what boots the file system: "/sbin/init" or "agent" */
        bool kept;       /* it is in the cache and pinned by this build */
};
void build_layer_free(struct build_layer *l);

struct build_cache;
/* Opens `dir` (made when missing), removing what is half-written, stale or over the limits. */
int build_cache_open(const char *dir, unsigned max_layers, uint64_t max_bytes, struct build_cache **ret,
                     struct error *err);
void build_cache_close(struct build_cache *c);

/* 1: `ret` is the layer of `key` on top of the layer `parent_instance` (the parent build's ID for the first layer of a
 * build from a template, NULL for a base), its disk linked as `<link_prefix>.img|.qcow2`, pinned until
 * build_cache_release(). 0: not there. Negative: the link could not be made. */
int build_cache_get(struct build_cache *c, const char *key, const char *parent_instance, const char *link_prefix,
                    struct build_layer *ret, struct error *err);

/* Adds a layer on top of `parent` (NULL for a base or the first layer of a build from a template, whose
 * `parent_instance` is then NULL or the parent build's ID). `replace`: an existing layer of this key goes, with all
 * that stands on it (force); otherwise it stays and the new one is not kept. layer->kept tells; a layer that is larger
 * than the budget or has no room beside layers in use is not kept, which is no error. */
int build_cache_put(struct build_cache *c, struct build_layer *layer, const struct build_layer *parent,
                    const char *parent_instance, bool replace, struct error *err);

/* Ends this build's use of a kept layer. */
void build_cache_release(struct build_cache *c, const struct build_layer *l);

/* For tests and metrics. */
unsigned build_cache_count(struct build_cache *c);
uint64_t build_cache_bytes(struct build_cache *c);
