/* Signing in: Basic, and the bearer flow of the distribution spec: the registry answers 401 with the address of a token
 * server, which trades the user's credentials, or nothing, for a token that is good for one repository and some minutes.
 * A token that is refused before its time is dropped and fetched anew, once a request.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/challenge.h"
#include "oci/secret.h"
#include "oci/session.h"

#define TOKEN_ANSWER_MAX (1U << 20)
#define TOKEN_MAX 65536
/* What the spec says when expires_in is absent, and how early a token is renewed. */
#define TOKEN_SECONDS 60
#define TOKEN_SECONDS_MAX 86400
#define TOKEN_EARLY_SECONDS 10

static void add_parameter(struct buf *url, const char *name, const char *value, size_t len)
{
        CLEANUP_FREE char *copy = xstrndup(value, len);
        char *escaped = curl_easy_escape(NULL, copy, (int)len);

        buf_addf(url, "%c%s=%s", strchr(buf_str(url), '?') ? '&' : '?', name, escaped ?: "");
        curl_free(escaped);
}

static char *token_url(const struct session *s, const struct challenge *c)
{
        CLEANUP_FREE char *own = xasprintf("repository:%s:pull", s->repository);
        CLEANUP_BUF struct buf url = {};

        buf_adds(&url, c->realm);
        if (c->service)
                add_parameter(&url, "service", c->service, strlen(c->service));
        for (const char *p = c->scope && *c->scope ? c->scope : own; *p;) {
                size_t n = strcspn(p, " ");

                if (n)
                        add_parameter(&url, "scope", p, n);
                p += n;
                p += strspn(p, " ");
        }
        return buf_steal(&url);
}

/* A token server in plain http gets credentials only where the registry itself is spoken to so. */
static int check_realm(const struct session *s, const struct endpoint *e, const char *realm, struct error *err)
{
        CLEANUP_FREE char *origin = transfer_origin(realm);

        if (!origin)
                return error_set(err, ERROR_UNAVAILABLE, "the registry names a token server that is no http URL");
        if (str_starts(origin, "http:") && !str_starts(e->base, "http:") &&
            !transfer_insecure(s->options->insecure, origin + strlen("http://")))
                return error_set(err, ERROR_UNAVAILABLE,
                                 "the registry's token server %s speaks plain http, which is refused; name it with "
                                 "--insecure-registry if it is meant so", origin);
        return 0;
}

static int keep_token(struct endpoint *e, const struct buf *body, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        const char *token;
        json_int_t seconds;

        if (json_parse(buf_str(body), body->len, &j, NULL) < 0)
                return error_set(err, ERROR_UNAVAILABLE, "the token server's answer is no JSON");
        token = json_str(j, "token") ?: json_str(j, "access_token");
        if (!token || !*token || strlen(token) > TOKEN_MAX || strpbrk(token, "\r\n"))
                return error_set(err, ERROR_UNAVAILABLE, "the token server's answer has no usable token");
        seconds = json_int(j, "expires_in", TOKEN_SECONDS);
        if (seconds <= 0 || seconds > TOKEN_SECONDS_MAX)
                seconds = TOKEN_SECONDS;
        if (seconds > 2 * TOKEN_EARLY_SECONDS)
                seconds -= TOKEN_EARLY_SECONDS;
        secret_free(&e->authorization);
        e->authorization = xasprintf("Bearer %s", token);
        e->expires_ns = clock_monotonic_ns() + seconds * NSEC_PER_SEC;
        /* jansson frees its copy without wiping it */
        explicit_bzero((char *)token, strlen(token));
        return 0;
}

/* session_describe() takes the lock that is held here. */
static int token_refused(struct session *s, const struct transfer_reply *r, struct error *err)
{
        CLEANUP_FREE char *why = NULL;
        bool denied = r->status == 401 || r->status == 403;

        pthread_mutex_unlock(&s->lock);
        why = session_describe(s, r);
        pthread_mutex_lock(&s->lock);
        return error_set(err, denied ? ERROR_FORBIDDEN : ERROR_UNAVAILABLE, "token server: %s", why);
}

/* The token request with its second tries. */
static int ask(struct endpoint *e, struct transfer *t, const struct transfer_request *q, struct transfer_reply *reply,
               struct error *err)
{
        for (unsigned attempt = 1;; attempt++) {
                int r = transfer_perform(t, q, reply, err), wait;
                struct error ignored;

                if ((r < 0 && r != -EAGAIN) || (r == 0 && reply->status == 200))
                        return r;
                wait = session_backoff(e, t, r == 0 ? reply : NULL, attempt, &ignored);
                if (wait == -ENOENT)
                        return r;
                transfer_reply_free(reply);
                if (wait < 0)
                        return error_set(err, ERROR_CANCELLED, "cancelled");
        }
}

static int fetch_token(struct session *s, struct endpoint *e, struct transfer *t, const struct challenge *c,
                       struct error *err)
{
        CLEANUP_FREE char *url = NULL;
        struct transfer_reply reply = {};
        struct transfer_request q = { .method = "GET", .accept = "application/json", .limit = TOKEN_ANSWER_MAX };
        int r = check_realm(s, e, c->realm, err);

        if (r < 0)
                return r;
        url = token_url(s, c);
        q.url = url;
        q.authorization = e->mirror ? NULL : s->basic;
        r = ask(e, t, &q, &reply, err);
        if (r < 0)
                return error_wrap(err, r, "token server");
        if (reply.status == 200)
                r = keep_token(e, &reply.body, err);
        else
                r = token_refused(s, &reply, err);
        if (reply.body.data)
                explicit_bzero(reply.body.data, reply.body.len);
        transfer_reply_free(&reply);
        return r;
}

static int prepare_basic(struct session *s, struct transfer *t, struct error *err)
{
        CLEANUP_SECRET char *pair = NULL;
        int r;

        if (s->basic || !s->auth || s->auth->kind != OCI_AUTH_AWS)
                return 0;
        r = ecr_login(s->options, s->auth, t, &pair, err);
        if (r < 0)
                return r;
        s->basic = basic_header(pair);
        return 0;
}

/* The best challenge of all headers. */
static int best_challenge(const struct transfer_reply *refused, struct challenge *ret, struct error *err)
{
        int r = 0;

        for (size_t i = 0; i < refused->challenge_count; i++) {
                struct challenge c = {};
                int one = challenge_parse(refused->challenges[i], &c, err);

                if (one < 0)
                        r = one;
                else if (c.scheme > ret->scheme) {
                        challenge_free(ret);
                        *ret = c;
                } else
                        challenge_free(&c);
        }
        return ret->scheme == CHALLENGE_NONE ? r : 0;
}

int session_sign_in(struct session *s, struct endpoint *e, struct transfer *t, const struct transfer_reply *refused,
                    const char *used, struct error *err)
{
        __attribute__((cleanup(challenge_free))) struct challenge c = {};
        int r;

        if (e->authorization && !streq(e->authorization, used))
                return 1; /* another thread has just signed in */
        r = best_challenge(refused, &c, err);
        if (r == 0 && !e->mirror)
                r = prepare_basic(s, t, err);
        if (r < 0)
                return r;
        secret_free(&e->authorization);
        if (c.scheme == CHALLENGE_BEARER) {
                r = fetch_token(s, e, t, &c, err);
                return r < 0 ? r : 1;
        }
        if (c.scheme != CHALLENGE_BASIC || !s->basic || e->mirror || streq(used, s->basic))
                return 0;
        e->authorization = xstrdup(s->basic);
        e->expires_ns = 0;
        return 1;
}
