/* Theory of operation: one handler for every request head. The order of checks is envd.md 1.8: CORS preflight,
 * access token, Basic user, router. Each endpoint accepts the exchange itself.
 */
#include "web.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "base64.h"
#include "endpoints.h"
#include "loop.h"
#include "rpc.h"
#include "state.h"

#define EXPOSED_HEADERS "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, Cache-Control, X-Content-Type-Options"
#define UNAUTHORISED "unauthorized access, please provide a valid access token or method signing if supported"

static void closed(struct http_exchange *x, bool aborted, void *userdata)
{
        (void)x, (void)aborted, (void)userdata;
}

static const struct http_exchange_ops plain_ops = { .on_close = closed };

void web_accept_plain(struct http_exchange *x)
{
        http_exchange_accept(x, &plain_ops, NULL, false);
}

struct http_headers web_headers(const struct http_exchange *x)
{
        struct http_headers headers = {};

        if (http_headers_get(&http_exchange_request(x)->headers, "Origin")) {
                http_headers_add(&headers, "Access-Control-Allow-Origin", "*");
                http_headers_add(&headers, "Access-Control-Expose-Headers", EXPOSED_HEADERS);
                http_headers_add(&headers, "Vary", "Origin");
        }
        return headers;
}

static void reply_with(struct http_exchange *x, int status, struct http_headers *headers, const char *content_type,
                       const void *body, size_t len)
{
        if (content_type)
                http_headers_add(headers, "Content-Type", content_type);
        http_exchange_start(x, status, headers, (int64_t)len);
        if (len > 0)
                http_exchange_write(x, body, len);
        http_exchange_end(x);
        http_headers_free(headers);
}

void web_reply(struct http_exchange *x, int status, const char *content_type, const void *body, size_t len)
{
        struct http_headers headers = web_headers(x);

        reply_with(x, status, &headers, content_type, body, len);
}

static void error_text(struct http_exchange *x, int status, const char *message)
{
        struct http_headers headers = web_headers(x);
        CLEANUP_FREE char *clean = utf8_scrub(message, strlen(message));
        CLEANUP_JSON json_t *string = json_string(clean);
        CLEANUP_FREE char *quoted = json_text(string);
        CLEANUP_FREE char *body = xasprintf("{\"code\":%d,\"message\":%s}\n", status, quoted);

        http_headers_add(&headers, "X-Content-Type-Options", "nosniff");
        reply_with(x, status, &headers, "application/json; charset=utf-8", body, strlen(body));
}

void web_error(struct http_exchange *x, int status, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        error_text(x, status, buf_str(&b));
}

void web_refuse(struct http_exchange *x, int status, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        web_accept_plain(x);
        error_text(x, status, buf_str(&b));
}

/* Collecting a small body. */
struct collector {
        struct buf body;
        size_t limit;
        web_body done;
        bool answered;
};

static void collect_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        struct collector *c = userdata;

        if (c->answered)
                return;
        if (c->body.len + len > c->limit) {
                c->answered = true;
                web_error(x, 413, "the request body is larger than %zu bytes", c->limit);
                return;
        }
        buf_add(&c->body, data, len);
}

static void collect_end(struct http_exchange *x, void *userdata)
{
        struct collector *c = userdata;

        if (!c->answered)
                c->done(x, buf_str(&c->body), c->body.len);
}

static void collect_close(struct http_exchange *x, bool aborted, void *userdata)
{
        struct collector *c = userdata;

        (void)x, (void)aborted;
        buf_free(&c->body);
        free(c);
}

void web_collect(struct http_exchange *x, size_t limit, web_body done)
{
        static const struct http_exchange_ops ops = {
                .on_data = collect_data, .on_end = collect_end, .on_close = collect_close,
        };
        struct collector *c = xcalloc(1, sizeof(*c));

        c->limit = limit;
        c->done = done;
        http_exchange_accept(x, &ops, c, false);
}

int web_basic_user(const struct http_exchange *x, struct user *ret, char **ret_name)
{
        const char *value = http_headers_get(&http_exchange_request(x)->headers, "Authorization");
        CLEANUP_BUF struct buf plain = {};
        char *colon;

        *ret_name = NULL;
        if (!value || strncasecmp(value, "Basic ", 6) != 0)
                return 0;
        value += 6;
        if (!base64_decode(value, strlen(value), &plain) || !plain.data || strlen(plain.data) != plain.len)
                return 0;
        colon = strchr(plain.data, ':');
        if (!colon)
                return 0;
        *colon = 0;
        *ret_name = xstrdup(plain.data);
        return user_lookup(*ret_name, ret) < 0 ? -ENOENT : 1;
}

static void preflight(struct http_exchange *x)
{
        static const char *const allowed[] = { "HEAD", "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS" };
        const struct http_headers *h = &http_exchange_request(x)->headers;
        const char *method = http_headers_get(h, "Access-Control-Request-Method");
        const char *headers = http_headers_get(h, "Access-Control-Request-Headers");
        struct http_headers out = {};
        bool known = false;

        for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
                known = known || strcasecmp(allowed[i], method) == 0;
        http_headers_add(&out, "Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers");
        if (http_headers_get(h, "Origin") && known) {
                http_headers_add(&out, "Access-Control-Allow-Origin", "*");
                http_headers_add(&out, "Access-Control-Allow-Methods", method);
                if (headers)
                        http_headers_add(&out, "Access-Control-Allow-Headers", headers);
                http_headers_add(&out, "Access-Control-Max-Age", "7200");
        }
        web_accept_plain(x);
        http_exchange_start(x, 204, &out, 0);
        http_exchange_end(x);
        http_headers_free(&out);
}

static bool needs_token(const struct http_request *r)
{
        static const char *const open[][2] = {
                { "GET", "/health" }, { "GET", "/files" }, { "POST", "/files" }, { "POST", "/init" },
        };

        for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
                if (streq(r->method, open[i][0]) && streq(r->path, open[i][1]))
                        return false;
        return true;
}

static const struct endpoint *find_endpoint(const char *path, const char *method, bool *ret_known)
{
        *ret_known = false;
        for (const struct endpoint *e = endpoints; e->path; e++) {
                if (!streq(e->path, path))
                        continue;
                *ret_known = true;
                if (streq(e->method, method))
                        return e;
        }
        return NULL;
}

static void route(struct http_exchange *x)
{
        const struct http_request *r = http_exchange_request(x);
        bool known;
        const struct endpoint *e = find_endpoint(r->path, r->method, &known);

        if (e) {
                e->handle(x);
                return;
        }
        web_accept_plain(x);
        if (known)
                web_reply(x, 405, NULL, NULL, 0);
        else
                web_reply(x, 404, "text/plain; charset=utf-8", "404 page not found\n", 19);
}

static void check_basic_and_route(struct http_exchange *x)
{
        CLEANUP_FREE char *name = NULL;
        struct user user = {};
        int r = web_basic_user(x, &user, &name);

        user_free(&user);
        if (r >= 0) {
                route(x);
                return;
        }
        CLEANUP_FREE char *message = xasprintf("invalid username: '%s'", name);
        CLEANUP_FREE char *clean = utf8_scrub(message, strlen(message));
        CLEANUP_JSON json_t *body = json_pack("{s:s,s:s}", "code", "unauthenticated", "message", clean);
        CLEANUP_FREE char *text = json_text(body);

        web_accept_plain(x);
        web_reply(x, 401, "application/json", text, strlen(text));
}

static void handle(struct http_exchange *x, void *data)
{
        const struct http_request *r = http_exchange_request(x);

        (void)data;
        if (streq(r->method, "OPTIONS") && http_headers_get(&r->headers, "Access-Control-Request-Method"))
                preflight(x);
        else if (needs_token(r) && !state_token_matches(http_headers_get(&r->headers, "X-Access-Token")))
                web_refuse(x, 401, UNAUTHORISED);
        else if (!rpc_route(x))
                check_basic_and_route(x);
}

int web_start(struct error *err)
{
        static struct http_server *server;
        const struct http_server_options options = { .handler = handle };

        return http_server_new(agent_loop, agent_options.listen, agent_options.port, &options, &server, err);
}
