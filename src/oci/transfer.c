/* libcurl behind a small door. Redirects are followed here and not by curl, because credentials must stay with the very
 * origin (scheme, host and port) they were meant for: object stores refuse requests that carry a second authorization,
 * and a sub-domain is another party. Once dropped, the header is not taken up again.
 *
 * Going from https to plain http is refused unless the operator named the host as insecure: the digest that a tag
 * resolves to comes from such an answer.
 */
#include "oci/transfer.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/mem.h"
#include "base/str.h"
#include "oci/secret.h"

#define ERROR_BODY_MAX 16384
#define WAIT_STEP_MS 50

/* State of one hop. */
struct hop {
        struct transfer *t;
        const struct transfer_request *q;
        struct transfer_reply *reply;
        struct error *err;
        bool begun;
        int result; /* of a sink or limit: what ended the hop */
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void curl_init(void)
{
        curl_global_init(CURL_GLOBAL_DEFAULT);
}

int transfer_open(struct transfer *t, struct error *err)
{
        pthread_once(&curl_once, curl_init);
        t->curl = curl_easy_init();
        return t->curl ? 0 : error_set(err, ERROR_INTERNAL, "libcurl cannot be initialised");
}

void transfer_close(struct transfer *t)
{
        if (t->curl)
                curl_easy_cleanup(t->curl);
        t->curl = NULL;
}

void transfer_reply_free(struct transfer_reply *r)
{
        free(r->content_type);
        free(r->digest);
        free(r->retry_after);
        free(r->content_range);
        free(r->location);
        for (size_t i = 0; i < r->challenge_count; i++)
                free(r->challenges[i]);
        buf_free(&r->body);
        *r = (struct transfer_reply){};
}

static bool stopped(const struct transfer *t)
{
        return t->stop && t->stop(t->stop_data);
}

int transfer_wait(const struct transfer *t, unsigned ms, struct error *err)
{
        for (;;) {
                unsigned step = ms < WAIT_STEP_MS ? ms : WAIT_STEP_MS;
                struct timespec ts = { .tv_nsec = step * 1000000L };

                if (stopped(t))
                        return error_set(err, ERROR_CANCELLED, "cancelled");
                if (ms == 0)
                        return 0;
                nanosleep(&ts, NULL);
                ms -= step;
        }
}

bool transfer_insecure(const char *const *list, const char *host)
{
        for (; list && *list; list++)
                if (strcasecmp(*list, host) == 0)
                        return true;
        return false;
}

static char *url_part(CURLU *u, CURLUPart part, unsigned flags)
{
        char *s = NULL, *copy = NULL;

        if (curl_url_get(u, part, &s, flags) == CURLUE_OK && s)
                copy = xstrdup(s);
        curl_free(s);
        return copy;
}

char *transfer_origin(const char *url)
{
        CURLU *u = curl_url();
        char *origin = NULL;

        if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK) {
                CLEANUP_FREE char *scheme = url_part(u, CURLUPART_SCHEME, 0);
                CLEANUP_FREE char *host = url_part(u, CURLUPART_HOST, 0);
                CLEANUP_FREE char *port = url_part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT);

                if (scheme && host && port && (streq(scheme, "https") || streq(scheme, "http")))
                        origin = xasprintf("%s://%s:%s", scheme, str_lower(host), port);
        }
        curl_url_cleanup(u);
        return origin;
}

/* May plain http be spoken to `origin`? With and without its port in the operator's list. */
static bool plain_allowed(const struct transfer *t, const char *origin)
{
        CLEANUP_FREE char *host = xstrdup(origin + strlen("http://"));
        char *colon;

        if (transfer_insecure(t->insecure, host))
                return true;
        colon = strrchr(host, ':');
        if (!colon || !streq(colon, ":80"))
                return false;
        *colon = '\0';
        return transfer_insecure(t->insecure, host);
}

static void keep_header(char **to, const char *value)
{
        free(*to);
        *to = utf8_scrub(value, strlen(value));
}

static void take_header(struct transfer_reply *r, const char *name, const char *value)
{
        if (strcasecmp(name, "content-type") == 0)
                keep_header(&r->content_type, value);
        else if (strcasecmp(name, "docker-content-digest") == 0)
                keep_header(&r->digest, value);
        else if (strcasecmp(name, "retry-after") == 0)
                keep_header(&r->retry_after, value);
        else if (strcasecmp(name, "content-range") == 0)
                keep_header(&r->content_range, value);
        else if (strcasecmp(name, "location") == 0)
                keep_header(&r->location, value);
        else if (strcasecmp(name, "www-authenticate") == 0 && r->challenge_count < TRANSFER_CHALLENGES_MAX)
                r->challenges[r->challenge_count++] = utf8_scrub(value, strlen(value));
}

static size_t on_header(char *line, size_t size, size_t n, void *data)
{
        struct hop *h = data;
        CLEANUP_FREE char *copy = xstrndup(line, size * n);
        char *colon = strchr(copy, ':');

        if (str_starts(copy, "HTTP/"))
                transfer_reply_free(h->reply); /* what came before was an interim answer */
        else if (colon) {
                *colon = '\0';
                take_header(h->reply, copy, str_trim(colon + 1));
        }
        return size * n;
}

static bool success(long status)
{
        return status == 200 || status == 206;
}

static int collect(struct hop *h, const char *bytes, size_t len)
{
        struct buf *body = &h->reply->body;

        if (!success(h->reply->status)) {
                size_t room = ERROR_BODY_MAX - body->len;

                buf_add(body, bytes, len < room ? len : room);
                return 0;
        }
        if (len > h->q->limit - body->len)
                return error_set(h->err, ERROR_LIMIT, "the registry's answer is larger than %zu bytes", h->q->limit);
        buf_add(body, bytes, len);
        return 0;
}

static int deliver(struct hop *h, const char *bytes, size_t len)
{
        int r = 0;

        curl_easy_getinfo(h->t->curl, CURLINFO_RESPONSE_CODE, &h->reply->status);
        if (!h->q->write || !success(h->reply->status))
                return collect(h, bytes, len);
        if (!h->begun && h->q->begin)
                r = h->q->begin(h->q->data, h->reply, h->err);
        h->begun = true;
        return r < 0 ? r : h->q->write(h->q->data, bytes, len, h->err);
}

static size_t on_body(char *bytes, size_t size, size_t n, void *data)
{
        struct hop *h = data;

        h->result = deliver(h, bytes, size * n);
        return h->result < 0 ? CURL_WRITEFUNC_ERROR : size * n;
}

static int on_progress(void *data, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
        const struct hop *h = data;

        (void)a, (void)b, (void)c, (void)d;
        return stopped(h->t) ? 1 : 0;
}

static struct curl_slist *add_header(struct curl_slist *list, const char *name, const char *value)
{
        CLEANUP_SECRET char *line = xasprintf("%s: %s", name, value);
        struct curl_slist *longer = curl_slist_append(list, line);

        if (!longer)
                abort();
        return longer;
}

static void headers_free(struct curl_slist *list)
{
        for (struct curl_slist *l = list; l; l = l->next)
                explicit_bzero(l->data, strlen(l->data));
        curl_slist_free_all(list);
}

static struct curl_slist *headers_of(const struct transfer_request *q, bool authorized)
{
        struct curl_slist *list = NULL;

        if (q->accept)
                list = add_header(list, "Accept", q->accept);
        if (q->authorization && authorized)
                list = add_header(list, "Authorization", q->authorization);
        if (q->post_type)
                list = add_header(list, "Content-Type", q->post_type);
        if (q->post_target)
                list = add_header(list, "X-Amz-Target", q->post_target);
        if (q->ranged) {
                CLEANUP_FREE char *range = xasprintf("bytes=%llu-", (unsigned long long)q->range_from);

                list = add_header(list, "Range", range);
        }
        return list;
}

/* Everything but the headers; curl_easy_reset() keeps the connections. */
static void setup(struct hop *h, const char *url)
{
        const struct transfer_request *q = h->q;
        CURL *c = h->t->curl;

        curl_easy_reset(c);
        curl_easy_setopt(c, CURLOPT_URL, url);
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(c, CURLOPT_USERAGENT, "vmon/" VMON_VERSION);
        curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)TRANSFER_CONNECT_SECONDS);
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)(h->t->stall_seconds ?: TRANSFER_STALL_SECONDS));
        curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
        curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
        curl_easy_setopt(c, CURLOPT_HEADERDATA, h);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
        curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(c, CURLOPT_XFERINFODATA, h);
        if (streq(q->method, "HEAD"))
                curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
        if (q->post)
                curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->post);
        if (q->sigv4) {
                curl_easy_setopt(c, CURLOPT_AWS_SIGV4, q->sigv4);
                curl_easy_setopt(c, CURLOPT_USERPWD, q->sigv4_user);
        }
}

/* The mend that goes with a failure of the transport. */
static const char *advice(CURLcode code)
{
        switch (code) {
        case CURLE_COULDNT_RESOLVE_HOST:
                return "; check the name and the node's DNS";
        case CURLE_COULDNT_CONNECT:
                return "; check that the registry runs and can be reached from this node";
        case CURLE_PEER_FAILED_VERIFICATION:
                return "; add the registry's CA to the node's trusted certificates";
        case CURLE_SSL_CONNECT_ERROR:
                return "; if the registry speaks plain http, name it with --insecure-registry";
        default:
                return "";
        }
}

static int transport_failure(const struct hop *h, CURLcode code, const char *origin)
{
        const char *what = code == CURLE_OPERATION_TIMEDOUT ? "the connection timed out or stalled"
                                                            : curl_easy_strerror(code);

        if (h->result < 0)
                return h->result;
        if (code == CURLE_ABORTED_BY_CALLBACK)
                return error_set(h->err, ERROR_CANCELLED, "cancelled");
        error_set(h->err, ERROR_UNAVAILABLE, "%s: %s%s", origin, what, advice(code));
        return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CONNECT_ERROR ||
                               code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT
                       ? -EPROTO
                       : -EAGAIN;
}

static int perform_hop(struct transfer *t, const struct transfer_request *q, const char *url, const char *origin,
                       bool authorized, struct transfer_reply *reply, struct error *err)
{
        struct hop h = { .t = t, .q = q, .reply = reply, .err = err };
        struct curl_slist *headers = headers_of(q, authorized);
        CURLcode code;

        setup(&h, url);
        curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, headers);
        code = curl_easy_perform(t->curl);
        curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &reply->status);
        curl_easy_reset(t->curl);
        headers_free(headers);
        if (code != CURLE_OK)
                return transport_failure(&h, code, origin);
        /* An empty body calls no callback, but a sink must learn which answer it was. */
        if (q->begin && q->write && !h.begun && success(reply->status))
                return q->begin(q->data, reply, err);
        return 0;
}

static bool redirects(const struct transfer_reply *r)
{
        return r->location &&
               (r->status == 301 || r->status == 302 || r->status == 303 || r->status == 307 || r->status == 308);
}

/* The absolute target of a Location; NULL when it is none. */
static char *resolve_location(const char *base, const char *location)
{
        CURLU *u = curl_url();
        char *url = NULL;

        if (u && curl_url_set(u, CURLUPART_URL, base, 0) == CURLUE_OK &&
            curl_url_set(u, CURLUPART_URL, location, 0) == CURLUE_OK)
                url = url_part(u, CURLUPART_URL, 0);
        curl_url_cleanup(u);
        return url;
}

/* Moves *url and *origin to where the reply points. */
static int follow(struct transfer *t, const struct transfer_reply *r, char **url, char **origin, struct error *err)
{
        CLEANUP_FREE char *next = resolve_location(*url, r->location);
        CLEANUP_FREE char *to = next ? transfer_origin(next) : NULL;

        if (!to) {
                error_set(err, ERROR_UNAVAILABLE, "%s redirects to something that is no http URL", *origin);
                return -EPROTO;
        }
        if (str_starts(to, "http:") && str_starts(*origin, "https:") && !plain_allowed(t, to)) {
                error_set(err, ERROR_UNAVAILABLE,
                          "%s redirects from https to plain http at %s, which is refused; name that host with "
                          "--insecure-registry if it is meant so", *origin, to);
                return -EPROTO;
        }
        free(*url);
        *url = STEAL(next);
        free(*origin);
        *origin = STEAL(to);
        return 0;
}

int transfer_perform(struct transfer *t, const struct transfer_request *q, struct transfer_reply *ret, struct error *err)
{
        CLEANUP_FREE char *url = xstrdup(q->url), *origin = transfer_origin(url), *home = NULL;
        struct transfer_reply reply = {};
        bool authorized = true;

        if (!origin) {
                error_set(err, ERROR_INVALID, "no http or https URL to ask");
                return -EPROTO;
        }
        home = xstrdup(origin);
        for (unsigned hops = 0;; hops++) {
                int r = perform_hop(t, q, url, origin, authorized, &reply, err);

                if (r == 0 && redirects(&reply)) {
                        if (hops >= TRANSFER_REDIRECTS_MAX || q->post) {
                                error_set(err, ERROR_UNAVAILABLE, "%s redirects too often", origin);
                                r = -EPROTO;
                        } else
                                r = follow(t, &reply, &url, &origin, err);
                        authorized = authorized && streq(home, origin);
                        transfer_reply_free(&reply);
                        if (r == 0)
                                continue;
                }
                if (r < 0) {
                        transfer_reply_free(&reply);
                        return r;
                }
                reply.redirected = !authorized;
                *ret = reply;
                return 0;
        }
}
