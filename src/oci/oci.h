/* Own client of the OCI distribution API: resolve, download into the blob cache, decompress.
 * Product page "Pull", template-api 10.3, 12. Blocking; called on build workers; libcurl inside.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* [registry/]repository[:tag][@digest]; docker.io and library/ are filled in as Docker does. */
struct oci_reference {
        char *registry;   /* "docker.io", "127.0.0.1:5000" */
        char *repository; /* "library/debian" */
        char *tag;        /* "latest" by default; NULL when only a digest was given */
        char *digest;     /* "sha256:…" or NULL */
};
/* Error text: "invalid image reference '<ref>': …" (template-api 10.3). */
int oci_reference_parse(const char *s, struct oci_reference *ret, struct error *err);
void oci_reference_free(struct oci_reference *r);

enum oci_auth_kind { OCI_AUTH_NONE = 0, OCI_AUTH_BASIC, OCI_AUTH_AWS, OCI_AUTH_GCP };
/* fromImageRegistry (template-api 5.2). Held in memory only; wiped by oci_auth_free(). */
struct oci_auth {
        enum oci_auth_kind kind;
        char *username, *password;                 /* BASIC */
        char *aws_key_id, *aws_secret, *aws_region;
        char *gcp_json;
};
/* From the JSON of the request; ERROR_INVALID names the missing key or unknown type. */
int oci_auth_parse(const json_t *j, struct oci_auth *ret, struct error *err);
void oci_auth_free(struct oci_auth *a);

struct oci_options {
        const char *cache_dir;            /* …/cache/oci */
        const char *const *insecure;      /* registries spoken to in plain http, "host[:port]"; NULL-terminated */
        const char *mirror;               /* --registry-mirror URL or NULL */
        unsigned stall_seconds;           /* a connection silent for so long is given up; 0: 30 s */
        const char *ecr_endpoint;         /* AWS ECR's API instead of the region's own, or NULL */
};

struct oci_layer {
        char *digest;     /* of the blob */
        char *diff_id;    /* sha256 of the uncompressed tar */
        char *media_type;
        uint64_t size;    /* compressed */
};
struct oci_image {
        char *reference;       /* as given */
        char *digest;          /* of the platform manifest: what the base cache key covers */
        char *architecture;    /* OCI name: amd64, arm64 */
        char **env;            /* config.Env, NULL-terminated "K=V"; entries without "=", empty key or value dropped */
        struct oci_layer *layers;
        size_t layer_count;
        uint64_t total_size;   /* compressed bytes of all layers */
};
void oci_image_free(struct oci_image *i);

struct oci_progress {
        /* A line for the build log; level 0 debug, 1 info, 2 warn. */
        void (*log)(void *data, int level, const char *message);
        /* Polled often; true ends the call with ERROR_CANCELLED. */
        bool (*cancelled)(void *data);
        void *data;
};

/* Resolves a reference to the manifest for linux/<arch> ("x86_64" or "aarch64" machine name): HEAD for tags,
 * manifests cached by digest, index and single manifest, Docker and OCI types, config fetched and verified.
 * Error texts of template-api 10.3 plus the registry's own message. */
int oci_resolve(const struct oci_options *o, const char *reference, const char *machine, const struct oci_auth *auth,
                const struct oci_progress *progress, struct oci_image *ret, struct error *err);
/* Downloads the layers that the cache lacks, digests verified, blobs visible only when complete. */
int oci_fetch(const struct oci_options *o, const struct oci_image *image, const struct oci_auth *auth,
              const struct oci_progress *progress, struct error *err);
/* Decompresses layer `index` into the new file `path` (plain tar) and verifies its diff_id. The type is taken
 * from the magic, checked against the media type. `limit` bounds the uncompressed bytes; ret_size may be NULL. */
int oci_extract(const struct oci_options *o, const struct oci_image *image, size_t index, const char *path,
                uint64_t limit, uint64_t *ret_size, const struct oci_progress *progress, struct error *err);

/* Keeps the cache below `budget` bytes: first what belongs to no image goes, then the least recently resolved images with the blobs that
 * no other image names. Nothing goes that was used within `safe_seconds`, the longest that a build needs its layers after resolving them,
 * nor an image that was imported by hand. With `dry_run` nothing is removed. `found` is called for each with the reason (static text). */
int oci_cache_trim(const char *cache_dir, uint64_t budget, int64_t safe_seconds, bool dry_run,
                   void (*found)(void *data, const char *what, const char *reason, uint64_t bytes), void *data, struct error *err);
