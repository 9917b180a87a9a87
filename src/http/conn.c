/* Reading: one connection as a state machine (conn.h, enum conn_state).
 *
 * Received bytes collect in `in`. conn_process() takes steps as long as one is possible; callbacks of the
 * exchange may call any http_exchange_ function, which only change state and call conn_process() again, a
 * no-op while it is on the stack already. So there is one place that moves a connection on, and no recursion.
 *
 *   HEAD --head complete--> EXCHANGE --response flushed--> HEAD | DRAIN | LINGER
 *   EXCHANGE --takeover--> TUNNEL --both sides ended--> closed
 *   DRAIN --body complete--> HEAD;  too much or too long --> LINGER
 *   LINGER --peer closed or timer--> closed
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "http/conn.h"

static void update_reading(struct http_conn *c);

static void arm_timer(struct http_conn *c, unsigned seconds)
{
        uv_timer_start(&c->timer, conn_on_timer, seconds * 1000ULL, 0);
}

void conn_on_timer(uv_timer_t *timer)
{
        struct http_conn *c = timer->data;

        if (c->state == CONN_HEAD && c->in.len)
                conn_refuse(c, 408, "the request head did not arrive in time");
        else
                conn_close(c);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
        struct http_conn *c = req->handle->data;

        if (status < 0)
                return; /* the write that failed closes the connection */
        c->shut_done = true;
        if (c->state == CONN_LINGER && c->peer_eof)
                conn_close(c);
        else
                conn_process(c);
}

static void shut(struct http_conn *c)
{
        if (c->shut || c->closing)
                return;
        c->shut = true;
        conn_flush(c);
        if (c->session && !c->closing) {
                struct buf coded = {};

                c->server->options.transport->shutdown(c->session, &coded);
                conn_write_raw(c, &coded);
        }
        if (!c->closing && uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, on_shutdown) < 0)
                conn_close(c);
}

/* Closing a socket with unread input resets it, and the peer may lose the response: shut down our side first,
 * and drop what still comes. */
void conn_linger(struct http_conn *c)
{
        c->state = CONN_LINGER;
        c->wire = wire_free(c->wire);
        buf_clear(&c->in);
        shut(c);
        if (!c->closing)
                arm_timer(c, CONN_LINGER_S);
}

void conn_refuse(struct http_conn *c, int status, const char *why)
{
        CLEANUP_BUF struct buf body = {}, head = {};

        /* `why` is static text of ours: nothing in it needs escaping beyond double quotes. */
        buf_addf(&body, "{\"code\":%d,\"message\":\"", status);
        for (const char *p = why; *p; p++) {
                if (*p == '"')
                        buf_addc(&body, '\\');
                buf_addc(&body, *p);
        }
        buf_adds(&body, "\"}");
        buf_addf(&head, "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %zu\r\n"
                        "Connection: close\r\n\r\n", status, http_status_text(status), body.len);
        conn_send(c, head.data, head.len);
        conn_send(c, body.data, body.len);
        conn_linger(c);
}

static void on_body(void *userdata, const void *data, size_t len)
{
        struct http_conn *c = userdata;
        struct http_exchange *x = c->x;

        if (!x || x->ended || c->closing) {
                c->drained += len;
                return;
        }
        x->expects_continue = false; /* it did not wait for us */
        if (x->paused || x->pending.len)
                buf_add(&x->pending, data, len);
        else if (x->ops->on_data)
                x->ops->on_data(x, data, len, x->userdata);
}

static bool skip_blank_lines(struct http_conn *c)
{
        size_t n = 0;

        while (n < c->in.len && (c->in.data[n] == '\r' || c->in.data[n] == '\n'))
                n++;
        buf_consume(&c->in, n);
        return c->in.len > 0;
}

static void wait_for_head(struct http_conn *c)
{
        if (c->session && !c->server->options.transport->established(c->session)) {
                if (!c->head_timed) /* the handshake counts as the begin of the head */
                        arm_timer(c, c->server->options.head_timeout_s);
                c->head_timed = true;
        } else if (!c->in.len) {
                buf_free(&c->in); /* thousands may idle */
                c->head_timed = false;
                arm_timer(c, c->server->options.idle_timeout_s);
        } else if (!c->head_timed) {
                c->head_timed = true;
                arm_timer(c, c->server->options.head_timeout_s);
        }
}

static const struct http_exchange_ops no_ops;

static void begin_exchange(struct http_conn *c, struct http_request *request)
{
        struct http_exchange *x = xcalloc(1, sizeof(*x));
        const char *expect = http_headers_get(&request->headers, "expect");

        x->conn = c;
        x->request = *request;
        x->left = -1;
        x->ops = &no_ops;
        x->expects_continue = expect && request->version_minor >= 1 && !wire_complete(c->wire);
        if (request->version_minor == 0 || http_headers_has_token(&request->headers, "connection", "close"))
                c->close_after = true;
        c->x = x;
        c->state = CONN_EXCHANGE;
        c->drained = 0;
        uv_timer_stop(&c->timer);
        if (expect && strcasecmp(expect, "100-continue") != 0) {
                http_exchange_accept(x, &no_ops, NULL, false);
                c->close_after = true;
                http_exchange_reply(x, 417, "text/plain", "unknown expectation\n", strlen("unknown expectation\n"));
                return;
        }
        c->server->options.handler(x, c->server->options.data);
}

static bool step_head(struct http_conn *c)
{
        struct http_request request;
        const char *why;
        size_t len;
        int status;

        if (c->scanned == 0 && !skip_blank_lines(c)) {
                if (c->peer_eof || c->server->stopping)
                        conn_close(c);
                else
                        wait_for_head(c);
                return false;
        }
        len = wire_head_length(c->in.data, c->in.len, c->scanned);
        if (len > HTTP_HEAD_MAX || (!len && c->in.len > HTTP_HEAD_MAX)) {
                conn_refuse(c, 431, "the request head is too large (limit: 65536 bytes)");
                return false;
        }
        if (!len) {
                c->scanned = c->in.len;
                if (c->peer_eof)
                        conn_close(c);
                else
                        wait_for_head(c);
                return false;
        }
        c->wire = wire_free(c->wire);
        status = wire_request(c->in.data, len, on_body, c, &request, &c->wire, &why);
        if (status) {
                conn_refuse(c, status, why);
                return false;
        }
        buf_consume(&c->in, len);
        c->scanned = 0;
        c->head_timed = false;
        begin_exchange(c, &request);
        return true;
}

/* Feeds the body decoder. False when nothing was consumed, or the connection ended over it. */
static bool feed(struct http_conn *c)
{
        ssize_t n = wire_body(c->wire, c->in.data, c->in.len);

        if (c->closing)
                return false;
        if (n < 0) {
                if (c->x && !c->x->started)
                        conn_refuse(c, 400, "malformed request body");
                /* The exchange hears of it in on_close, with aborted set. */
                if (!c->x || c->x->started)
                        conn_close(c);
                return false;
        }
        buf_consume(&c->in, (size_t)n);
        return n > 0;
}

static void deliver_pending(struct http_exchange *x)
{
        CLEANUP_BUF struct buf data = x->pending;

        x->pending = (struct buf){};
        if (x->ops->on_data && !x->ended)
                x->ops->on_data(x, data.data, data.len, x->userdata);
}

/* The response is out. What becomes of the connection? */
static void finish_exchange(struct http_conn *c)
{
        struct http_exchange *x = STEAL(c->x);
        bool body_left = !wire_complete(c->wire);

        if (x->expects_continue)
                c->close_after = true; /* whether a body follows only the peer knows */
        if (x->ops->on_close)
                x->ops->on_close(x, false, x->userdata);
        exchange_free(x);
        if (c->closing)
                return;
        if (c->close_after || c->server->stopping || (body_left && c->drained > CONN_DRAIN_MAX)) {
                conn_linger(c);
                return;
        }
        c->state = body_left ? CONN_DRAIN : CONN_HEAD;
        c->scanned = 0;
        if (body_left)
                arm_timer(c, CONN_DRAIN_S);
}

static bool step_exchange(struct http_conn *c)
{
        struct http_exchange *x = c->x;

        if (x->pending.len && !x->paused) {
                deliver_pending(x);
                return true;
        }
        if (c->in.len && !wire_complete(c->wire) && !x->paused)
                return feed(c);
        if (wire_complete(c->wire) && !x->end_delivered && !x->paused && !x->ended) {
                x->end_delivered = true;
                if (x->ops->on_end)
                        x->ops->on_end(x, x->userdata);
                return true;
        }
        if (x->ended && !conn_queued(c)) {
                finish_exchange(c);
                return true;
        }
        if (c->peer_eof && !c->in.len && !wire_complete(c->wire))
                conn_close(c);
        return false;
}

static bool step_drain(struct http_conn *c)
{
        if (wire_complete(c->wire)) {
                c->state = CONN_HEAD;
                return true;
        }
        if (c->drained > CONN_DRAIN_MAX) {
                conn_linger(c);
                return false;
        }
        if (c->peer_eof) {
                conn_close(c);
                return false;
        }
        return c->in.len && feed(c);
}

static bool step_tunnel(struct http_conn *c)
{
        struct http_exchange *x = c->x;

        if (c->in.len && !x->paused) {
                CLEANUP_BUF struct buf data = c->in;

                c->in = (struct buf){};
                if (x->ops->on_data)
                        x->ops->on_data(x, data.data, data.len, x->userdata);
                return true;
        }
        if (c->peer_eof && !c->in.len && !x->end_delivered) {
                x->end_delivered = true;
                if (x->ops->on_end)
                        x->ops->on_end(x, x->userdata);
                return true;
        }
        if (x->ended && !c->shut)
                shut(c);
        if (x->end_delivered && c->shut_done) {
                c->clean = true;
                conn_close(c);
        }
        return false;
}

static bool step(struct http_conn *c)
{
        if (c->closing)
                return false;
        switch (c->state) {
        case CONN_HEAD:
                return step_head(c);
        case CONN_EXCHANGE:
                return step_exchange(c);
        case CONN_DRAIN:
                return step_drain(c);
        case CONN_TUNNEL:
                return step_tunnel(c);
        default:
                buf_clear(&c->in);
                if (c->peer_eof && c->shut_done)
                        conn_close(c);
                return false;
        }
}

void conn_process(struct http_conn *c)
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

static void on_eof(struct http_conn *c)
{
        struct http_exchange *x = c->x;

        c->peer_eof = true;
        /* server.h, serves_half_closed: by default a peer that closed has gone. */
        if (c->state == CONN_EXCHANGE && !x->ended && !x->ops->serves_half_closed)
                conn_close(c);
        else
                conn_process(c);
}

/* Decodes what was read. */
static void receive_coded(struct http_conn *c)
{
        struct buf out = {};
        bool eof = false;
        int r = c->server->options.transport->receive(c->session, c->raw.data, c->raw.len, &c->in, &out, &eof);

        buf_free(&c->raw);
        conn_write_raw(c, &out);
        if (c->closing)
                return;
        if (r < 0)
                conn_close(c);
        else if (eof && !c->peer_eof)
                on_eof(c);
        else
                conn_process(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct http_conn *c = stream->data;

        if (n == UV_EOF) {
                c->reading = false;
                uv_read_stop(stream);
                if (!c->peer_eof)
                        on_eof(c);
        } else if (n < 0) {
                conn_close(c);
        } else if (n > 0 && c->session) {
                buf_add(&c->raw, buf->base, (size_t)n);
                receive_coded(c);
        } else if (n > 0) {
                buf_add(&c->in, buf->base, (size_t)n);
                conn_process(c);
        }
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret)
{
        struct http_conn *c = h->data;

        (void)suggested;
        *ret = uv_buf_init(c->server->read_buffer, CONN_READ_SIZE);
}

static void update_reading(struct http_conn *c)
{
        bool want = !c->peer_eof && c->in.len < CONN_IN_MAX;

        if (want == c->reading)
                return;
        c->reading = want;
        if (!want)
                uv_read_stop((uv_stream_t *)&c->tcp);
        else if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0)
                conn_close(c);
}

void conn_read_start(struct http_conn *c)
{
        conn_process(c);
}
