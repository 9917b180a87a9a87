/* Image indexes, manifests and configs, OCI 1.0/1.1 and Docker schema 2. Pure: bytes in, values out. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Limits on documents from a registry. The distribution spec asks clients to take manifests of 4 MiB. */
#define MANIFEST_MAX (4U << 20)
#define CONFIG_MAX (8U << 20)
#define INDEX_ENTRIES_MAX 1024
#define LAYERS_MAX 512
#define LAYER_SIZE_MAX (1ULL << 42)

struct descriptor {
        char *media_type;
        char *digest;
        uint64_t size;
        char *data;      /* embedded content, exactly `size` bytes, or NULL */
        char *os, *architecture, *variant; /* of an index entry; NULL when it states no platform */
};

enum manifest_kind { MANIFEST_IMAGE, MANIFEST_INDEX };

struct manifest {
        enum manifest_kind kind;
        struct descriptor config;  /* of an image */
        struct descriptor *items;  /* layers of an image, manifests of an index */
        size_t count;
};

struct image_config {
        char *os, *architecture; /* as the config has them, "" when absent */
        char **env;              /* as in struct oci_image */
        char **diff_ids;
        size_t diff_id_count;
};

/* Parses an index or an image manifest. `media_type` is what its Content-Type or descriptor said, or NULL. A document
 * that could be read as both kinds, or is another than what was announced, is refused (CVE-2021-41190); so is Docker
 * schema 1. All failures are ERROR_INVALID or ERROR_LIMIT. The caller frees. */
int manifest_parse(const char *data, size_t len, const char *media_type, struct manifest *ret, struct error *err);
void manifest_free(struct manifest *m);

/* The entry of an index for linux/<architecture> (OCI name): the plain variant before others, entries without a
 * platform last. ERROR_NOT_FOUND lists what the index offers. */
int index_choose(const struct manifest *index, const char *architecture, size_t *ret, struct error *err);

/* Parses an image config. The caller frees. */
int image_config_parse(const char *data, size_t len, struct image_config *ret, struct error *err);
void image_config_free(struct image_config *c);

/* "amd64" for "x86_64", "arm64" for "aarch64"; other names stay. Points to a constant or to `machine`. */
const char *oci_architecture(const char *machine);

/* Is this the media type of a layer that oci_extract() can apply? */
bool layer_type_known(const char *media_type);
