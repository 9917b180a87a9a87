/* Disk images: empty ext4, qcow2 overlays, flattening. Uses mke2fs and qemu-img. */
#pragma once

#include <stdint.h>

#include "base/error.h"

/* A new sparse raw file of `size_mib` with an empty ext4: 4 KiB blocks, one inode per 4 KiB, 256 MiB reserved for
 * root, fixed feature list that e2fsck 1.45 and 1.47 accept (design 2, template-api 10.3). */
int disk_create_ext4(const char *path, uint64_t size_mib, struct error *err);

/* A new empty qcow2 of `size` virtual bytes without a backing reference inside (the chain is given on QEMU's
 * command line). Cheap: a pre-made header is copied where possible. */
int disk_overlay_create(const char *path, uint64_t size, struct error *err);

/* The virtual size of a raw or qcow2 image in bytes. */
int disk_size(const char *path, uint64_t *ret, struct error *err);

/* Makes of two neighbours of a chain one image that may stand for both: `to` (new, fsynced, of `lower`'s format and with its
 * extension) holds what `upper` says over what `lower` says and leaves to the images below what both leave. `below` is what
 * stands under `lower`, bottom first, NULL-terminated, possibly empty; a bottom that is not listed must not matter, which
 * holds because only whole clusters are written. The three are only read. Needs room for a copy of both. */
int disk_merge(const char *const *below, const char *lower, const char *upper, const char *to, struct error *err);

/* How many bytes of data in `lower` are hidden by what `upper`, its neighbour above, says: what disk_merge() would save. */
int disk_overlap(const char *lower, const char *upper, uint64_t *ret, struct error *err);

/* Flattens a chain (bottom first, NULL-terminated) into a new sparse raw file; zero runs become holes; fsynced. */
int disk_flatten(const char *const *chain, const char *to, struct error *err);
