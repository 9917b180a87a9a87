/* Reading targets. Upstream honours the E2b-Sandbox headers on localhost, IP literals and sandbox.<domain> only; a
 * self-hosted server may be known by any name (E2B_SANDBOX_URL), so here they count wherever the host's first label is
 * not itself of the form <port>-<id>.
 */
#include "sandbox/proxy-target.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"

static const char *id_header(const struct http_request *r)
{
        return http_headers_get(&r->headers, "e2b-sandbox-id");
}

static const char *port_header(const struct http_request *r)
{
        return http_headers_get(&r->headers, "e2b-sandbox-port");
}

/* The host without its port; the caller frees. */
static char *host_name(const struct http_request *r)
{
        const char *h = http_headers_get(&r->headers, "host");

        if (!h)
                return xstrdup("");
        if (*h == '[')
                return xstrndup(h + 1, strcspn(h + 1, "]"));
        return xstrndup(h, strcspn(h, ":"));
}

static bool host_is_neutral(const char *host)
{
        struct in6_addr a;

        return strcasecmp(host, "localhost") == 0 || strncasecmp(host, "sandbox.", 8) == 0 || inet_pton(AF_INET, host, &a) == 1 ||
               inet_pton(AF_INET6, host, &a) == 1;
}

/* <digits>-<something>.<something>: an API host such as my-api.example.com is none. */
static bool host_names_sandbox(const char *host)
{
        size_t digits = strspn(host, "0123456789");

        return digits && host[digits] == '-' && strchr(host, '.');
}

bool proxy_target_named(const struct http_request *r)
{
        CLEANUP_FREE char *host = host_name(r);

        return id_header(r) || port_header(r) || host_names_sandbox(host);
}

bool proxy_target_signed(const struct http_request *r)
{
        return streq(r->path, "/files") && (str_starts(r->query, "signature=") || strstr(r->query, "&signature="));
}

static const char *set_target(const char *id, const char *port, struct proxy_target *ret)
{
        uint64_t n;

        if (!*id || strlen(id) > PROXY_ID_MAX || id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789")])
                return "Invalid sandbox ID";
        if (!str_to_u64(port, 65535, &n) || n == 0)
                return "Invalid sandbox port";
        strcpy(ret->id, id);
        ret->port = (int)n;
        return NULL;
}

static const char *parse_host(const char *host, struct proxy_target *ret)
{
        size_t label = strcspn(host, "."), digits = strcspn(host, "-.");
        CLEANUP_FREE char *port = xstrndup(host, digits), *id = NULL;

        if (!host[label] || host[digits] != '-')
                return "Invalid host";
        host += digits + 1;
        id = xstrndup(host, strcspn(host, "-."));
        return set_target(id, port, ret);
}

const char *proxy_target_parse(const struct http_request *r, struct proxy_target *ret)
{
        CLEANUP_FREE char *host = host_name(r);
        bool headers = id_header(r) || port_header(r);

        if (!headers || (!host_is_neutral(host) && host_names_sandbox(host)))
                return parse_host(host, ret);
        if (!id_header(r) || !port_header(r))
                return "missing header";
        return set_target(id_header(r), port_header(r), ret);
}

/* Lexically: empty and "." segments go, ".." takes its predecessor along. The caller frees. */
static char *clean_path(const char *path)
{
        struct buf out = {};

        for (const char *p = path; *p;) {
                size_t n;

                p += strspn(p, "/");
                n = strcspn(p, "/");
                if (n == 2 && memcmp(p, "..", 2) == 0) {
                        while (out.len && out.data[--out.len] != '/')
                                ;
                        if (out.data)
                                out.data[out.len] = '\0';
                } else if (n && !(n == 1 && *p == '.')) {
                        buf_addc(&out, '/');
                        buf_add(&out, p, n);
                }
                p += n;
        }
        if (!out.len)
                buf_addc(&out, '/');
        return buf_steal(&out);
}

const char *proxy_reserved_path(const char *path)
{
        static const char *const reserved[] = {"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade", "/telemetry"};
        CLEANUP_FREE char *decoded = url_decode(path, strlen(path), false);
        CLEANUP_FREE char *clean = clean_path(decoded ? decoded : path);

        for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
                if (streq(clean, reserved[i]))
                        return reserved[i];
        return NULL;
}

static bool is_hop_by_hop(const struct http_headers *all, const char *name)
{
        static const char *const fixed[] = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade",
                                            "te", "trailer", "proxy-authenticate", "proxy-authorization", "expect"};

        for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
                if (strcasecmp(name, fixed[i]) == 0)
                        return true;
        /* Content-Length frames the body and Host routes it: a Connection header must not take them away. */
        return strcasecmp(name, "content-length") != 0 && strcasecmp(name, "host") != 0 &&
               http_headers_has_token(all, "connection", name);
}

static bool is_ours(const char *name)
{
        return strcasecmp(name, "e2b-sandbox-id") == 0 || strcasecmp(name, "e2b-sandbox-port") == 0 ||
               strcasecmp(name, "e2b-traffic-access-token") == 0 || strcasecmp(name, "forwarded") == 0 ||
               strncasecmp(name, "x-forwarded-", 12) == 0;
}

char *proxy_masked_host(const char *mask, int port)
{
        static const char variable[] = "${PORT}";
        CLEANUP_BUF struct buf b = {};

        for (const char *at; (at = strstr(mask, variable)); mask = at + strlen(variable))
                buf_addf(&b, "%.*s%d", (int)(at - mask), mask, port);
        buf_adds(&b, mask);
        return buf_steal(&b);
}

void proxy_request_headers(const struct http_request *r, const char *host, struct http_headers *ret)
{
        for (size_t i = 0; i < r->headers.count; i++) {
                const struct http_header *h = &r->headers.items[i];
                bool masked = host && strcasecmp(h->name, "host") == 0;

                if (!is_ours(h->name) && !is_hop_by_hop(&r->headers, h->name))
                        http_headers_add(ret, h->name, masked ? host : h->value);
                if (masked)
                        http_headers_add(ret, "X-Forwarded-Host", h->value);
        }
        if (r->chunked)
                http_headers_add(ret, "Transfer-Encoding", "chunked");
        if (r->upgrade) {
                http_headers_add(ret, "Connection", "Upgrade");
                http_headers_add(ret, "Upgrade", http_headers_get(&r->headers, "upgrade"));
        }
}

void proxy_response_headers(const struct http_response *r, struct http_headers *ret)
{
        for (size_t i = 0; i < r->headers.count; i++) {
                const struct http_header *h = &r->headers.items[i];

                if (!is_hop_by_hop(&r->headers, h->name))
                        http_headers_add(ret, h->name, h->value);
        }
        if (r->status == 101) {
                const char *upgrade = http_headers_get(&r->headers, "upgrade");

                http_headers_add(ret, "Connection", "Upgrade");
                http_headers_add(ret, "Upgrade", upgrade ? upgrade : "");
        }
}

/* envd.md 7.4 */
static bool is_browser(const struct http_request *r)
{
        static const char *const names[] = {"mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"};
        const char *agent = http_headers_get(&r->headers, "user-agent"), *accept = http_headers_get(&r->headers, "accept");
        const char *mode = http_headers_get(&r->headers, "sec-fetch-mode");
        bool named = false;

        for (size_t i = 0; agent && i < sizeof(names) / sizeof(names[0]); i++)
                named = named || strcasestr(agent, names[i]);
        if (!named)
                return false;
        if (accept && strcasestr(accept, "application/json") && !strcasestr(accept, "text/html"))
                return false;
        if (mode)
                return strcasecmp(mode, "navigate") == 0;
        return !http_headers_get(&r->headers, "x-requested-with");
}

static const struct refusal {
        int status;
        const char *title, *message;
} refusals[] = {
        [PROXY_RESERVED] = {404, "Reserved Endpoint",
                            "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL"},
        [PROXY_NOT_FOUND] = {502, "Sandbox Not Found", "The sandbox was not found"},
        [PROXY_PORT_CLOSED] = {502, "Closed Port Error", "The sandbox is running but port is not open"},
        [PROXY_NOTHING_STARTED] = {502, "Closed Port Error", "The sandbox is running but port is not open"},
        [PROXY_TOKEN_MISSING] = {403, "Missing Traffic Access Token",
                                 "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"},
        [PROXY_TOKEN_WRONG] = {403, "Invalid Traffic Access Token",
                               "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is "
                               "invalid"},
        [PROXY_RESUME_DENIED] = {403, "Sandbox Is Paused",
                                 "This sandbox can't be resumed with the credentials provided. Check your access token and try again."},
        [PROXY_RESUME_LIMIT] = {429, "Too Many Sandboxes",
                                "This sandbox is paused, and its team already runs as many sandboxes as it may. Kill or pause one and try again."},
        [PROXY_RESUME_FAILED] = {409, "Sandbox Is Paused", "The sandbox is still transitioning. Try again in a moment."},
};

/* Beside the message, which clients compare (known failure 82: such ports were blamed on time-outs). */
#define NOTHING_STARTED_HINT "The template of this sandbox has no start command, so no service was started in it: start one with a command, or " \
        "build the template with a start command"

static bool port_closed(enum proxy_refusal what)
{
        return what == PROXY_PORT_CLOSED || what == PROXY_NOTHING_STARTED;
}

static void add_page(enum proxy_refusal what, const struct proxy_target *t, struct buf *ret)
{
        const struct refusal *f = &refusals[what];

        buf_addf(ret, "<html><head><meta charset=\"utf-8\"><title>%s</title></head><body><h1>%s</h1>", f->title, f->title);
        if (port_closed(what))
                buf_addf(ret, "<p>The sandbox <code>%s</code> is running but there is no service running on port <code>%d</code>.</p>",
                         t->id, t->port);
        else
                buf_addf(ret, "<p>%s</p><p>Sandbox <code>%s</code>, port <code>%d</code></p>", f->message, t->id, t->port);
        if (what == PROXY_NOTHING_STARTED)
                buf_adds(ret, "<p>" NOTHING_STARTED_HINT ".</p>");
        buf_adds(ret, "</body></html>");
}

static void add_json(enum proxy_refusal what, const struct proxy_target *t, const char *path, struct buf *ret)
{
        const struct refusal *f = &refusals[what];

        if (what == PROXY_RESERVED)
                buf_addf(ret, "{\"message\":\"%s\",\"path\":\"%s\",\"code\":%d}", f->message, path, f->status);
        else if (port_closed(what))
                buf_addf(ret, "{\"sandboxId\":\"%s\",\"message\":\"%s\",\"port\":%d,\"code\":%d%s}", t->id, f->message, t->port, f->status,
                         what == PROXY_NOTHING_STARTED ? ",\"hint\":\"" NOTHING_STARTED_HINT "\"" : "");
        else
                buf_addf(ret, "{\"sandboxId\":\"%s\",\"message\":\"%s\",\"code\":%d}", t->id, f->message, f->status);
}

int proxy_refusal_body(enum proxy_refusal what, const struct http_request *r, const struct proxy_target *target, const char *path,
                       struct buf *ret, const char **ret_content_type)
{
        if (what != PROXY_RESERVED && is_browser(r)) {
                add_page(what, target, ret);
                *ret_content_type = "text/html; charset=utf-8";
        } else {
                add_json(what, target, path, ret);
                *ret_content_type = "application/json; charset=utf-8";
        }
        return refusals[what].status;
}
