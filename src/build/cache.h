/* The step cache of this node: cache/steps/<key>/ holds one layer, its disk delta (layer.img for a base, layer.qcow2
 * for a step, none where a step changed no disk) and context.json.
 *
 * A qcow2 delta is valid only over exactly the blocks it was written on, so every layer has a random identity and
 * names its parent's; a layer whose parent was rebuilt is stale and goes. A build that uses layers holds hard links of
 * their files in its own scratch directory: eviction and replacement can never pull a disk from under a VM.
 *
 * At most `max_layers` layers and `max_bytes` allocated bytes; the least recently used one goes first, and none that a build in
 * progress stands on. A layer with one child goes by merging its blocks into the child's (disk.h), which then stands on the layer
 * below: its key is a miss from then on, the child is found as before by who asks for its key. cache_evict.c has the rule.
 *
 * A damaged layer (its disk's or its record's digest is wrong, a file is missing) is dropped with all that stands on it. Disks
 * are read whole before their first use by this process, later when their size or mtime has changed.
 * All calls are thread-safe; reading and merging disks happens outside the lock.
 */
#pragma once

#include <stdint.h>

#include "build/build.h"
#include "build/key.h"
#include "build/layer_record.h"

struct build_layer {
        char key[BUILD_KEY_LEN + 1];
        char instance[BUILD_INSTANCE_LEN + 1]; /* this very layer's identity */
        char *disk;      /* the build's own link of the disk delta, or NULL: the disk is the parent's */
        struct build_context context;
        json_t *image_env;
        char *init;      /* what boots the file system: "/sbin/init" or "agent" */
        bool kept;       /* it is in the cache and pinned by this build */
        char *unchecked; /* the cache's own, inside build_cache_get(): the digest that the disk must have */
};
void build_layer_free(struct build_layer *l);

struct build_cache;
/* Opens `dir` (made when missing), removing what is half-written, stale or over the limits. */
int build_cache_open(const char *dir, unsigned max_layers, uint64_t max_bytes, struct build_cache **ret,
                     struct error *err);
void build_cache_close(struct build_cache *c);

struct build_cache_hit {
        size_t depth;    /* index of the deepest key found; nothing was found when there are no layers */
        struct build_layer *layers; /* what it stands on and itself, bottom first; only the last one's context is set */
        size_t layer_count;
        unsigned damaged; /* layers that were dropped on the way because of damage */
};
/* The layers are released and freed by the caller, one by one, before or after this. */
void build_cache_hit_free(struct build_cache_hit *h);

/* The deepest layer of a chain of `count` keys (bottom first) that is there and whole, whether or not those between are. The
 * disks are linked as `<link_prefix>-<number>.img|.qcow2`, the layers pinned until build_cache_release(). A miss is no
 * error: `ret` then has no layers. Negative: a link could not be made or a disk not be read. */
int build_cache_get(struct build_cache *c, const char *const *keys, size_t count, const char *link_prefix,
                    struct build_cache_hit *ret, struct error *err);

/* Adds a layer on top of `parent` (NULL for a base or the first layer of a build from a template, whose
 * `parent_instance` is then NULL or the parent build's ID). `replace`: an existing layer of this key goes, with all
 * that stands on it or has it merged in (force); otherwise it stays and the new one is not kept. layer->kept tells; a layer that is larger
 * than the budget or has no room beside layers in use is not kept, which is no error. */
int build_cache_put(struct build_cache *c, struct build_layer *layer, const struct build_layer *parent,
                    const char *parent_instance, bool replace, struct error *err);

/* Ends this build's use of a kept layer. */
void build_cache_release(struct build_cache *c, const struct build_layer *l);

/* For tests and metrics. */
unsigned build_cache_count(struct build_cache *c);
uint64_t build_cache_bytes(struct build_cache *c);
