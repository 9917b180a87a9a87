/* Endpoints and second tries. An anonymous pull from docker.io goes to the operator's mirror first; every other pull has
 * one endpoint. A mirror never sees credentials, by construction: the session has none when it has a mirror.
 */
#include "oci/session.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/retry.h"
#include "oci/secret.h"

#define HUB_HOST "registry-1.docker.io"
#define MESSAGE_SHOWN_MAX 500

static struct endpoint *add_endpoint(struct session *s)
{
        return &s->endpoints[s->endpoint_count++];
}

static int add_mirror(struct session *s, const char *mirror, struct error *err)
{
        CLEANUP_FREE char *base = NULL, *origin = NULL;
        size_t n;

        if (strstr(mirror, "://"))
                base = xstrdup(mirror);
        else
                base = xasprintf("%s://%s", transfer_insecure(s->options->insecure, mirror) ? "http" : "https", mirror);
        for (n = strlen(base); n && base[n - 1] == '/'; n--)
                base[n - 1] = '\0';
        origin = transfer_origin(base);
        if (!origin || strpbrk(base, "@?#"))
                return error_set(err, ERROR_INVALID,
                                 "--registry-mirror must be a URL like https://mirror.gcr.io, without credentials");
        *add_endpoint(s) = (struct endpoint){ .base = STEAL(base), .mirror = true };
        return 0;
}

static void add_registry(struct session *s, const char *registry)
{
        bool plain = transfer_insecure(s->options->insecure, registry);
        const char *host = streq(registry, "docker.io") ? HUB_HOST : registry;

        add_endpoint(s)->base = xasprintf("%s://%s", plain ? "http" : "https", host);
}

char *basic_header(const char *userpass)
{
        size_t len = strlen(userpass);
        CLEANUP_SECRET char *text = xmalloc((len + 2) / 3 * 4 + 1);

        EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)userpass, (int)len);
        return xasprintf("Basic %s", text);
}

static char *basic_of(const struct oci_auth *auth)
{
        CLEANUP_SECRET char *pair = NULL;

        if (auth && auth->kind == OCI_AUTH_BASIC)
                pair = xasprintf("%s:%s", auth->username, auth->password);
        else if (auth && auth->kind == OCI_AUTH_GCP)
                pair = xasprintf("_json_key:%s", auth->gcp_json);
        return pair ? basic_header(pair) : NULL;
}

int session_open(const struct oci_options *o, const struct oci_reference *ref, const struct oci_auth *auth,
                 struct session *ret, struct error *err)
{
        struct session s = { .options = o, .repository = xstrdup(ref->repository) };
        int r = 0;

        s.auth = auth && auth->kind != OCI_AUTH_NONE ? auth : NULL;
        s.basic = basic_of(s.auth);
        if (!s.auth && o->mirror && *o->mirror && streq(ref->registry, "docker.io"))
                r = add_mirror(&s, o->mirror, err);
        if (r < 0) {
                free(s.repository);
                return r;
        }
        add_registry(&s, ref->registry);
        pthread_mutex_init(&s.lock, NULL);
        *ret = s;
        return 0;
}

void session_close(struct session *s)
{
        for (size_t i = 0; i < s->endpoint_count; i++) {
                free(s->endpoints[i].base);
                secret_free(&s->endpoints[i].authorization);
        }
        free(s->repository);
        secret_free(&s->basic);
        pthread_mutex_destroy(&s->lock);
        *s = (struct session){};
}

/* What to send: a copy, because another thread may renew the token meanwhile. */
static char *current_authorization(struct session *s, struct endpoint *e)
{
        char *copy;

        pthread_mutex_lock(&s->lock);
        if (e->authorization && e->expires_ns && clock_monotonic_ns() >= e->expires_ns)
                secret_free(&e->authorization);
        copy = xstrdup_or_null(e->authorization);
        pthread_mutex_unlock(&s->lock);
        return copy;
}

int session_once(struct session *s, struct endpoint *e, struct transfer *t, const struct transfer_request *q,
                 const char *path, struct transfer_reply *ret, struct error *err)
{
        CLEANUP_FREE char *url = xasprintf("%s/v2/%s/%s", e->base, s->repository, path);

        for (bool again = false;; again = true) {
                CLEANUP_SECRET char *authorization = current_authorization(s, e);
                struct transfer_request full = *q;
                struct transfer_reply reply = {};
                int r;

                full.url = url;
                full.authorization = authorization;
                r = transfer_perform(t, &full, &reply, err);
                if (r < 0)
                        return r;
                if (reply.status != 401 || again || reply.redirected) {
                        *ret = reply;
                        return 0;
                }
                pthread_mutex_lock(&s->lock);
                r = session_sign_in(s, e, t, &reply, authorization, err);
                pthread_mutex_unlock(&s->lock);
                if (r == 0) {
                        *ret = reply;
                        return 0;
                }
                transfer_reply_free(&reply);
                if (r < 0) /* had its own second tries */
                        return r == -EAGAIN ? -EPROTO : r;
        }
}

int session_backoff(const struct endpoint *e, struct transfer *t, const struct transfer_reply *reply, unsigned attempt,
                    struct error *err)
{
        int ms = e && e->mirror ? -1
                                : retry_delay_ms(reply ? reply->status : 0, reply ? reply->retry_after : NULL, attempt);

        return ms < 0 ? -ENOENT : transfer_wait(t, (unsigned)ms, err);
}

int session_request(struct session *s, struct endpoint *e, struct transfer *t, const struct transfer_request *q,
                    const char *path, struct transfer_reply *ret, struct error *err)
{
        struct transfer_request full = *q;

        for (unsigned attempt = 1;; attempt++) {
                struct transfer_reply reply = {};
                struct error ignored;
                int r, wait;

                /* A HEAD answer has no message; the last try asks so that the user gets to read one. */
                if (attempt == RETRY_429_ATTEMPTS && streq(q->method, "HEAD"))
                        full.method = "GET";
                r = session_once(s, e, t, &full, path, &reply, err);

                if ((r < 0 && r != -EAGAIN) || (r == 0 && reply.status < 400)) {
                        *ret = reply;
                        return r;
                }
                wait = session_backoff(e, t, r == 0 ? &reply : NULL, attempt, &ignored);
                if (wait == -ENOENT) {
                        *ret = reply;
                        return r;
                }
                transfer_reply_free(&reply);
                if (wait < 0)
                        return error_set(err, ERROR_CANCELLED, "cancelled");
        }
}

/* Replaces every `secret` in `text`, which a registry may have echoed. */
static void redact(char *text, const char *secret)
{
        size_t len = secret ? strlen(secret) : 0;

        for (char *p = text; len >= 4 && (p = strstr(p, secret)); p += len)
                memset(p, '*', len);
}

static const char *after_scheme(const char *authorization)
{
        const char *blank = authorization ? strchr(authorization, ' ') : NULL;

        return blank ? blank + 1 : NULL;
}

static void redact_all(struct session *s, char *text)
{
        redact(text, after_scheme(s->basic));
        if (s->auth) {
                redact(text, s->auth->password);
                redact(text, s->auth->aws_secret);
                redact(text, s->auth->gcp_json);
        }
        pthread_mutex_lock(&s->lock);
        for (size_t i = 0; i < s->endpoint_count; i++)
                redact(text, after_scheme(s->endpoints[i].authorization));
        pthread_mutex_unlock(&s->lock);
}

/* The text inside the errors document of the distribution spec, or inside the forms that token servers use. */
static const char *message_in(const json_t *j)
{
        static const char *const keys[] = { "message", "details", "error_description", "error" };
        const json_t *first = json_array_get(json_object_get(j, "errors"), 0);
        const char *text = json_str(first, "message");

        if (text && *text)
                return text;
        if (json_str(first, "code"))
                return json_str(first, "code");
        for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
                if (json_str(j, keys[i]))
                        return json_str(j, keys[i]);
        return "";
}

char *session_message(struct session *s, const struct transfer_reply *r)
{
        CLEANUP_JSON json_t *j = NULL;
        const char *text = "";
        char *shown;

        if (json_parse(buf_str(&r->body), r->body.len, &j, NULL) == 0)
                text = message_in(j);
        else if (!r->redirected && r->content_type && str_starts(r->content_type, "text/plain"))
                text = buf_str(&r->body);
        shown = utf8_scrub(text, strnlen(text, MESSAGE_SHOWN_MAX));
        for (char *p = shown; *p; p++)
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        *p = ' ';
        redact_all(s, shown);
        memmove(shown, str_trim(shown), strlen(str_trim(shown)) + 1);
        return shown;
}

char *session_describe(struct session *s, const struct transfer_reply *r)
{
        CLEANUP_FREE char *message = session_message(s, r);
        CLEANUP_BUF struct buf b = {};

        buf_addf(&b, "registry returned status code %ld", r->status);
        if (*message)
                buf_addf(&b, ": %s", message);
        if (r->retry_after)
                buf_addf(&b, " (Retry-After: %.60s)", r->retry_after);
        return buf_steal(&b);
}
