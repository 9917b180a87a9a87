/* What the cache holds by name: one small JSON file per reference, cache/oci/images/<sha256 of the reference>. It
 * serves `vmon image ls` and `rm`, and answers for images that were imported by hand.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct image_record {
        char *reference;     /* in full: registry/repository[:tag][@digest] */
        char *digest;        /* of the platform manifest */
        char *architecture;  /* OCI name */
        uint64_t size;       /* compressed bytes of the layers */
        size_t layer_count;
        char *config_digest;
        char **blobs;        /* NULL-terminated: index, manifest, config and layers */
        bool imported;       /* by `vmon image import`: taken instead of asking the registry */
};
void image_record_free(struct image_record *r);

/* The name under which records are kept. The caller frees. */
struct oci_reference;
char *reference_text(const struct oci_reference *r);

/* Publishes; an equal record is only marked as used now. */
int image_record_save(const char *cache_dir, const struct image_record *r, struct error *err);
/* Held while a record is marked as used, and (exclusively) while one is removed by oci_cache_trim(). -1 when there is no cache. */
int image_records_lock(const char *cache_dir, bool exclusive);
/* When the image was last resolved (Unix time); 0 when it is not there. */
int64_t image_record_used(const char *cache_dir, const char *reference);
/* -ENOENT when there is none. */
int image_record_load(const char *cache_dir, const char *reference, struct image_record *ret, struct error *err);
/* All of them, in no order; the caller frees each and the array. */
int image_record_list(const char *cache_dir, struct image_record **ret, size_t *ret_count, struct error *err);
/* Removes a record and those of its blobs that no other record names; *ret_freed counts the bytes. */
int image_record_remove(const char *cache_dir, const char *reference, uint64_t *ret_freed, struct error *err);
