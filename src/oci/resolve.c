/* From a reference to an image: which manifest the name stands for now (HEAD, which Docker Hub does not count), what the
 * index offers for our platform, and the config. Manifests and configs are blobs of the cache, read back verified, so
 * that a second resolve costs the one HEAD. That HEAD is sent for digests as well: it is what shows that the caller may
 * see an image which somebody else's pull has left in the cache.
 */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/manifest.h"
#include "oci/oci.h"
#include "oci/progress.h"
#include "oci/record.h"
#include "oci/session.h"

#define ACCEPT                                              \
        "application/vnd.oci.image.index.v1+json, "         \
        "application/vnd.oci.image.manifest.v1+json, "      \
        "application/vnd.docker.distribution.manifest.list.v2+json, " \
        "application/vnd.docker.distribution.manifest.v2+json"
/* An index may hold indexes, these no more. */
#define INDEX_DEPTH_MAX 2
/* Compressed; upstream's limit for the unpacked image (template-api 10.3), which cannot be smaller. */
#define IMAGE_MB_MAX 25000ULL
#define MB 1000000ULL

struct resolver {
        const struct oci_options *options;
        const char *given;          /* the reference as the user wrote it */
        const char *architecture;
        struct oci_reference ref;
        struct session *session;    /* NULL: the cache alone (imported images) */
        struct endpoint *endpoint;
        struct transfer *transfer;
        const char *pinned;         /* digest to begin at when there is no session */
        struct error *err;
        char *blobs[INDEX_DEPTH_MAX + 1]; /* digests of the documents passed through */
        size_t blob_count;
};

/* Puts "failed to pull image" in front of errors that have no text of their own. */
static int failed(struct resolver *v, int r)
{
        return r == -ECANCELED ? r : error_wrap(v->err, r, "failed to pull image '%s'", v->given);
}

/* The texts of template-api 10.3 for an answer that is none. */
static int refused(struct resolver *v, const struct transfer_reply *r)
{
        CLEANUP_FREE char *message = session_message(v->session, r), *full = session_describe(v->session, r);
        const char *why = *message ? message : full;

        if (r->status == 401 || r->status == 403)
                return error_set(v->err, ERROR_FORBIDDEN, "access denied to '%s': %s", v->given, why);
        if (r->status == 404)
                return error_set(v->err, ERROR_NOT_FOUND, "%s '%s' not found: %s",
                                 strstr(buf_str(&r->body), "NAME_UNKNOWN") ? "repository" : "image", v->given, why);
        return error_set(v->err, ERROR_UNAVAILABLE, "failed to pull image '%s': %s", v->given, full);
}

/* Errors of session_request(): signing in that was refused is an access error. */
static int unreachable(struct resolver *v, int r)
{
        if (r == -ECANCELED)
                return r;
        if (r == -EACCES)
                return error_wrap(v->err, r, "access denied to '%s'", v->given);
        return failed(v, r);
}

static int ask(struct resolver *v, const char *method, const char *path, size_t limit, struct transfer_reply *ret)
{
        const struct transfer_request q = {
                .method = method, .accept = str_starts(path, "manifests/") ? ACCEPT : NULL, .limit = limit,
        };
        int r = session_request(v->session, v->endpoint, v->transfer, &q, path, ret, v->err);

        return r < 0 ? unreachable(v, r) : 0;
}

/* Checks and stores a manifest that came by GET. `digest` is what it must be, or "" to be told. */
static int keep_manifest(struct resolver *v, const struct transfer_reply *reply, char digest[DIGEST_TEXT_MAX])
{
        char actual[DIGEST_TEXT_MAX];
        int r;

        digest_of(buf_str(&reply->body), reply->body.len, actual);
        if (*digest && !streq(digest, actual)) {
                r = error_set(v->err, ERROR_INVALID, "manifest: sha256 mismatch: expected %s, got %s", digest, actual);
                return failed(v, r);
        }
        strcpy(digest, actual);
        r = blob_store(v->options->cache_dir, digest, buf_str(&reply->body), reply->body.len, v->err);
        return r < 0 ? failed(v, r) : 0;
}

static int get_manifest(struct resolver *v, const char *name, char digest[DIGEST_TEXT_MAX], struct buf *body, char **type)
{
        CLEANUP_FREE char *path = xasprintf("manifests/%s", name);
        struct transfer_reply reply = {};
        int r = ask(v, "GET", path, MANIFEST_MAX, &reply);

        if (r < 0)
                return r;
        if (reply.status != 200)
                r = refused(v, &reply);
        else
                r = keep_manifest(v, &reply, digest);
        if (r == 0) {
                buf_add(body, buf_str(&reply.body), reply.body.len);
                free(*type);
                *type = xstrdup_or_null(reply.content_type);
        }
        transfer_reply_free(&reply);
        return r;
}

/* The document with this digest, from the cache or by GET. */
static int load_manifest(struct resolver *v, char digest[DIGEST_TEXT_MAX], struct buf *body, char **type)
{
        int r;

        if (blob_read(v->options->cache_dir, digest, MANIFEST_MAX, body, NULL) == 0)
                return 0;
        if (v->session)
                return get_manifest(v, digest, digest, body, type);
        r = error_set(v->err, ERROR_NOT_FOUND, "%s is not in the cache; import the image again", digest);
        return failed(v, r);
}

/* What the reference stands for: fills `digest`, and `type` as announced; the body too when it took a GET. */
static int resolve_name(struct resolver *v, char digest[DIGEST_TEXT_MAX], struct buf *body, char **type)
{
        const char *name = v->ref.digest ?: v->ref.tag;
        CLEANUP_FREE char *path = xasprintf("manifests/%s", name);
        struct transfer_reply head = {};
        int r = ask(v, "HEAD", path, MANIFEST_MAX, &head);

        strcpy(digest, v->ref.digest ?: "");
        if (r < 0)
                return r;
        if (head.status == 200 && v->ref.digest && head.digest && !streq(head.digest, digest))
                r = failed(v, error_set(v->err, ERROR_INVALID, "the registry answers %s with the manifest %.100s", digest,
                                        head.digest));
        else if (head.status == 200 && digest_valid(head.digest ?: digest)) {
                if (head.digest)
                        strcpy(digest, head.digest);
                *type = xstrdup_or_null(head.content_type);
        } else if (head.status == 429) /* asking on would make it worse */
                r = refused(v, &head);
        else /* no body came with it: GET either works or says why not */
                r = get_manifest(v, name, digest, body, type);
        transfer_reply_free(&head);
        return r;
}

static void pass_through(struct resolver *v, const char *digest)
{
        v->blobs[v->blob_count++] = xstrdup(digest);
}

/* Goes down from `digest` to the image manifest for the platform. */
static int descend(struct resolver *v, char digest[DIGEST_TEXT_MAX], struct buf *body, char **type, struct manifest *ret)
{
        for (unsigned depth = 0;; depth++) {
                struct manifest m = {};
                size_t chosen = 0;
                int r = body->len ? 0 : load_manifest(v, digest, body, type);

                if (r < 0)
                        return r;
                r = manifest_parse(buf_str(body), body->len, *type, &m, v->err);
                if (r < 0)
                        return failed(v, r);
                if (m.kind == MANIFEST_INDEX && depth >= INDEX_DEPTH_MAX) {
                        manifest_free(&m);
                        return failed(v, error_set(v->err, ERROR_INVALID, "its index is nested too deeply"));
                }
                pass_through(v, digest);
                if (m.kind == MANIFEST_IMAGE) {
                        *ret = m;
                        return 0;
                }
                r = index_choose(&m, v->architecture, &chosen, v->err);
                if (r < 0) {
                        manifest_free(&m);
                        return error_wrap(v->err, r, "image '%s' not found", v->given);
                }
                strcpy(digest, m.items[chosen].digest);
                free(*type);
                *type = xstrdup(m.items[chosen].media_type);
                buf_clear(body);
                manifest_free(&m);
        }
}

/* Embedded content saves a request; a wrong one is as good as none. */
static void store_embedded(struct resolver *v, const struct descriptor *d)
{
        if (d->data && !blob_present(v->options->cache_dir, d->digest, d->size))
                blob_store(v->options->cache_dir, d->digest, d->data, d->size, NULL);
}

static int get_config(struct resolver *v, const struct descriptor *d, struct buf *body)
{
        CLEANUP_FREE char *path = xasprintf("blobs/%s", d->digest);
        struct transfer_reply reply = {};
        int r;

        if (!v->session)
                return failed(v, error_set(v->err, ERROR_NOT_FOUND, "%s is not in the cache; import the image again",
                                           d->digest));
        r = ask(v, "GET", path, d->size, &reply);
        if (r < 0)
                return r;
        if (reply.status != 200)
                r = refused(v, &reply);
        else {
                r = blob_store(v->options->cache_dir, d->digest, buf_str(&reply.body), reply.body.len, v->err);
                if (r < 0)
                        r = failed(v, error_wrap(v->err, r, "image config"));
        }
        if (r == 0)
                buf_add(body, buf_str(&reply.body), reply.body.len);
        transfer_reply_free(&reply);
        return r;
}

static int load_config(struct resolver *v, const struct manifest *m, struct image_config *ret)
{
        CLEANUP_BUF struct buf body = {};
        int r = 0;

        store_embedded(v, &m->config);
        if (blob_read(v->options->cache_dir, m->config.digest, CONFIG_MAX, &body, NULL) < 0)
                r = get_config(v, &m->config, &body);
        if (r < 0)
                return r;
        r = image_config_parse(buf_str(&body), body.len, ret, v->err);
        return r < 0 ? failed(v, r) : 0;
}

static int check_config(struct resolver *v, const struct manifest *m, const struct image_config *c)
{
        const char *actual = oci_architecture(c->architecture);

        if (*c->os && !streq(c->os, "linux"))
                return failed(v, error_set(v->err, ERROR_INVALID, "it is for the operating system '%.50s', not linux", c->os));
        if (!streq(actual, v->architecture))
                return error_set(v->err, ERROR_INVALID, "image architecture \"%.50s\" does not match expected \"%s\"", actual,
                                 v->architecture);
        if (c->diff_id_count != m->count)
                return failed(v, error_set(v->err, ERROR_INVALID, "the manifest has %zu layers, the config %zu", m->count,
                                           c->diff_id_count));
        return 0;
}

static int fill(struct resolver *v, const char *digest, const struct manifest *m, struct image_config *c,
                struct oci_image *image)
{
        image->reference = xstrdup(v->given);
        image->digest = xstrdup(digest);
        image->architecture = xstrdup(v->architecture);
        image->env = STEAL(c->env);
        image->layers = xcalloc(m->count + 1, sizeof(*image->layers));
        image->layer_count = m->count;
        for (size_t i = 0; i < m->count; i++) {
                store_embedded(v, &m->items[i]);
                image->layers[i] = (struct oci_layer){
                        .digest = xstrdup(m->items[i].digest),
                        .diff_id = xstrdup(c->diff_ids[i]),
                        .media_type = xstrdup(m->items[i].media_type),
                        .size = m->items[i].size,
                };
                image->total_size += m->items[i].size;
        }
        if (image->total_size <= IMAGE_MB_MAX * MB)
                return 0;
        return error_set(v->err, ERROR_LIMIT, "image '%s' has %llu MB, more than the limit of %llu MB", v->given,
                         (unsigned long long)(image->total_size / MB), IMAGE_MB_MAX);
}

static void save_record(struct resolver *v, const struct oci_image *image, const char *config)
{
        CLEANUP_FREE char *name = reference_text(&v->ref);
        size_t n = 0;
        struct image_record rec = {
                .reference = name,
                .digest = image->digest,
                .architecture = image->architecture,
                .size = image->total_size,
                .layer_count = image->layer_count,
                .config_digest = (char *)config,
                .imported = !v->session,
        };

        rec.blobs = xcalloc(v->blob_count + image->layer_count + 2, sizeof(*rec.blobs));
        for (size_t i = 0; i < v->blob_count; i++)
                rec.blobs[n++] = v->blobs[i];
        rec.blobs[n++] = (char *)config;
        for (size_t i = 0; i < image->layer_count; i++)
                rec.blobs[n++] = image->layers[i].digest;
        image_record_save(v->options->cache_dir, &rec, NULL); /* a listing without it is no reason to fail */
        free(rec.blobs);
}

static void forget_blobs(struct resolver *v)
{
        while (v->blob_count)
                free(v->blobs[--v->blob_count]);
}

static int resolve_at(struct resolver *v, struct oci_image *ret)
{
        __attribute__((cleanup(manifest_free))) struct manifest m = {};
        __attribute__((cleanup(image_config_free))) struct image_config c = {};
        __attribute__((cleanup(oci_image_free))) struct oci_image image = {};
        CLEANUP_BUF struct buf body = {};
        CLEANUP_FREE char *type = NULL;
        char digest[DIGEST_TEXT_MAX] = "";
        int r = 0;

        forget_blobs(v);
        if (v->session)
                r = resolve_name(v, digest, &body, &type);
        else
                strcpy(digest, v->pinned);
        if (r == 0)
                r = descend(v, digest, &body, &type, &m);
        if (r == 0)
                r = load_config(v, &m, &c);
        if (r == 0)
                r = check_config(v, &m, &c);
        if (r == 0)
                r = fill(v, digest, &m, &c, &image);
        if (r < 0)
                return r;
        save_record(v, &image, m.config.digest);
        *ret = image;
        image = (struct oci_image){};
        return 0;
}

static int resolve_remote(struct resolver *v, const struct oci_progress *progress, struct oci_image *ret)
{
        for (size_t i = 0;; i++) {
                int r;

                v->endpoint = &v->session->endpoints[i];
                r = resolve_at(v, ret);
                if (r == 0 || r == -ECANCELED || i + 1 == v->session->endpoint_count)
                        return r;
                progress_log(progress, 2, "registry mirror %s: %s; going on with the registry itself", v->endpoint->base,
                             v->err->message);
        }
}

static bool stop_asked(void *data)
{
        return progress_cancelled(data);
}

static int with_session(struct resolver *v, const struct oci_auth *auth, const struct oci_progress *progress,
                        struct oci_image *ret)
{
        struct transfer t = {
                .insecure = v->options->insecure,
                .stall_seconds = v->options->stall_seconds,
                .stop = stop_asked,
                .stop_data = (void *)progress,
        };
        struct session s = {};
        int r = session_open(v->options, &v->ref, auth, &s, v->err);

        if (r < 0)
                return r;
        r = transfer_open(&t, v->err);
        v->session = &s;
        v->transfer = &t;
        if (r == 0)
                r = resolve_remote(v, progress, ret);
        transfer_close(&t);
        session_close(&s);
        v->session = NULL;
        v->transfer = NULL;
        return r;
}

/* 1 when an image was imported under this name for this architecture. */
static int resolve_imported(struct resolver *v, struct oci_image *ret)
{
        CLEANUP_FREE char *name = reference_text(&v->ref);
        __attribute__((cleanup(image_record_free))) struct image_record rec = {};
        int r;

        if (image_record_load(v->options->cache_dir, name, &rec, NULL) < 0 || !rec.imported ||
            !streq(rec.architecture, v->architecture))
                return 0;
        v->pinned = rec.digest;
        r = resolve_at(v, ret);
        return r < 0 ? r : 1;
}

int oci_resolve(const struct oci_options *o, const char *reference, const char *machine, const struct oci_auth *auth,
                const struct oci_progress *progress, struct oci_image *ret, struct error *err)
{
        struct error own = {};
        struct resolver v = {
                .options = o, .given = reference, .architecture = oci_architecture(machine), .err = &own,
        };
        int r = oci_reference_parse(reference, &v.ref, &own);

        if (r == 0)
                r = blob_cache_prepare(o->cache_dir, &own);
        if (r == 0)
                r = resolve_imported(&v, ret);
        if (r == 0)
                r = with_session(&v, auth, progress, ret);
        forget_blobs(&v);
        oci_reference_free(&v.ref);
        if (r >= 0)
                return 0;
        if (err)
                *err = own;
        return error_kind_to_errno(own.kind);
}

void oci_image_free(struct oci_image *i)
{
        free(i->reference);
        free(i->digest);
        free(i->architecture);
        for (char **e = i->env; e && *e; e++)
                free(*e);
        free(i->env);
        for (size_t n = 0; n < i->layer_count; n++) {
                free(i->layers[n].digest);
                free(i->layers[n].diff_id);
                free(i->layers[n].media_type);
        }
        free(i->layers);
        *i = (struct oci_image){};
}
