/* Theory of operation: each direction has at most one chunk under way. Its source is not read while that is being written, so a slow side holds
 * the fast one back.
 */
#include "http/relay.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

struct side {
        uv_tcp_t tcp;
        uv_write_t write;
        uv_shutdown_t shutdown;
        struct relay *relay;
        struct side *other;
        char data[RELAY_CHUNK];
        bool ended; /* it sent its FIN */
};

struct relay {
        struct side sides[2];
        void (*on_end)(void *data);
        void *data;
        unsigned open;
        bool closing;
};

static void side_closed(uv_handle_t *handle)
{
        struct relay *r = ((struct side *)handle->data)->relay;

        if (--r->open > 0)
                return;
        if (r->on_end)
                r->on_end(r->data);
        free(r);
}

static void close_side(struct side *s)
{
        if (!uv_is_closing((uv_handle_t *)&s->tcp))
                uv_close((uv_handle_t *)&s->tcp, side_closed);
}

void relay_close(struct relay *r)
{
        if (r->closing)
                return;
        r->closing = true;
        close_side(&r->sides[RELAY_FROM]);
        close_side(&r->sides[RELAY_TO]);
}

void relay_reset(struct relay *r)
{
        if (r->closing)
                return;
        uv_tcp_close_reset(&r->sides[RELAY_FROM].tcp, side_closed); /* refused where there is nothing to reset: then it is closed */
        relay_close(r);
}

static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
        struct side *s = handle->data;

        (void)suggested;
        *buf = uv_buf_init(s->data, sizeof(s->data));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void on_written(uv_write_t *request, int status)
{
        struct side *to = request->data;

        if (status < 0)
                relay_close(to->relay);
        else if (!to->relay->closing)
                uv_read_start((uv_stream_t *)&to->other->tcp, give_buffer, on_read);
}

static void on_shut_down(uv_shutdown_t *request, int status)
{
        struct side *to = request->data;

        if (status < 0 || (to->ended && to->other->ended))
                relay_close(to->relay);
}

static void pass_on(struct side *to, char *data, size_t len)
{
        uv_buf_t chunk = uv_buf_init(data, (unsigned)len);

        to->write.data = to;
        if (uv_write(&to->write, (uv_stream_t *)&to->tcp, &chunk, 1, on_written) < 0)
                relay_close(to->relay);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct side *from = stream->data, *to = from->other;

        if (n == 0)
                return;
        uv_read_stop(stream);
        if (n > 0) {
                pass_on(to, buf->base, (size_t)n);
                return;
        }
        if (n == UV_EOF) {
                from->ended = true;
                to->shutdown.data = to;
                if (uv_shutdown(&to->shutdown, (uv_stream_t *)&to->tcp, on_shut_down) >= 0)
                        return;
        }
        relay_close(from->relay);
}

static void init_side(uv_loop_t *loop, struct relay *r, struct side *s, struct side *other)
{
        uv_tcp_init(loop, &s->tcp);
        uv_tcp_nodelay(&s->tcp, 1);
        s->tcp.data = s;
        s->relay = r;
        s->other = other;
        r->open++;
}

struct relay *relay_new(uv_loop_t *loop, void (*on_end)(void *data), void *data)
{
        struct relay *r = xcalloc(1, sizeof(*r));

        init_side(loop, r, &r->sides[RELAY_FROM], &r->sides[RELAY_TO]);
        init_side(loop, r, &r->sides[RELAY_TO], &r->sides[RELAY_FROM]);
        r->on_end = on_end;
        r->data = data;
        return r;
}

uv_tcp_t *relay_stream(struct relay *r, enum relay_side_index side)
{
        return &r->sides[side].tcp;
}

void *relay_data(const uv_stream_t *stream)
{
        return ((struct side *)stream->data)->relay->data;
}

char *relay_buffer(struct relay *r)
{
        return r->sides[RELAY_FROM].data;
}

void relay_start(struct relay *r, size_t len)
{
        if (len > 0)
                pass_on(&r->sides[RELAY_TO], relay_buffer(r), len);
        else
                uv_read_start((uv_stream_t *)&r->sides[RELAY_FROM].tcp, give_buffer, on_read);
        if (!r->closing)
                uv_read_start((uv_stream_t *)&r->sides[RELAY_TO].tcp, give_buffer, on_read);
}
