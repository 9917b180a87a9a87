/* Theory of operation: the request body is collected up to RPC_MESSAGE_MAX, then decoded by kind. Errors of
 * stream calls are envelopes in a 200 response, whatever their reason (envd.md 1.5); errors of unary calls are
 * HTTP statuses. A call is freed when its exchange closed and no pool work holds it any more.
 */
#include "rpc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "envelope.h"
#include "loop.h"
#include "protojson.h"
#include "rpc-methods.h"
#include "state.h"
#include "web.h"

#define KEEPALIVE_DEFAULT_S 90
#define TIMEOUT_DIGITS_MAX 10

static const struct {
        const char *name;
        int status;
} codes[] = {
        [RPC_CANCELED] = { "canceled", 499 },
        [RPC_UNKNOWN] = { "unknown", 500 },
        [RPC_INVALID_ARGUMENT] = { "invalid_argument", 400 },
        [RPC_DEADLINE_EXCEEDED] = { "deadline_exceeded", 504 },
        [RPC_NOT_FOUND] = { "not_found", 404 },
        [RPC_ALREADY_EXISTS] = { "already_exists", 409 },
        [RPC_PERMISSION_DENIED] = { "permission_denied", 403 },
        [RPC_RESOURCE_EXHAUSTED] = { "resource_exhausted", 429 },
        [RPC_FAILED_PRECONDITION] = { "failed_precondition", 400 },
        [RPC_ABORTED] = { "aborted", 409 },
        [RPC_OUT_OF_RANGE] = { "out_of_range", 400 },
        [RPC_UNIMPLEMENTED] = { "unimplemented", 501 },
        [RPC_INTERNAL] = { "internal", 500 },
        [RPC_UNAVAILABLE] = { "unavailable", 503 },
        [RPC_DATA_LOSS] = { "data_loss", 500 },
        [RPC_UNAUTHENTICATED] = { "unauthenticated", 401 },
};

static bool is_stream(const struct rpc *c)
{
        return c->method->kind != RPC_UNARY;
}

static void release(struct rpc *c)
{
        if (c->exchange || c->holds > 0)
                return;
        user_free(&c->user);
        buf_free(&c->body);
        free(c);
}

static void stop_timers(struct rpc *c)
{
        c->keepalive = timer_free(c->keepalive);
        c->deadline = timer_free(c->deadline);
}

static void start_response(struct rpc *c, int status, int64_t length)
{
        struct http_headers headers = web_headers(c->exchange);

        http_headers_add(&headers, "Content-Type", is_stream(c) ? "application/connect+json" : "application/json");
        if (c->legacy)
                http_headers_add(&headers, "X-E2B-Legacy-SDK", "true");
        http_exchange_start(c->exchange, status, &headers, length);
        http_headers_free(&headers);
        c->started = true;
}

static size_t send_envelope(struct rpc *c, uint8_t flags, const char *json, size_t len)
{
        CLEANUP_BUF struct buf b = {};

        if (!c->exchange)
                return 0;
        if (!c->started)
                start_response(c, 200, -1);
        envelope_add(&b, flags, json, len);
        return http_exchange_write(c->exchange, b.data, b.len);
}

static void finish_stream(struct rpc *c, const char *trailer)
{
        if (c->finished)
                return;
        c->finished = true;
        stop_timers(c);
        if (!c->exchange)
                return;
        send_envelope(c, ENVELOPE_END, trailer, strlen(trailer));
        http_exchange_end(c->exchange);
}

void rpc_reply(struct rpc *c, const char *json)
{
        size_t len = strlen(json);

        if (c->finished)
                return;
        c->finished = true;
        stop_timers(c);
        if (!c->exchange)
                return;
        start_response(c, 200, (int64_t)len);
        http_exchange_write(c->exchange, json, len);
        http_exchange_end(c->exchange);
}

size_t rpc_send(struct rpc *c, const char *json, size_t len)
{
        if (c->finished)
                return 0;
        if (c->keepalive)
                timer_again(c->keepalive);
        return send_envelope(c, 0, json, len);
}

void rpc_end(struct rpc *c)
{
        finish_stream(c, "{}");
}

static void fail_text(struct rpc *c, enum rpc_code code, const char *message)
{
        CLEANUP_JSON json_t *error = json_object();
        CLEANUP_FREE char *clean = utf8_scrub(message, strlen(message));
        CLEANUP_FREE char *text = NULL;

        json_object_set_new(error, "code", json_string(codes[code].name));
        if (*clean)
                json_object_set_new(error, "message", json_string(clean));
        text = json_text(error);
        if (is_stream(c)) {
                CLEANUP_FREE char *trailer = xasprintf("{\"error\":%s}", text);

                finish_stream(c, trailer);
                return;
        }
        if (c->finished)
                return;
        c->finished = true;
        stop_timers(c);
        if (!c->exchange)
                return;
        start_response(c, codes[code].status, (int64_t)strlen(text));
        http_exchange_write(c->exchange, text, strlen(text));
        http_exchange_end(c->exchange);
}

void rpc_fail(struct rpc *c, enum rpc_code code, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        fail_text(c, code, buf_str(&b));
}

void rpc_fail_error(struct rpc *c, const struct error *err)
{
        fail_text(c, err->kind == ERROR_INVALID ? RPC_INVALID_ARGUMENT : err->kind == ERROR_NOT_FOUND ? RPC_NOT_FOUND
                                                                                                       : RPC_INTERNAL,
                  err->message);
}

static void on_keepalive(void *data)
{
        static const char process[] = "{\"event\":{\"keepalive\":{}}}", watch[] = "{\"keepalive\":{}}";
        struct rpc *c = data;
        const char *text = str_starts(c->method->path, "/process.") ? process : watch;

        /* A peer that does not read must not collect pings without end. */
        if (c->exchange && http_exchange_queued(c->exchange) < HTTP_HIGH_WATER)
                rpc_send(c, text, strlen(text));
}

static void on_deadline(void *data)
{
        rpc_fail(data, RPC_DEADLINE_EXCEEDED, "context deadline exceeded");
}

static void start_timers(struct rpc *c)
{
        if (c->method->kind == RPC_SERVER_STREAM)
                c->keepalive = timer_start(c->keepalive_ms, c->keepalive_ms, on_keepalive, c);
        if (c->deadline_ms >= 0)
                c->deadline = timer_start((uint64_t)c->deadline_ms, 0, on_deadline, c);
}

static void dispatch(struct rpc *c, const char *data, size_t len)
{
        CLEANUP_JSON json_t *request = NULL;
        struct error err;

        if (is_stream(c) && len == 0)
                data = "{}", len = 2;
        if (proto_parse(data, len, &request, &err) < 0) {
                rpc_fail_error(c, &err);
                return;
        }
        if (c->method->kind == RPC_CLIENT_STREAM)
                c->method->message(c, request);
        else
                c->method->handle(c, request);
}

/* The envelope at the start of the body: 1 = whole, 0 = not complete, -1 = answered with an error. */
static int next_envelope(struct rpc *c, struct envelope *ret)
{
        int r = envelope_read(&c->body, RPC_MESSAGE_MAX, ret);

        if (r < 0)
                rpc_fail(c, RPC_RESOURCE_EXHAUSTED, "message of %zu bytes is larger than %d", ret->len, RPC_MESSAGE_MAX);
        else if (ret->flags & ENVELOPE_COMPRESSED)
                rpc_fail(c, RPC_INTERNAL, "protocol error: sent compressed message without compression support");
        else
                return r;
        return -1;
}

static void finish_server_stream(struct rpc *c)
{
        struct envelope e;
        int r;

        if (c->body.len == 0) {
                rpc_fail(c, RPC_UNIMPLEMENTED, "unary request has zero messages");
                return;
        }
        r = next_envelope(c, &e);
        if (r < 0)
                return;
        if (r == 0)
                rpc_fail(c, RPC_INVALID_ARGUMENT, "protocol error: promised message is incomplete: unexpected end");
        else if (c->body.len > ENVELOPE_HEAD + e.len)
                rpc_fail(c, RPC_UNIMPLEMENTED, "unary request has multiple messages");
        else {
                start_timers(c);
                dispatch(c, e.payload, e.len);
        }
}

static void take_client_messages(struct rpc *c)
{
        struct envelope e;

        while (!c->finished && next_envelope(c, &e) > 0) {
                CLEANUP_FREE char *copy = xmemdup(e.payload, e.len + 1);

                buf_consume(&c->body, ENVELOPE_HEAD + e.len);
                dispatch(c, copy, e.len);
        }
}

static void on_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        struct rpc *c = userdata;

        (void)x;
        if (c->finished)
                return;
        if (c->body.len + len > RPC_MESSAGE_MAX + ENVELOPE_HEAD) {
                rpc_fail(c, RPC_RESOURCE_EXHAUSTED, "message is larger than %d bytes", RPC_MESSAGE_MAX);
                return;
        }
        buf_add(&c->body, data, len);
        if (c->method->kind == RPC_CLIENT_STREAM)
                take_client_messages(c);
}

static void on_end(struct http_exchange *x, void *userdata)
{
        struct rpc *c = userdata;

        (void)x;
        if (c->finished)
                return;
        switch (c->method->kind) {
        case RPC_UNARY:
                start_timers(c);
                dispatch(c, c->body.data, c->body.len);
                break;
        case RPC_SERVER_STREAM:
                finish_server_stream(c);
                break;
        case RPC_CLIENT_STREAM:
                if (c->body.len > 0)
                        rpc_fail(c, RPC_INVALID_ARGUMENT, "protocol error: incomplete envelope: unexpected end");
                else
                        c->method->handle(c, NULL);
                break;
        }
        buf_clear(&c->body);
}

static void on_drain(struct http_exchange *x, void *userdata)
{
        struct rpc *c = userdata;

        (void)x;
        if (c->on_drain)
                c->on_drain(c);
}

static void on_close(struct http_exchange *x, bool aborted, void *userdata)
{
        struct rpc *c = userdata;

        (void)x, (void)aborted;
        c->exchange = NULL;
        c->finished = true;
        stop_timers(c);
        if (c->on_close)
                c->on_close(c);
        release(c);
}

static const struct http_exchange_ops ops = {
        .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_close = on_close,
};

/* The media type, lower-cased, without parameters; charset=utf-8 is the only one that may be there. */
static bool content_type_is(const struct http_request *r, const char *wanted)
{
        const char *value = http_headers_get(&r->headers, "Content-Type");
        size_t len = strlen(wanted);

        if (!value || strncasecmp(value, wanted, len) != 0)
                return false;
        value += len;
        value += strspn(value, " ");
        if (*value == 0)
                return true;
        if (*value++ != ';')
                return false;
        value += strspn(value, " ");
        return strcasecmp(value, "charset=utf-8") == 0 || strcasecmp(value, "charset=\"utf-8\"") == 0;
}

/* Protocol version, timeout, compression; false when the call was refused. */
static bool check_headers(struct rpc *c)
{
        const struct http_headers *h = &http_exchange_request(c->exchange)->headers;
        const char *version = http_headers_get(h, "Connect-Protocol-Version");
        const char *timeout = http_headers_get(h, "Connect-Timeout-Ms");
        const char *keepalive = http_headers_get(h, "Keepalive-Ping-Interval");
        const char *encoding = http_headers_get(h, is_stream(c) ? "Connect-Content-Encoding" : "Content-Encoding");
        uint64_t n;

        c->deadline_ms = -1;
        c->keepalive_ms = KEEPALIVE_DEFAULT_S * 1000;
        if (keepalive && str_to_u64(keepalive, UINT32_MAX, &n) && n > 0)
                c->keepalive_ms = n * 1000;
        if (encoding && *encoding && strcasecmp(encoding, "identity") != 0) {
                rpc_fail(c, RPC_UNIMPLEMENTED, "unknown compression \"%s\": supported encodings are identity", encoding);
                return false;
        }
        if (version && !streq(version, "1")) {
                rpc_fail(c, RPC_INVALID_ARGUMENT, "connect-protocol-version must be \"1\": got \"%s\"", version);
                return false;
        }
        if (timeout && (strlen(timeout) > TIMEOUT_DIGITS_MAX || !str_to_u64(timeout, UINT64_MAX, &n))) {
                rpc_fail(c, RPC_INVALID_ARGUMENT, "parse timeout: \"%s\" is no number of at most %d digits", timeout,
                         TIMEOUT_DIGITS_MAX);
                return false;
        }
        if (timeout)
                c->deadline_ms = (int64_t)n;
        return true;
}

static bool find_user(struct rpc *c)
{
        CLEANUP_FREE char *name = NULL;
        int r = web_basic_user(c->exchange, &c->user, &name);

        if (r > 0)
                return true;
        if (r < 0) {
                rpc_fail(c, RPC_UNAUTHENTICATED, "invalid username: '%s'", name);
                return false;
        }
        free(name);
        name = state_default_user();
        if (user_lookup(name, &c->user) == 0)
                return true;
        rpc_fail(c, RPC_UNAUTHENTICATED, "invalid default user: '%s'", name);
        return false;
}

static void begin(struct http_exchange *x, const struct rpc_method *method)
{
        struct rpc *c = xcalloc(1, sizeof(*c));
        const char *agent = http_headers_get(&http_exchange_request(x)->headers, "User-Agent");

        c->method = method;
        c->exchange = x;
        c->legacy = agent && streq(agent, "connect-python") && str_starts(method->path, "/filesystem.");
        http_exchange_accept(x, &ops, c, false);
        if (find_user(c))
                check_headers(c);
}

static void refuse_type(struct http_exchange *x, const struct rpc_method *method)
{
        struct http_headers headers = web_headers(x);

        http_headers_add(&headers, "Accept-Post",
                         method->kind == RPC_UNARY ? "application/json" : "application/connect+json");
        web_accept_plain(x);
        http_exchange_start(x, 415, &headers, 0);
        http_exchange_end(x);
        http_headers_free(&headers);
}

static void refuse_method(struct http_exchange *x)
{
        struct http_headers headers = web_headers(x);

        http_headers_add(&headers, "Allow", "POST");
        web_accept_plain(x);
        http_exchange_start(x, 405, &headers, 0);
        http_exchange_end(x);
        http_headers_free(&headers);
}

static const struct rpc_method *find_method(const struct rpc_method *list, const char *path)
{
        for (; list->path; list++)
                if (streq(list->path, path))
                        return list;
        return NULL;
}

bool rpc_route(struct http_exchange *x)
{
        const struct http_request *r = http_exchange_request(x);
        const struct rpc_method *m = find_method(process_methods, r->path);

        if (!m)
                m = find_method(filesystem_methods, r->path);
        if (!m)
                return false;
        if (!streq(r->method, "POST"))
                refuse_method(x);
        else if (!content_type_is(r, m->kind == RPC_UNARY ? "application/json" : "application/connect+json"))
                refuse_type(x, m);
        else
                begin(x, m);
        return true;
}

struct pool_job {
        uv_work_t request;
        struct rpc_work work;
};

static void pool_run(uv_work_t *request)
{
        struct pool_job *job = request->data;

        job->work.work(&job->work);
}

static void pool_done(uv_work_t *request, int status)
{
        struct pool_job *job = request->data;
        struct rpc *c = job->work.call;

        (void)status;
        c->holds--;
        if (!c->exchange)
                release(c);
        else if (job->work.code)
                fail_text(c, job->work.code, job->work.err.message);
        else
                rpc_reply(c, buf_str(&job->work.result));
        json_decref(job->work.request);
        buf_free(&job->work.result);
        free(job);
}

void rpc_in_pool(struct rpc *c, json_t *request, void (*work)(struct rpc_work *w))
{
        struct pool_job *job = xcalloc(1, sizeof(*job));

        job->request.data = job;
        job->work.call = c;
        job->work.request = json_incref(request);
        job->work.work = work;
        c->holds++;
        uv_queue_work(agent_loop, &job->request, pool_run, pool_done);
}
