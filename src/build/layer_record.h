/* What stands beside the disk of a cached layer, in context.json: the context it hands on, its place in the tree of layers, and
 * the digests by which damage is noticed.
 *
 * {"layer":{…},"sha256":"…"}: the digest is that of the compact text of "layer", so that a flipped bit in the environment of
 * a step cannot become the environment of the next.
 */
#pragma once

#include <jansson.h>

#include "build/build.h"
#include "build/key.h"

#define BUILD_INSTANCE_LEN 24

struct layer_record {
        char instance[BUILD_INSTANCE_LEN + 1];
        char *parent_key, *parent_instance; /* or NULL (cache.h) */
        char *disk;                         /* file name beside the record, or NULL */
        char *disk_digest;                  /* digest.h; NULL without a disk */
        json_t *merged;                     /* array of keys: evicted layers whose blocks are in this disk; or NULL for none */
        struct build_context context;
        json_t *image_env;                  /* object */
        char *init;
};

void layer_record_free(struct layer_record *r);

/* Reads <dir>/context.json; negative when it is missing, damaged or of another format. `disk` is a plain
 * file name. The caller frees `ret`. */
int layer_record_read(const char *dir, struct layer_record *ret, struct error *err);

/* Replaces <dir>/context.json durably. */
int layer_record_write(const char *dir, const struct layer_record *r, struct error *err);
