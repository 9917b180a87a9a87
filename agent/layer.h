/* Applies the layers of an image to a root file system (template-api 10.3, known-failures D5). Pure of the
 * guest: it works on any directory, so that it is tested and fuzzed on the host.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct layer_stats {
        uint64_t entries;
        uint64_t bytes;
};

/* Called about every second from within layer_apply(). */
typedef void (*layer_progress)(const struct layer_stats *sofar, void *data);

/* Applies one layer tar (plain, gzip or zstd) onto the directory `root`. `first` says that nothing but an empty
 * file system lies below, so that markers have nothing to hide. Counts are added to `stats`. The error names
 * the entry. What was applied before a failure stays. */
int layer_apply(const char *tar, const char *root, bool first, struct layer_stats *stats, layer_progress progress,
                void *data, struct error *err);

/* The same from memory; for tests of hostile bytes. */
int layer_apply_memory(const void *tar, size_t len, const char *root, bool first, struct layer_stats *stats,
                       struct error *err);
