/* Writing: the response side of an exchange, and the connection's output queue. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/mem.h"
#include "http/conn.h"

#define FLUSH_AT (64 * 1024) /* collected output that does not wait for the end of the loop iteration */

struct write_request {
        uv_write_t req;
        struct http_conn *conn;
        struct buf data;
};

size_t conn_queued(const struct http_conn *c)
{
        return c->out.len + c->inflight;
}

static void on_written(uv_write_t *req, int status)
{
        struct write_request *w = (struct write_request *)req;
        struct http_conn *c = w->conn;
        struct http_exchange *x = c->x;

        c->inflight -= w->data.len;
        buf_free(&w->data);
        free(w);
        if (status < 0) {
                conn_close(c);
                return;
        }
        if (c->closing)
                return;
        if (x && x->above_high && conn_queued(c) < HTTP_HIGH_WATER / 2) {
                x->above_high = false;
                if (x->ops->on_drain)
                        x->ops->on_drain(x, x->userdata);
        }
        conn_process(c);
}

void conn_write_raw(struct http_conn *c, struct buf *data)
{
        struct write_request *w;
        uv_buf_t b;

        if (!data->len || c->closing) {
                buf_free(data);
                return;
        }
        w = xcalloc(1, sizeof(*w));
        w->conn = c;
        w->data = *data;
        *data = (struct buf){};
        c->inflight += w->data.len;
        b = uv_buf_init(w->data.data, (unsigned)w->data.len);
        if (uv_write(&w->req, (uv_stream_t *)&c->tcp, &b, 1, on_written) == 0)
                return;
        c->inflight -= w->data.len;
        buf_free(&w->data);
        free(w);
        conn_close(c);
}

void conn_flush(struct http_conn *c)
{
        struct buf coded = {};

        conn_unlink_dirty(c);
        if (!c->out.len || c->closing)
                return;
        if (!c->session) {
                conn_write_raw(c, &c->out);
                return;
        }
        /* Only a refusal can be due before the handshake is through; it goes unsaid. */
        if (c->server->options.transport->send(c->session, c->out.data, c->out.len, &coded) < 0)
                conn_close(c);
        buf_free(&c->out);
        conn_write_raw(c, &coded);
}

void conn_send(struct http_conn *c, const void *data, size_t len)
{
        if (c->closing || !len)
                return;
        buf_add(&c->out, data, len);
        if (c->out.len >= FLUSH_AT) {
                conn_flush(c);
        } else if (!c->dirty) {
                c->dirty = true;
                c->next_dirty = c->server->dirty;
                c->server->dirty = c;
        }
}

struct http_exchange *exchange_free(struct http_exchange *x)
{
        if (!x)
                return NULL;
        http_request_free(&x->request);
        buf_free(&x->pending);
        free(x);
        return NULL;
}

const struct http_request *http_exchange_request(const struct http_exchange *x)
{
        return &x->request;
}

const char *http_exchange_peer(const struct http_exchange *x)
{
        return x->conn->peer;
}

void exchange_continue(struct http_exchange *x)
{
        static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";

        if (!x->expects_continue || x->started)
                return;
        x->expects_continue = false;
        conn_send(x->conn, line, strlen(line));
}

void http_exchange_accept(struct http_exchange *x, const struct http_exchange_ops *ops, void *userdata, bool paused)
{
        x->ops = ops;
        x->userdata = userdata;
        x->accepted = true;
        x->paused = paused;
        if (!paused)
                exchange_continue(x);
        conn_process(x->conn);
}

void http_exchange_pause(struct http_exchange *x)
{
        x->paused = true;
}

void http_exchange_resume(struct http_exchange *x)
{
        if (!x->paused)
                return;
        x->paused = false;
        exchange_continue(x);
        conn_process(x->conn);
}

/* RFC 9110 5.6.7, without the locale's names. */
static void add_date(struct buf *b)
{
        static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
        static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                             "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
        static _Thread_local time_t then;
        static _Thread_local char line[64];
        time_t now = time(NULL);

        if (now != then) {
                struct tm t;

                gmtime_r(&now, &t);
                snprintf(line, sizeof(line), "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", days[t.tm_wday % 7], t.tm_mday, months[t.tm_mon % 12],
                         t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
                then = now;
        }
        buf_adds(b, line);
}

/* A line break in a value would start another header, or the body. */
static void add_clean(struct buf *b, const char *s)
{
        for (;;) {
                size_t n = strcspn(s, "\r\n");

                buf_add(b, s, n);
                if (!s[n])
                        return;
                buf_addc(b, ' ');
                s += n + 1;
        }
}

static void add_headers(struct buf *b, const struct http_headers *h)
{
        static const char *const ours[] = {"content-length", "transfer-encoding", "connection", "keep-alive", "date"};

        for (size_t i = 0; h && i < h->count; i++) {
                bool skip = false;

                for (size_t k = 0; k < sizeof(ours) / sizeof(ours[0]); k++)
                        skip = skip || strcasecmp(h->items[i].name, ours[k]) == 0;
                if (skip)
                        continue;
                add_clean(b, h->items[i].name);
                buf_adds(b, ": ");
                add_clean(b, h->items[i].value);
                buf_adds(b, "\r\n");
        }
}

/* Reading the rest of a large body only to keep a connection alive is not worth it. */
static bool body_too_large_to_drain(const struct http_exchange *x)
{
        return !wire_complete(x->conn->wire) && x->request.content_length > CONN_DRAIN_MAX && !x->ops->on_data;
}

static void decide_framing(struct http_exchange *x, int status, int64_t length)
{
        struct http_conn *c = x->conn;

        x->bodiless = strcmp(x->request.method, "HEAD") == 0 || status == 204 || status == 304;
        x->left = length;
        if (length < 0 && !x->bodiless) {
                x->chunked = x->request.version_minor >= 1;
                if (!x->chunked)
                        c->close_after = true;
        }
        if (x->expects_continue || c->server->stopping || body_too_large_to_drain(x))
                c->close_after = true;
}

void http_exchange_start(struct http_exchange *x, int status, const struct http_headers *headers, int64_t length)
{
        CLEANUP_BUF struct buf b = {};

        if (x->started || x->conn->closing || x->conn->state != CONN_EXCHANGE)
                return;
        decide_framing(x, status, length);
        buf_addf(&b, "HTTP/1.1 %d %s\r\n", status, http_status_text(status));
        add_headers(&b, headers);
        add_date(&b);
        if (length >= 0 && status != 204 && !(status == 304 && length == 0))
                buf_addf(&b, "Content-Length: %lld\r\n", (long long)length);
        else if (x->chunked)
                buf_adds(&b, "Transfer-Encoding: chunked\r\n");
        buf_adds(&b, x->conn->close_after ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n");
        x->started = true;
        conn_send(x->conn, b.data, b.len);
}

static size_t note_queued(struct http_exchange *x)
{
        size_t queued = conn_queued(x->conn);

        if (queued > HTTP_HIGH_WATER)
                x->above_high = true;
        return queued;
}

size_t http_exchange_write(struct http_exchange *x, const void *data, size_t len)
{
        struct http_conn *c = x->conn;
        char size[24];

        if (c->closing || x->ended || !x->started)
                return 0;
        if (c->state == CONN_TUNNEL || (!x->bodiless && !x->chunked && x->left < 0)) {
                conn_send(c, data, len);
                return note_queued(x);
        }
        if (x->bodiless || !len)
                return conn_queued(c);
        if (x->chunked) {
                conn_send(c, size, (size_t)snprintf(size, sizeof(size), "%zx\r\n", len));
                conn_send(c, data, len);
                conn_send(c, "\r\n", 2);
                return note_queued(x);
        }
        if ((uint64_t)len > (uint64_t)x->left) {
                http_exchange_abort(x); /* more than was announced: the peer would take it for the next response */
                return 0;
        }
        x->left -= (int64_t)len;
        conn_send(c, data, len);
        return note_queued(x);
}

size_t http_exchange_queued(const struct http_exchange *x)
{
        return x->conn->closing ? 0 : conn_queued(x->conn);
}

void http_exchange_end(struct http_exchange *x)
{
        struct http_conn *c = x->conn;

        if (c->closing || x->ended || !x->started)
                return;
        if (c->state == CONN_EXCHANGE && !x->bodiless && x->left > 0) {
                http_exchange_abort(x);
                return;
        }
        if (c->state == CONN_EXCHANGE && x->chunked)
                conn_send(c, "0\r\n\r\n", 5);
        x->ended = true;
        if (c->state == CONN_EXCHANGE) {
                x->paused = false; /* the rest of the request body is dropped */
                buf_clear(&x->pending);
        }
        conn_process(c);
}

void http_exchange_reply(struct http_exchange *x, int status, const char *content_type, const void *body, size_t len)
{
        struct http_headers headers = {};

        if (content_type)
                http_headers_add(&headers, "Content-Type", content_type);
        http_exchange_start(x, status, &headers, (int64_t)len);
        http_exchange_write(x, body, len);
        http_exchange_end(x);
        http_headers_free(&headers);
}

void http_exchange_abort(struct http_exchange *x)
{
        conn_close_reset(x->conn);
}

void http_exchange_takeover(struct http_exchange *x, const void *head, size_t len)
{
        struct http_conn *c = x->conn;

        if (c->closing || x->started || c->state != CONN_EXCHANGE)
                return;
        x->started = true;
        c->state = CONN_TUNNEL;
        x->end_delivered = false;
        conn_send(c, head, len);
        conn_process(c);
}
