/* Reads the JSON documents that describe an image. What a document is, is decided by its shape, and every statement
 * about it (Content-Type, descriptor, its own mediaType) must agree: a document that passes as index here and as image
 * there is how an attacker shows two contents under one digest (CVE-2021-41190).
 */
#include "oci/manifest.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/digest.h"

#define OCI_TYPE "application/vnd.oci.image."
#define DOCKER_TYPE "application/vnd.docker.distribution.manifest."

enum stated { STATED_NOTHING, STATED_IMAGE, STATED_INDEX, STATED_SCHEMA1, STATED_OTHER };

static bool type_is(const char *s, const char *type)
{
        size_t n = strlen(type);

        return strncasecmp(s, type, n) == 0 && (s[n] == '\0' || s[n] == ';' || s[n] == ' ');
}

/* What a media type, parameters aside, says about the document. Generic types say nothing. */
static enum stated stated_by(const char *type)
{
        if (!type || !*type || type_is(type, "application/json") || type_is(type, "text/plain") ||
            type_is(type, "application/octet-stream"))
                return STATED_NOTHING;
        if (type_is(type, OCI_TYPE "manifest.v1+json") || type_is(type, DOCKER_TYPE "v2+json"))
                return STATED_IMAGE;
        if (type_is(type, OCI_TYPE "index.v1+json") || type_is(type, DOCKER_TYPE "list.v2+json"))
                return STATED_INDEX;
        if (type_is(type, DOCKER_TYPE "v1+json") || type_is(type, DOCKER_TYPE "v1+prettyjws"))
                return STATED_SCHEMA1;
        return STATED_OTHER;
}

static int check_stated(const char *type, enum manifest_kind kind, struct error *err)
{
        switch (stated_by(type)) {
        case STATED_NOTHING:
                return 0;
        case STATED_IMAGE:
        case STATED_INDEX:
                if ((stated_by(type) == STATED_INDEX) == (kind == MANIFEST_INDEX))
                        return 0;
                return error_set(err, ERROR_INVALID, "the manifest is announced as %s but is %s", type,
                                 kind == MANIFEST_INDEX ? "an index" : "an image manifest");
        case STATED_SCHEMA1:
                return error_set(err, ERROR_INVALID, "the image has the obsolete Docker manifest schema 1; "
                                                     "push it again with a current client");
        case STATED_OTHER:
                break;
        }
        return error_set(err, ERROR_INVALID, "unsupported manifest type '%.100s'", type);
}

/* Decodes base64 of exactly `size` bytes; NULL when it is not that. */
static char *decode_data(const char *text, size_t size)
{
        size_t len = strlen(text), padding = 0;
        CLEANUP_FREE char *out = NULL;
        int n;

        if (len != (size + 2) / 3 * 4)
                return NULL;
        while (padding < 2 && padding < len && text[len - 1 - padding] == '=')
                padding++;
        out = xmalloc(len + 1);
        n = EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)text, (int)len);
        if (n < 0 || (size_t)n < padding || (size_t)n - padding != size)
                return NULL;
        return STEAL(out);
}

static void read_platform(const json_t *p, struct descriptor *d)
{
        if (!json_is_object(p))
                return;
        d->os = xstrdup_or_null(json_str(p, "os"));
        d->architecture = xstrdup_or_null(json_str(p, "architecture"));
        d->variant = xstrdup_or_null(json_str(p, "variant"));
}

static int read_descriptor(const json_t *j, struct descriptor *d, struct error *err)
{
        const char *digest = json_str(j, "digest"), *data = json_str(j, "data");
        json_int_t size = json_int(j, "size", -1);

        if (!json_is_object(j) || !digest)
                return error_set(err, ERROR_INVALID, "the manifest has a descriptor without a digest");
        if (!digest_valid(digest))
                return error_set(err, ERROR_INVALID, "unsupported digest '%.100s' in the manifest", digest);
        if (size < 0)
                return error_set(err, ERROR_INVALID, "the manifest states no size for %s", digest);
        d->media_type = xstrdup(json_str(j, "mediaType") ?: "");
        d->digest = xstrdup(digest);
        d->size = (uint64_t)size;
        if (data && d->size <= MANIFEST_MAX)
                d->data = decode_data(data, d->size);
        read_platform(json_object_get(j, "platform"), d);
        return 0;
}

static int read_items(const json_t *array, size_t max, const char *what, struct manifest *m, struct error *err)
{
        size_t n = json_array_size(array);

        if (!json_is_array(array))
                return error_set(err, ERROR_INVALID, "the manifest's %s are no list", what);
        if (n > max)
                return error_set(err, ERROR_LIMIT, "the image has %zu %s, more than the limit of %zu", n, what, max);
        m->items = xcalloc(n + 1, sizeof(*m->items));
        for (size_t i = 0; i < n; i++) {
                int r = read_descriptor(json_array_get(array, i), &m->items[i], err);

                m->count = i + 1;
                if (r < 0)
                        return r;
        }
        return 0;
}

static int check_layers(const struct manifest *m, struct error *err)
{
        for (size_t i = 0; i < m->count; i++) {
                const struct descriptor *d = &m->items[i];

                if (!layer_type_known(d->media_type))
                        return error_set(err, ERROR_INVALID, "layer %zu/%zu has the unsupported type '%.100s'", i + 1,
                                         m->count, d->media_type);
                if (d->size > LAYER_SIZE_MAX)
                        return error_set(err, ERROR_LIMIT, "layer %zu/%zu is larger than %llu bytes", i + 1, m->count,
                                         (unsigned long long)LAYER_SIZE_MAX);
        }
        return 0;
}

static int read_image(const json_t *j, struct manifest *m, struct error *err)
{
        const char *type;
        int r = read_descriptor(json_object_get(j, "config"), &m->config, err);

        if (r < 0)
                return error_wrap(err, r, "config");
        type = m->config.media_type;
        if (*type && !type_is(type, OCI_TYPE "config.v1+json") &&
            !type_is(type, "application/vnd.docker.container.image.v1+json") && !type_is(type, "application/json") &&
            !type_is(type, "application/octet-stream"))
                return error_set(err, ERROR_INVALID, "this is no container image but an artifact of type '%.100s'", type);
        if (m->config.size > CONFIG_MAX)
                return error_set(err, ERROR_LIMIT, "the image config is larger than %u bytes", CONFIG_MAX);
        r = read_items(json_object_get(j, "layers"), LAYERS_MAX, "layers", m, err);
        return r < 0 ? r : check_layers(m, err);
}

static int read_document(const json_t *j, const char *media_type, struct manifest *m, struct error *err)
{
        bool index = json_object_get(j, "manifests"), image = json_object_get(j, "layers") || json_object_get(j, "config");
        int r;

        if (!json_is_object(j))
                return error_set(err, ERROR_INVALID, "the manifest is no JSON object");
        if (json_int(j, "schemaVersion", 0) == 1 || json_object_get(j, "fsLayers") ||
            stated_by(media_type) == STATED_SCHEMA1)
                return check_stated(DOCKER_TYPE "v1+json", MANIFEST_IMAGE, err);
        if (json_int(j, "schemaVersion", 0) != 2)
                return error_set(err, ERROR_INVALID, "the manifest has no schemaVersion 2");
        if (index == image)
                return error_set(err, ERROR_INVALID, index ? "the manifest is ambiguous: both an index and an image"
                                                           : "the manifest is neither an index nor an image");
        m->kind = index ? MANIFEST_INDEX : MANIFEST_IMAGE;
        r = check_stated(media_type, m->kind, err);
        if (r == 0)
                r = check_stated(json_str(j, "mediaType"), m->kind, err);
        if (r < 0)
                return r;
        return index ? read_items(json_object_get(j, "manifests"), INDEX_ENTRIES_MAX, "index entries", m, err)
                     : read_image(j, m, err);
}

int manifest_parse(const char *data, size_t len, const char *media_type, struct manifest *ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        struct manifest m = {};
        int r;

        if (len > MANIFEST_MAX)
                return error_set(err, ERROR_LIMIT, "the manifest is larger than %u bytes", MANIFEST_MAX);
        if (stated_by(media_type) == STATED_SCHEMA1)
                return check_stated(media_type, MANIFEST_IMAGE, err);
        r = json_parse(data, len, &j, err);
        if (r < 0)
                return error_wrap(err, r, "manifest");
        r = read_document(j, media_type, &m, err);
        if (r < 0) {
                manifest_free(&m);
                return r;
        }
        *ret = m;
        return 0;
}

static void descriptor_free(struct descriptor *d)
{
        free(d->media_type);
        free(d->digest);
        free(d->data);
        free(d->os);
        free(d->architecture);
        free(d->variant);
}

void manifest_free(struct manifest *m)
{
        descriptor_free(&m->config);
        for (size_t i = 0; i < m->count; i++)
                descriptor_free(&m->items[i]);
        free(m->items);
        *m = (struct manifest){};
}
