/* What cache.c and cache_merge.c share. Everything here is called with the lock held unless it says otherwise. */
#pragma once

#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#include "build/cache.h"

struct entry {
        char key[BUILD_KEY_LEN + 1];
        char instance[BUILD_INSTANCE_LEN + 1];
        char *parent_key, *parent_instance; /* or NULL */
        char *disk;                         /* file name inside the directory, or NULL */
        char *disk_sha256;
        json_t *merged;                     /* as in the record */
        int64_t used_ns;
        uint64_t bytes;
        unsigned pins;
        bool doomed; /* inside drop() */
        bool busy;   /* being merged */
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
        struct entry **entries;
        size_t count, cap;
        uint64_t bytes;
};

/* <dir>/<key>[/<name>]; the caller frees. */
char *cache_path(const struct build_cache *c, const char *key, const char *name);
struct entry *cache_find(const struct build_cache *c, const char *key);
/* The parent of an entry, or NULL; always there in the index. */
struct entry *cache_parent(const struct build_cache *c, const struct entry *e);
/* Takes this layer alone out of the index and off the disk. */
void cache_drop_one(struct build_cache *c, struct entry *e);
/* Remembers that the disk, as it is at `path`, has the right digest. */
void cache_verified(struct entry *e, const char *path);
/* Without the lock: the digest of an image as `ret_hex` (DIGEST_HEX_LEN + 1 bytes). */
int cache_digest(const char *path, char *ret_hex, struct error *err);

/* cache_merge.c: evicts one layer by merging it into its only child. Releases and takes the lock again meanwhile, so what the
 * caller knows of the index is void afterwards. False when no layer can go that way. */
bool cache_merge_one(struct build_cache *c);
