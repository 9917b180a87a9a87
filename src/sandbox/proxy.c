/* One relay for each proxied exchange:
 *
 *   DIAL (libuv's pool; up to five attempts, a timer between them) --> CALL (bytes both ways) --> closed
 *      '--- or a connection that an earlier exchange has left (proxy-pool.h) ---^    |  '--> the pool
 *                                 ^---- it was closed before it answered ------------'
 *
 * The exchange stays paused until the guest is connected, so nothing is buffered before. Afterwards each side pauses
 * the other above the engine's high-water mark. A relay is freed when the exchange, the call, the dial and the timer
 * have all ended; each of them may be the last.
 *
 * A guest that dies says nothing: its packets just stop. The watch timer therefore asks the manager, while relays are
 * open, whether their sandboxes still run, and resets those that do not. The same timer ages the pool.
 */
#include "sandbox/proxy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "http/client.h"
#include "sandbox/proxy-pool.h"
#include "sandbox/proxy-target.h"

#define DIAL_ATTEMPTS 5     /* envd.md 7.3: waits of 100, 200, 300, 400 ms between them */
#define DIAL_STEP_MS 100
#define WATCH_INTERVAL_MS 500

struct proxy {
        uv_loop_t *loop;
        struct sandbox_manager *manager;
        uv_timer_t watch;
        struct proxy_pool *pool;
        bool watch_closed, freeing;
        struct relay *relays;
};

struct relay {
        struct proxy *proxy;
        struct relay *prev, *next;
        struct proxy_target target;
        uint64_t life; /* of the sandbox when it was dialled; 0 when not known */
        struct http_exchange *x; /* NULL after its on_close */
        struct http_call *call;  /* NULL before the dial and after its on_close */
        uv_work_t work;
        uv_timer_t timer;
        bool dialling, timing;
        int attempts, dial_result, fd;
        bool started; /* the response */
        bool reused;  /* the connection is from the pool */
        bool body_ended; /* of the request */
        bool tunnel;
        char *host; /* in place of the request's, or NULL */
};

static void proxy_maybe_free(struct proxy *p)
{
        if (p->freeing && !p->relays && p->watch_closed) {
                proxy_pool_free(p->pool);
                free(p);
        }
}

static void relay_maybe_free(struct relay *l)
{
        struct proxy *p = l->proxy;

        if (l->x || l->call || l->dialling || l->timing)
                return;
        if (l->prev)
                l->prev->next = l->next;
        else
                p->relays = l->next;
        if (l->next)
                l->next->prev = l->prev;
        free(l->host);
        free(l);
        proxy_maybe_free(p);
}

static void refuse(struct http_exchange *x, enum proxy_refusal what, const struct proxy_target *target, const char *path)
{
        CLEANUP_BUF struct buf body = {};
        struct http_headers headers = {};
        const char *type;
        int status = proxy_refusal_body(what, http_exchange_request(x), target, path, &body, &type);

        http_headers_add(&headers, "Content-Type", type);
        http_headers_add(&headers, "Access-Control-Allow-Origin", "*"); /* scripts in browsers must see the status */
        http_exchange_start(x, status, &headers, (int64_t)body.len);
        http_exchange_write(x, body.data, body.len);
        http_exchange_end(x);
        http_headers_free(&headers);
}

/* The guest side failed. A response that has begun can only be broken off. */
static void relay_fail(struct relay *l)
{
        struct sandbox_route route;
        enum proxy_refusal what = PROXY_NOT_FOUND;

        if (!l->x)
                return;
        if (l->started) {
                http_exchange_abort(l->x);
                return;
        }
        l->started = true;
        if (sandbox_route(l->proxy->manager, l->target.id, &route) == 0)
                what = route.nothing_started ? PROXY_NOTHING_STARTED : PROXY_PORT_CLOSED;
        else if (route.resumable)
                what = l->dial_result == -EDQUOT ? PROXY_RESUME_LIMIT : PROXY_RESUME_FAILED;
        refuse(l->x, what, &l->target, NULL);
}

static void call_on_response(struct http_call *c, const struct http_response *r, void *userdata)
{
        struct relay *l = userdata;
        struct http_headers headers = {};

        (void)c;
        if (!l->x || l->started)
                return;
        l->started = true;
        proxy_response_headers(r, &headers);
        if (r->status == 101) {
                CLEANUP_BUF struct buf head = {};

                buf_adds(&head, "HTTP/1.1 101 Switching Protocols\r\n");
                for (size_t i = 0; i < headers.count; i++)
                        buf_addf(&head, "%s: %s\r\n", headers.items[i].name, headers.items[i].value);
                buf_adds(&head, "\r\n");
                l->tunnel = true;
                http_exchange_takeover(l->x, head.data, head.len);
        } else {
                http_exchange_start(l->x, r->status, &headers, r->content_length);
        }
        http_headers_free(&headers);
}

static void call_on_data(struct http_call *c, const void *data, size_t len, void *userdata)
{
        struct relay *l = userdata;

        if (l->x && http_exchange_write(l->x, data, len) > HTTP_HIGH_WATER)
                http_call_pause(c);
}

static void call_on_end(struct http_call *c, void *userdata)
{
        struct relay *l = userdata;

        (void)c;
        if (l->x)
                http_exchange_end(l->x);
}

static void call_on_drain(struct http_call *c, void *userdata)
{
        struct relay *l = userdata;

        (void)c;
        if (l->x)
                http_exchange_resume(l->x);
}

static bool has_body(const struct http_request *r)
{
        return r->chunked || r->content_length > 0;
}

static void call_on_kept(struct http_call *c, int fd, void *userdata)
{
        struct relay *l = userdata;

        (void)c;
        if (l->life)
                proxy_pool_add(l->proxy->pool, &l->target, l->life, fd, uv_now(l->proxy->loop));
        else
                close(fd);
}

static void dial(struct relay *l);

static void call_on_close(struct http_call *c, int status, void *userdata)
{
        struct relay *l = userdata;

        (void)c;
        l->call = NULL;
        if (status < 0 && l->reused && !l->started && l->x && !has_body(http_exchange_request(l->x))) {
                l->reused = false; /* its guest closed it as we took it: nothing was answered, and the request can be sent again */
                dial(l);
        } else if (status < 0) {
                relay_fail(l);
        }
        relay_maybe_free(l);
}

static const struct http_call_ops call_ops = {
        .on_response = call_on_response,
        .on_data = call_on_data,
        .on_end = call_on_end,
        .on_drain = call_on_drain,
        .on_kept = call_on_kept,
        .on_close = call_on_close,
};

static void exchange_on_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        struct relay *l = userdata;

        if (l->call && http_call_write(l->call, data, len) > HTTP_HIGH_WATER)
                http_exchange_pause(x);
}

static void exchange_on_end(struct http_exchange *x, void *userdata)
{
        struct relay *l = userdata;

        (void)x;
        l->body_ended = true;
        if (l->call)
                http_call_end(l->call);
}

static void exchange_on_drain(struct http_exchange *x, void *userdata)
{
        struct relay *l = userdata;

        (void)x;
        if (l->call)
                http_call_resume(l->call);
}

static void on_timer_closed(uv_handle_t *h)
{
        struct relay *l = h->data;

        l->timing = false;
        relay_maybe_free(l);
}

static void timer_end(struct relay *l)
{
        if (l->timing && !uv_is_closing((uv_handle_t *)&l->timer))
                uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}

static void exchange_on_close(struct http_exchange *x, bool aborted, void *userdata)
{
        struct relay *l = userdata;

        (void)x;
        l->x = NULL;
        /* Also after a complete response: a guest that goes on reading the request body has no more to say. */
        if (l->call && (aborted || !l->tunnel))
                http_call_abort(l->call);
        timer_end(l);
        relay_maybe_free(l);
}

static const struct http_exchange_ops exchange_ops = {
        .on_data = exchange_on_data,
        .on_end = exchange_on_end,
        .on_drain = exchange_on_drain,
        .on_close = exchange_on_close,
};

static void start_call(struct relay *l)
{
        const struct http_request *r = http_exchange_request(l->x);
        struct http_headers headers = {};

        proxy_request_headers(r, l->host, &headers);
        if (http_call_new(l->proxy->loop, STEAL_FD(l->fd), r->method, r->target, &headers, r->chunked, &call_ops, l, &l->call,
                          NULL) < 0)
                relay_fail(l);
        else if (l->body_ended)
                http_call_end(l->call); /* a second try */
        else
                http_exchange_resume(l->x);
        http_headers_free(&headers);
}

static void on_retry(uv_timer_t *timer)
{
        struct relay *l = timer->data;

        dial(l);
}

static void retry_later(struct relay *l)
{
        if (!l->timing) {
                uv_timer_init(l->proxy->loop, &l->timer);
                l->timer.data = l;
                l->timing = true;
        }
        uv_timer_start(&l->timer, on_retry, (uint64_t)l->attempts * DIAL_STEP_MS, 0);
}

static void on_dial(uv_work_t *work)
{
        struct relay *l = work->data;

        l->dial_result = sandbox_dial(l->proxy->manager, l->target.id, l->target.port, &l->fd);
}

static void on_dialled(uv_work_t *work, int status)
{
        struct relay *l = work->data;

        l->dialling = false;
        if (status < 0)
                l->dial_result = status;
        if (!l->x) {
                if (l->dial_result == 0)
                        close(l->fd);
        } else if (l->dial_result == 0) {
                timer_end(l);
                start_call(l);
        } else if (l->dial_result != -ENOENT && l->dial_result != -EDQUOT && l->attempts < DIAL_ATTEMPTS) {
                retry_later(l);
        } else {
                timer_end(l);
                relay_fail(l);
        }
        relay_maybe_free(l);
}

static void dial(struct relay *l)
{
        l->attempts++;
        l->work.data = l;
        l->dialling = uv_queue_work(l->proxy->loop, &l->work, on_dial, on_dialled) == 0;
        if (!l->dialling)
                relay_fail(l);
}

static bool is_current(void *userdata, const char *id, uint64_t life)
{
        const struct proxy *p = userdata;
        struct sandbox_route route;

        return sandbox_route(p->manager, id, &route) == 0 && route.life == life;
}

static void on_watch(uv_timer_t *timer)
{
        struct proxy *p = timer->data;
        struct sandbox_route route;
        bool kept = proxy_pool_sweep(p->pool, uv_now(p->loop), is_current, p);

        for (struct relay *l = p->relays; l; l = l->next)
                if (l->call && sandbox_route(p->manager, l->target.id, &route) < 0)
                        http_call_abort(l->call); /* its on_close resets the client */
        if (!p->relays && !kept)
                uv_timer_stop(&p->watch);
}

/* May the request be sent again when a kept connection turns out to be closed? The agent closes none within the time that one is kept,
 * so that there anything may go over one but an upgrade, which takes the connection with it. */
static bool may_reuse(const struct http_request *r, const struct proxy_target *target)
{
        bool safe = streq(r->method, "GET") || streq(r->method, "HEAD") || streq(r->method, "OPTIONS");

        if (r->upgrade)
                return false;
        return target->port == PROXY_AGENT_PORT || (safe && !has_body(r));
}

static void relay_new(struct proxy *p, struct http_exchange *x, const struct proxy_target *target, const struct sandbox_route *route)
{
        struct relay *l = xcalloc(1, sizeof(*l));

        l->proxy = p;
        l->x = x;
        l->target = *target;
        l->life = route->running ? route->life : 0;
        l->fd = -1;
        if (*route->mask_request_host && target->port != PROXY_AGENT_PORT)
                l->host = proxy_masked_host(route->mask_request_host, target->port);
        l->next = p->relays;
        if (l->next)
                l->next->prev = l;
        p->relays = l;
        if (!uv_is_active((uv_handle_t *)&p->watch))
                uv_timer_start(&p->watch, on_watch, WATCH_INTERVAL_MS, WATCH_INTERVAL_MS);
        http_exchange_accept(x, &exchange_ops, l, true);
        if (l->life && may_reuse(http_exchange_request(x), target))
                l->fd = proxy_pool_take(p->pool, target, l->life, uv_now(p->loop));
        l->reused = l->fd >= 0;
        if (l->reused)
                start_call(l);
        else
                dial(l);
}

static const struct http_exchange_ops answer_ops;

static void refuse_now(struct http_exchange *x, enum proxy_refusal what, const struct proxy_target *target, const char *path)
{
        http_exchange_accept(x, &answer_ops, NULL, true);
        refuse(x, what, target, path);
}

static int by_signature(struct proxy *p, const struct http_request *r, const char *operation, char *ret_id)
{
        bool malformed = false;
        CLEANUP_FREE char *path = query_get(r->query, "path", &malformed);
        CLEANUP_FREE char *user = query_get(r->query, "username", &malformed);
        CLEANUP_FREE char *expiration = query_get(r->query, "signature_expiration", &malformed);
        CLEANUP_FREE char *signature = query_get(r->query, "signature", &malformed);

        if (malformed || !signature)
                return -EINVAL;
        return sandbox_by_signature(p->manager, path ? path : "", operation, user ? user : "", expiration, signature, ret_id);
}

/* GET is signed for reading, POST for writing; a browser's preflight for either. */
static const char *find_signed(struct proxy *p, const struct http_request *r, struct proxy_target *ret)
{
        bool post = streq(r->method, "POST"), get = streq(r->method, "GET") || streq(r->method, "HEAD");

        ret->port = PROXY_AGENT_PORT;
        if (!post && by_signature(p, r, "read", ret->id) == 0)
                return NULL;
        if (!get && by_signature(p, r, "write", ret->id) == 0)
                return NULL;
        return "the signature fits no running sandbox; the URL is malformed, or its sandbox has ended";
}

static bool token_refused(const struct http_request *r, const struct proxy_target *t, const struct sandbox_route *route,
                          enum proxy_refusal *ret)
{
        const char *token = http_headers_get(&r->headers, "e2b-traffic-access-token");

        if (route->public_traffic || t->port == PROXY_AGENT_PORT) /* the agent has a token of its own */
                return false;
        if (token && *token && str_equal_constant_time(token, route->traffic_token))
                return false;
        *ret = token && *token ? PROXY_TOKEN_WRONG : PROXY_TOKEN_MISSING;
        return true;
}

/* A paused sandbox is resumed only for who may use what he asks for (sandbox-api 21.1). */
static bool may_resume(struct proxy *p, const struct http_request *r, const struct proxy_target *t, const struct sandbox_route *route)
{
        enum proxy_refusal ignored;
        const char *token = http_headers_get(&r->headers, "x-access-token");
        struct proxy_target signed_ = {};

        if (t->port != PROXY_AGENT_PORT)
                return !token_refused(r, t, route, &ignored);
        if (route->envd_token[0] == '\0' || (token && str_equal_constant_time(token, route->envd_token)))
                return true;
        return proxy_target_signed(r) && find_signed(p, r, &signed_) == NULL && streq(signed_.id, t->id);
}

static void bad_request(struct http_exchange *x, const char *why)
{
        CLEANUP_FREE char *body = xasprintf("%s\n", why);

        http_exchange_accept(x, &answer_ops, NULL, true);
        http_exchange_reply(x, 400, "text/plain; charset=utf-8", body, strlen(body));
}

bool proxy_wants(const struct http_request *r)
{
        return proxy_target_named(r) || proxy_target_signed(r);
}

void proxy_handle(struct proxy *p, struct http_exchange *x)
{
        const struct http_request *r = http_exchange_request(x);
        struct proxy_target target = {};
        struct sandbox_route route = {};
        enum proxy_refusal refusal;
        const char *why, *reserved;

        why = proxy_target_named(r) ? proxy_target_parse(r, &target) : find_signed(p, r, &target);
        if (why) {
                bad_request(x, why);
                return;
        }
        reserved = target.port == PROXY_AGENT_PORT ? proxy_reserved_path(r->path) : NULL;
        if (reserved)
                refuse_now(x, PROXY_RESERVED, &target, reserved);
        else if (sandbox_route(p->manager, target.id, &route) < 0 && !route.resumable)
                refuse_now(x, PROXY_NOT_FOUND, &target, NULL);
        else if (route.resumable && !may_resume(p, r, &target, &route))
                refuse_now(x, PROXY_RESUME_DENIED, &target, NULL);
        else if (!route.resumable && token_refused(r, &target, &route, &refusal))
                refuse_now(x, refusal, &target, NULL);
        else
                relay_new(p, x, &target, &route);
}

int proxy_new(uv_loop_t *loop, struct sandbox_manager *m, struct proxy **ret)
{
        struct proxy *p = xcalloc(1, sizeof(*p));

        p->loop = loop;
        p->manager = m;
        uv_timer_init(loop, &p->watch);
        p->watch.data = p;
        p->pool = proxy_pool_new();
        *ret = p;
        return 0;
}

static void on_watch_closed(uv_handle_t *h)
{
        struct proxy *p = h->data;

        p->watch_closed = true;
        proxy_maybe_free(p);
}

void proxy_free(struct proxy *p)
{
        if (!p)
                return;
        p->freeing = true;
        uv_close((uv_handle_t *)&p->watch, on_watch_closed);
}
