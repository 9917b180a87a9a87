/* The blob cache cache/oci/blobs/sha256/<hex>: blobs are there whole and verified, or not at all. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* Creates the directories of the cache. */
int blob_cache_prepare(const char *cache_dir, struct error *err);

/* Where a blob is or will be; where its download collects. The caller frees. `digest` is valid. */
char *blob_path(const char *cache_dir, const char *digest);
char *blob_partial_path(const char *cache_dir, const char *digest);

/* Is the blob there, with this size? One of another size is damaged and is removed. */
bool blob_present(const char *cache_dir, const char *digest, uint64_t size);

/* Appends a small blob to `ret`, digest checked. -ENOENT when it is missing or damaged (then it is removed). */
int blob_read(const char *cache_dir, const char *digest, size_t limit, struct buf *ret, struct error *err);

/* Checks the digest of `data` and publishes it. */
int blob_store(const char *cache_dir, const char *digest, const void *data, size_t len, struct error *err);

/* Hashes a whole blob file: 0 intact, -EBADMSG damaged (the file is removed), -ENOENT missing. */
int blob_verify(const char *cache_dir, const char *digest, struct error *err);
