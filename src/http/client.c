/* One exchange on a connected socket. The mirror image of conn.c with less to decide: one request, one
 * response, then the connection closes or is handed back. Moving on happens in call_process() alone (no recursion out of
 * callbacks), and on_close comes from libuv's close callback, with nothing of the call left on the stack.
 *
 *   head --1xx--> head;  head --101--> tunnel;  head --> body --complete or until close--> closed
 *
 * A failed write does not end the call: a server that refuses a large body answers and closes, and that answer
 * is still to be read. Reading then ends with the response, the end of the stream or an error.
 */
#include "http/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "http/server.h"
#include "http/wire.h"

#define READ_SIZE (64 * 1024)
#define IN_MAX (2 * HTTP_HEAD_MAX) /* unconsumed input above which reading stops */

struct http_call {
        uv_tcp_t tcp;
        uv_shutdown_t shutdown;
        const struct http_call_ops *ops;
        void *userdata;
        bool busy, closing, reading, peer_eof, paused;
        int status;           /* for on_close */
        /* Request */
        bool head_method, upgrades, chunked, body_ended, ended, write_failed, shut_done, above_high;
        size_t queued;
        /* Response */
        struct buf in, pending;
        size_t scanned;
        struct wire *wire;
        struct http_response response;
        bool got_response, tunnel, end_delivered, persistent;
};

struct call_write {
        uv_write_t req;
        struct http_call *call;
        struct buf data;
};

static void call_process(struct http_call *c);

static void on_closed(uv_handle_t *h)
{
        struct http_call *c = h->data;

        if (c->ops && c->ops->on_close)
                c->ops->on_close(c, c->status, c->userdata);
        wire_free(c->wire);
        http_response_free(&c->response);
        buf_free(&c->in);
        buf_free(&c->pending);
        free(c);
}

static void call_close(struct http_call *c, int status)
{
        if (c->closing)
                return;
        c->closing = true;
        c->status = status;
        if (status == 0 || uv_tcp_close_reset(&c->tcp, on_closed) < 0)
                uv_close((uv_handle_t *)&c->tcp, on_closed);
}

static void on_written(uv_write_t *req, int status)
{
        struct call_write *w = (struct call_write *)req;
        struct http_call *c = w->call;

        c->queued -= w->data.len;
        buf_free(&w->data);
        free(w);
        if (c->closing)
                return;
        if (status < 0)
                c->write_failed = true;
        if (c->write_failed && c->tunnel) {
                call_close(c, status);
        } else if (c->above_high && c->queued < HTTP_HIGH_WATER / 2) {
                c->above_high = false;
                if (c->ops->on_drain)
                        c->ops->on_drain(c, c->userdata);
        }
}

/* Takes the buffer over. */
static void send_buf(struct http_call *c, struct buf *data)
{
        struct call_write *w;
        uv_buf_t b;

        if (c->closing || c->write_failed || !data->len) {
                buf_free(data);
                return;
        }
        w = xcalloc(1, sizeof(*w));
        w->call = c;
        w->data = *data;
        *data = (struct buf){};
        c->queued += w->data.len;
        if (c->queued > HTTP_HIGH_WATER)
                c->above_high = true;
        b = uv_buf_init(w->data.data, (unsigned)w->data.len);
        if (uv_write(&w->req, (uv_stream_t *)&c->tcp, &b, 1, on_written) == 0)
                return;
        c->queued -= w->data.len;
        buf_free(&w->data);
        free(w);
        c->write_failed = true;
}

static void deliver(struct http_call *c, const void *data, size_t len)
{
        if (c->ops->on_data)
                c->ops->on_data(c, data, len, c->userdata);
}

static void on_body(void *userdata, const void *data, size_t len)
{
        struct http_call *c = userdata;

        if (c->closing)
                return;
        if (c->paused || c->pending.len || !c->got_response)
                buf_add(&c->pending, data, len);
        else
                deliver(c, data, len);
}

static bool step_head(struct http_call *c)
{
        size_t len = wire_head_length(c->in.data, c->in.len, c->scanned);

        if (len > HTTP_HEAD_MAX || (!len && c->in.len > HTTP_HEAD_MAX)) {
                call_close(c, -EPROTO);
                return false;
        }
        if (!len) {
                c->scanned = c->in.len;
                if (c->peer_eof)
                        call_close(c, c->in.len ? -EPROTO : -ECONNRESET);
                return false;
        }
        c->wire = wire_free(c->wire);
        http_response_free(&c->response);
        c->persistent = len > 8 && memcmp(c->in.data, "HTTP/1.1", 8) == 0;
        if (wire_response(c->in.data, len, c->head_method, on_body, c, &c->response, &c->wire) < 0) {
                call_close(c, -EPROTO);
                return false;
        }
        buf_consume(&c->in, len);
        c->scanned = 0;
        if (c->response.status == 101 && !c->upgrades) {
                call_close(c, -EPROTO);
                return false;
        }
        if (c->response.status < 200 && c->response.status != 101)
                return true;
        c->got_response = true;
        c->tunnel = c->response.status == 101;
        c->ops->on_response(c, &c->response, c->userdata);
        return true;
}

static void deliver_pending(struct http_call *c)
{
        CLEANUP_BUF struct buf data = c->pending;

        c->pending = (struct buf){};
        deliver(c, data.data, data.len);
}

/* A body that ends with the connection, or bytes behind it, end its use. */
static bool is_reusable(const struct http_call *c)
{
        bool framed = c->head_method || c->response.chunked || c->response.content_length >= 0;

        return c->persistent && framed && c->body_ended && !c->queued && !c->write_failed && !c->peer_eof && !c->in.len && !c->tunnel &&
               !http_headers_has_token(&c->response.headers, "connection", "close");
}

static void hand_back(struct http_call *c)
{
        uv_os_fd_t own;
        int fd;

        if (!c->ops->on_kept || !is_reusable(c) || uv_fileno((uv_handle_t *)&c->tcp, &own) < 0)
                return;
        fd = fcntl(own, F_DUPFD_CLOEXEC, 0); /* the handle closes its own */
        if (fd >= 0)
                c->ops->on_kept(c, fd, c->userdata);
}

static bool step_body(struct http_call *c)
{
        if (c->pending.len) {
                deliver_pending(c);
                return true;
        }
        if (!wire_complete(c->wire) && c->in.len) {
                ssize_t n = wire_body(c->wire, c->in.data, c->in.len);

                if (n < 0)
                        call_close(c, -EPROTO);
                else
                        buf_consume(&c->in, (size_t)n);
                return n > 0;
        }
        if (!wire_complete(c->wire) && c->peer_eof && wire_eof(c->wire) < 0) {
                call_close(c, -ECONNRESET);
                return false;
        }
        if (!wire_complete(c->wire))
                return false;
        if (!c->end_delivered) {
                c->end_delivered = true;
                if (c->ops->on_end)
                        c->ops->on_end(c, c->userdata);
                return true;
        }
        hand_back(c);
        call_close(c, 0);
        return false;
}

static bool step_tunnel(struct http_call *c)
{
        if (c->in.len) {
                CLEANUP_BUF struct buf data = c->in;

                c->in = (struct buf){};
                deliver(c, data.data, data.len);
                return true;
        }
        if (c->peer_eof && !c->end_delivered) {
                c->end_delivered = true;
                if (c->ops->on_end)
                        c->ops->on_end(c, c->userdata);
                return true;
        }
        if (c->end_delivered && c->shut_done)
                call_close(c, 0);
        return false;
}

static bool step(struct http_call *c)
{
        if (c->closing)
                return false;
        if (!c->got_response)
                return step_head(c);
        if (c->paused)
                return false;
        return c->tunnel ? step_tunnel(c) : step_body(c);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret)
{
        struct http_call *c = h->data;

        (void)suggested;
        *ret = uv_buf_init(buf_reserve(&c->in, READ_SIZE), READ_SIZE);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct http_call *c = stream->data;

        (void)buf;
        if (n == UV_EOF) {
                c->peer_eof = true;
                call_process(c);
        } else if (n < 0) {
                call_close(c, (int)n);
        } else if (n > 0) {
                buf_grew(&c->in, (size_t)n);
                call_process(c);
        }
}

static void update_reading(struct http_call *c)
{
        bool want = !c->peer_eof && c->in.len < IN_MAX;

        if (want == c->reading)
                return;
        c->reading = want;
        if (!want)
                uv_read_stop((uv_stream_t *)&c->tcp);
        else if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0)
                call_close(c, -EIO);
}

static void call_process(struct http_call *c)
{
        if (c->busy || c->closing)
                return;
        c->busy = true;
        while (step(c))
                ;
        c->busy = false;
        if (!c->closing)
                update_reading(c);
}

static void send_head(struct http_call *c, const char *method, const char *target, const struct http_headers *headers)
{
        struct buf b = {};

        buf_addf(&b, "%s %s HTTP/1.1\r\n", method, target);
        for (size_t i = 0; i < headers->count; i++)
                buf_addf(&b, "%s: %s\r\n", headers->items[i].name, headers->items[i].value);
        buf_adds(&b, "\r\n");
        send_buf(c, &b);
}

int http_call_new(uv_loop_t *loop, int fd, const char *method, const char *target, const struct http_headers *headers,
                  bool chunked, const struct http_call_ops *ops, void *userdata, struct http_call **ret, struct error *err)
{
        struct http_call *c = xcalloc(1, sizeof(*c));
        int r;

        uv_tcp_init(loop, &c->tcp);
        c->tcp.data = c;
        r = uv_tcp_open(&c->tcp, fd);
        if (r < 0) {
                close(fd);
                uv_close((uv_handle_t *)&c->tcp, on_closed); /* without ops: frees only */
                return error_errno(err, r, "take over connected socket");
        }
        uv_tcp_nodelay(&c->tcp, 1);
        c->ops = ops;
        c->userdata = userdata;
        c->chunked = chunked;
        c->head_method = strcmp(method, "HEAD") == 0;
        c->upgrades = http_headers_get(headers, "upgrade") != NULL;
        send_head(c, method, target, headers);
        update_reading(c);
        *ret = c;
        return 0;
}

size_t http_call_write(struct http_call *c, const void *data, size_t len)
{
        struct buf b = {};

        if (c->closing || c->ended || (c->body_ended && !c->tunnel) || !len)
                return c->queued;
        if (c->chunked && !c->tunnel)
                buf_addf(&b, "%zx\r\n", len);
        buf_add(&b, data, len);
        if (c->chunked && !c->tunnel)
                buf_adds(&b, "\r\n");
        send_buf(c, &b);
        return c->queued;
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
        struct http_call *c = req->handle->data;

        if (c->closing)
                return;
        if (status < 0) {
                call_close(c, status);
                return;
        }
        c->shut_done = true;
        call_process(c);
}

void http_call_end(struct http_call *c)
{
        struct buf b = {};

        if (c->closing || c->ended)
                return;
        /* The end of an upgrade's (empty) request body is not the end of the tunnel that may follow. */
        if (!c->tunnel) {
                if (c->chunked && !c->body_ended) {
                        buf_adds(&b, "0\r\n\r\n");
                        send_buf(c, &b);
                }
                c->body_ended = true;
                return;
        }
        c->ended = true;
        if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, on_shutdown) < 0)
                call_close(c, -EPIPE);
}

void http_call_pause(struct http_call *c)
{
        c->paused = true;
}

void http_call_resume(struct http_call *c)
{
        if (!c->paused)
                return;
        c->paused = false;
        call_process(c);
}

void http_call_abort(struct http_call *c)
{
        call_close(c, -ECANCELED);
}
