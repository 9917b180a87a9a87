/* What the files of the cache share. Everything here is called with the lock held unless it says otherwise. */
#pragma once

#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#include "build/cache.h"

struct entry {
        struct entry *next, **at; /* of the list, and what points here */
        char key[BUILD_KEY_LEN + 1];
        char instance[BUILD_INSTANCE_LEN + 1];
        char *parent_key, *parent_instance; /* or NULL */
        char *disk;                         /* file name inside the directory, or NULL */
        char *disk_digest;
        json_t *merged;                     /* as in the record */
        int64_t used_ns; /* never less than that of a layer that stands on it */
        uint64_t bytes;
        unsigned pins;   /* never less than those of the layers that stand on it, together */
        bool busy;       /* being merged */
        /* What merging it into this child would give back, or -1: it failed. */
        char tried_child[BUILD_INSTANCE_LEN + 1];
        int64_t tried_gain;
        /* The disk had the right digest when it had this size and time. */
        bool verified;
        off_t verified_size;
        struct timespec verified_mtime;
};

struct build_cache {
        pthread_mutex_t lock;
        char *dir;
        unsigned max_layers;
        uint64_t max_bytes;
        struct entry *first; /* in no order */
        size_t count;
        uint64_t bytes;
};

/* cache_index.c */

/* <dir>/<key>[/<name>]; the caller frees. */
char *cache_path(const struct build_cache *c, const char *key, const char *name);
struct entry *cache_find(const struct build_cache *c, const char *key);
/* The same, unless another layer has this key by now. */
struct entry *cache_same(const struct build_cache *c, const char *key, const char *instance);
/* The parent of an entry, or NULL; always there in the index. */
struct entry *cache_parent(const struct build_cache *c, const struct entry *e);
/* One of the layers that stand directly on `e`, and the one if there is no other; or NULL. */
struct entry *cache_child(const struct build_cache *c, const struct entry *e);
struct entry *cache_only_child(const struct build_cache *c, const struct entry *e);
/* Of `e` (or NULL) and what it stands on. */
size_t cache_chain_length(const struct build_cache *c, const struct entry *e);
/* `e` then belongs to the index. */
void cache_add(struct build_cache *c, struct entry *e);
/* Takes a layer, alone or with all that stands on it, out of the index and off the disk; `e` is freed. */
void cache_drop_one(struct build_cache *c, struct entry *e);
void cache_drop(struct build_cache *c, struct entry *e);
/* `e` and all that it stands on were used now. */
void cache_use(struct build_cache *c, struct entry *e);
/* The time of the last use, for the next start. */
void cache_set_time(const struct build_cache *c, const struct entry *e);
/* Remembers that the disk, as it is at `path`, has the right digest; and whether that holds for what is there now. */
void cache_verified(struct entry *e, const char *path);
bool cache_is_verified(const struct entry *e, const char *path);
/* Without the lock: the digest of an image as `ret_hex` (DIGEST_HEX_LEN + 1 bytes). */
int cache_digest(const char *path, char *ret_hex, struct error *err);
/* Without the lock. */
void cache_entry_free(struct entry *e);

/* cache_evict.c */

/* Would so many more layers and bytes be within the limits? */
bool cache_fits(const struct build_cache *c, unsigned layers, uint64_t bytes);
/* Evicts leaves until the limits are kept. For the start, when no layer is in use. */
void cache_evict_leaves(struct build_cache *c);
/* Takes one step towards more room: for bytes, or only for another layer. May release and take the lock again meanwhile, so that
 * what the caller knows of the index is void afterwards. False when nothing can go. */
bool cache_evict_one(struct build_cache *c, bool for_bytes);

/* cache_merge.c */

/* Evicts `lower` by merging it into `upper`, its only child, when that gives back at least `min_gain` bytes; what it would give
 * is in lower->tried_* otherwise. Releases and takes the lock again meanwhile. */
void cache_merge(struct build_cache *c, struct entry *lower, struct entry *upper, uint64_t min_gain);
