/* Message heads and bodies. A head is first collected whole by the caller, then checked here byte by byte
 * (what request smuggling lives on: bare CR or LF, folded lines, blanks before colons, NUL), then given to
 * the packaged parser, which tokenises it and afterwards decodes the body. The framing headers are judged
 * here as well, so that both packaged parsers give the same answers.
 */
#include "http/wire.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "http/parser.h"

struct wire {
        struct parser *parser;
        wire_body_fn on_body;
        void *userdata;
        bool head_done, complete, no_body;
        /* While the head is parsed: */
        struct buf target, reason, field, value;
        bool in_value;
        struct http_headers headers;
        struct parser_head head;
};

size_t wire_head_length(const char *data, size_t len, size_t from)
{
        /* The blank line may have begun before `from`. */
        for (size_t i = from > 3 ? from - 3 : 0; i < len; i++) {
                if (data[i] != '\n')
                        continue;
                if (i + 1 < len && data[i + 1] == '\n')
                        return i + 2;
                if (i + 2 < len && data[i + 1] == '\r' && data[i + 2] == '\n')
                        return i + 3;
        }
        return 0;
}

static void finish_header(struct wire *w)
{
        if (w->in_value && w->headers.count <= WIRE_HEADERS_MAX)
                http_headers_add(&w->headers, buf_str(&w->field), buf_str(&w->value));
        buf_clear(&w->field);
        buf_clear(&w->value);
        w->in_value = false;
}

static void on_text(void *userdata, enum parser_text what, const char *data, size_t len)
{
        struct wire *w = userdata;

        if (what == PARSER_BODY) {
                w->on_body(w->userdata, data, len);
                return;
        }
        if (w->head_done) /* trailers are dropped */
                return;
        switch (what) {
        case PARSER_TARGET:
                buf_add(&w->target, data, len);
                break;
        case PARSER_REASON:
                buf_add(&w->reason, data, len);
                break;
        case PARSER_FIELD:
                if (w->in_value)
                        finish_header(w);
                buf_add(&w->field, data, len);
                break;
        default:
                w->in_value = true;
                buf_add(&w->value, data, len);
        }
}

static enum parser_verdict on_head(void *userdata, const struct parser_head *head)
{
        struct wire *w = userdata;

        /* A header with an empty value may get no value piece at all. */
        if (w->field.len)
                w->in_value = true;
        finish_header(w);
        w->head = *head;
        w->head_done = true;
        return w->no_body ? PARSER_NO_BODY : PARSER_BODY_FOLLOWS;
}

static void on_complete(void *userdata)
{
        struct wire *w = userdata;

        w->complete = true;
}

static const struct parser_events events = {
        .on_text = on_text,
        .on_head = on_head,
        .on_complete = on_complete,
};

static struct wire *wire_new(bool response, bool no_body, wire_body_fn on_body, void *userdata)
{
        struct wire *w = xcalloc(1, sizeof(*w));

        w->parser = parser_new(response, &events, w);
        w->no_body = no_body;
        w->on_body = on_body;
        w->userdata = userdata;
        return w;
}

static void free_head(struct wire *w)
{
        buf_free(&w->target);
        buf_free(&w->reason);
        buf_free(&w->field);
        buf_free(&w->value);
        http_headers_free(&w->headers);
}

struct wire *wire_free(struct wire *w)
{
        if (!w)
                return NULL;
        parser_free(w->parser);
        free_head(w);
        free(w);
        return NULL;
}

static void cleanup_wire(struct wire **w)
{
        wire_free(*w);
}

ssize_t wire_body(struct wire *w, const char *data, size_t len)
{
        return w->complete ? 0 : parser_feed(w->parser, data, len);
}

bool wire_complete(const struct wire *w)
{
        return w->complete;
}

int wire_eof(struct wire *w)
{
        int r = w->complete ? 0 : parser_finish(w->parser);

        if (r < 0)
                return r;
        return w->complete ? 0 : -EPROTO;
}

static bool is_token(const char *s, size_t len)
{
        static const char more[] = "!#$%&'*+-.^_`|~";

        for (size_t i = 0; i < len; i++) {
                char c = s[i];

                if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      (c && strchr(more, c))))
                        return false;
        }
        return len > 0;
}

/* One line without its end: "name:value" with no blank before the colon and no control characters. */
static const char *check_header_line(const char *line, size_t len)
{
        const char *colon = memchr(line, ':', len);

        if (line[0] == ' ' || line[0] == '\t')
                return "a header line is folded";
        if (!colon || !is_token(line, (size_t)(colon - line)))
                return "a header name is malformed";
        for (const char *p = colon + 1; p < line + len; p++)
                if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
                        return "a header value contains a control character";
        return NULL;
}

static const char *check_request_line(const char *line, size_t len)
{
        for (size_t i = 0; i < len; i++)
                if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
                        return "the request line contains a control character";
        return NULL;
}

static const char *check_request_head(const char *head, size_t len)
{
        const char *end = head + len;

        for (const char *line = head; line < end;) {
                const char *lf = memchr(line, '\n', (size_t)(end - line)), *why = NULL;
                size_t n;

                if (!lf || lf == line || lf[-1] != '\r')
                        return "a line does not end in CR LF";
                n = (size_t)(lf - 1 - line);
                if (line == head)
                        why = check_request_line(line, n);
                else if (n)
                        why = check_header_line(line, n);
                if (why)
                        return why;
                line = lf + 1;
        }
        return NULL;
}

static size_t header_count(const struct http_headers *h, const char *name)
{
        size_t n = 0;

        for (size_t i = 0; i < h->count; i++)
                n += strcasecmp(h->items[i].name, name) == 0;
        return n;
}

/* The framing of a request: RFC 9112 6.3, with everything ambiguous refused. */
static int judge_framing(const struct http_headers *h, bool *ret_chunked, int64_t *ret_length, const char **ret_why)
{
        size_t lengths = header_count(h, "content-length"), codings = header_count(h, "transfer-encoding");
        const char *length = http_headers_get(h, "content-length"), *coding = http_headers_get(h, "transfer-encoding");
        uint64_t v = 0;

        if (lengths && codings) {
                *ret_why = "Content-Length together with Transfer-Encoding";
                return 400;
        }
        if (codings > 1 || (coding && strcasecmp(coding, "chunked") != 0)) {
                *ret_why = "unknown transfer coding; only \"chunked\" is understood";
                return 501;
        }
        if (lengths > 1 || (length && !str_to_u64(length, INT64_MAX, &v))) {
                *ret_why = "malformed Content-Length";
                return 400;
        }
        *ret_chunked = codings == 1;
        *ret_length = codings ? -1 : (int64_t)v;
        return 0;
}

/* Splits the target. An absolute form is reduced to its path, and its authority replaces Host (RFC 9112 3.2.2). */
static const char *split_target(struct http_request *r)
{
        const char *t = r->target, *query;

        if (strncasecmp(t, "http://", 7) == 0 || strncasecmp(t, "https://", 8) == 0) {
                const char *authority = strstr(t, "//") + 2, *rest = authority + strcspn(authority, "/?");
                CLEANUP_FREE char *host = xstrndup(authority, (size_t)(rest - authority));
                char *reduced = xasprintf("%s%s", *rest == '/' ? "" : "/", rest);

                http_headers_set(&r->headers, "Host", host);
                free(r->target);
                r->target = reduced;
                t = reduced;
        }
        if (t[0] != '/')
                return "the request target does not start with \"/\"";
        if (strchr(t, '#'))
                return "the request target contains a fragment";
        query = strchr(t, '?');
        r->path = query ? xstrndup(t, (size_t)(query - t)) : xstrdup(t);
        r->query = xstrdup(query ? query + 1 : "");
        return NULL;
}

static int judge_request(struct wire *w, struct http_request *r, const char **ret_why)
{
        int status;

        if (w->head.major != 1 || w->head.minor > 1) {
                *ret_why = "only HTTP/1.0 and HTTP/1.1 are spoken here";
                return 505;
        }
        if (w->headers.count > WIRE_HEADERS_MAX) {
                *ret_why = "too many header lines (limit: 256)";
                return 431;
        }
        status = judge_framing(&w->headers, &r->chunked, &r->content_length, ret_why);
        if (status)
                return status;
        if (r->chunked && w->head.minor == 0) {
                *ret_why = "HTTP/1.0 has no Transfer-Encoding";
                return 400;
        }
        if (header_count(&w->headers, "host") != 1 && (w->head.minor == 1 || header_count(&w->headers, "host"))) {
                *ret_why = "exactly one Host header is needed";
                return 400;
        }
        r->version_minor = w->head.minor;
        r->method = xstrdup(w->head.method);
        r->target = buf_steal(&w->target);
        r->headers = w->headers;
        w->headers = (struct http_headers){};
        r->upgrade = http_headers_has_token(&r->headers, "connection", "upgrade") &&
                     http_headers_get(&r->headers, "upgrade");
        *ret_why = split_target(r);
        return *ret_why ? 400 : 0;
}

int wire_request(const char *head, size_t len, wire_body_fn on_body, void *userdata, struct http_request *ret,
                 struct wire **ret_wire, const char **ret_why)
{
        __attribute__((cleanup(cleanup_wire))) struct wire *w = wire_new(false, false, on_body, userdata);
        struct http_request r = {};
        ssize_t n;
        int status;

        *ret_why = check_request_head(head, len);
        if (*ret_why)
                return 400;
        n = parser_feed(w->parser, head, len);
        if (!w->head_done) {
                *ret_why = "malformed request";
                return 400;
        }
        /* Once the headers are known our own verdict on the framing is the more telling one. */
        status = judge_request(w, &r, ret_why);
        if (!status && n != (ssize_t)len) {
                *ret_why = "malformed request";
                status = 400;
        }
        if (status) {
                http_request_free(&r);
                return status;
        }
        free_head(w);
        *ret = r;
        *ret_wire = STEAL(w);
        return 0;
}

/* CR LF everywhere, folded lines joined, blanks before a colon dropped. */
static void mend_response_head(const char *head, size_t len, struct buf *out)
{
        for (const char *line = head, *end = head + len; line < end;) {
                const char *lf = memchr(line, '\n', (size_t)(end - line));
                const char *stop = lf ? lf : end;
                size_t n = (size_t)(stop - line);

                if (n && line[n - 1] == '\r')
                        n--;
                if (n && (line[0] == ' ' || line[0] == '\t') && out->len > 2) {
                        out->len -= 2;
                        buf_addc(out, ' ');
                }
                buf_add(out, line, n);
                buf_adds(out, "\r\n");
                line = stop + 1;
        }
}

static int judge_response(struct wire *w, struct http_response *r)
{
        const char *length = http_headers_get(&w->headers, "content-length");
        uint64_t v = 0;

        if (w->head.major != 1 || w->headers.count > WIRE_HEADERS_MAX)
                return -EPROTO;
        if (length && !str_to_u64(length, INT64_MAX, &v))
                return -EPROTO;
        r->status = w->head.status;
        r->chunked = http_headers_has_token(&w->headers, "transfer-encoding", "chunked");
        r->content_length = length && !r->chunked ? (int64_t)v : -1;
        if (r->status < 200 || r->status == 204 || (r->status == 304 && !length))
                r->content_length = 0;
        r->reason = buf_steal(&w->reason);
        r->headers = w->headers;
        w->headers = (struct http_headers){};
        return 0;
}

int wire_response(const char *head, size_t len, bool no_body, wire_body_fn on_body, void *userdata,
                  struct http_response *ret, struct wire **ret_wire)
{
        __attribute__((cleanup(cleanup_wire))) struct wire *w = wire_new(true, no_body, on_body, userdata);
        CLEANUP_BUF struct buf mended = {};
        struct http_response r = {};
        ssize_t n;

        if (memchr(head, '\0', len))
                return -EPROTO;
        mend_response_head(head, len, &mended);
        n = parser_feed(w->parser, mended.data, mended.len);
        if (n != (ssize_t)mended.len || !w->head_done || judge_response(w, &r) < 0) {
                http_response_free(&r);
                return -EPROTO;
        }
        free_head(w);
        *ret = r;
        *ret_wire = STEAL(w);
        return 0;
}
