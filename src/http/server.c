/* The listener and the life of connections.
 *
 * A connection owns a TCP handle and a timer. conn_close() may be called from anywhere, also from inside a
 * callback of the exchange: it only closes the handles, and what must come last (the exchange's on_close, the
 * memory) happens when libuv reports both closed, with nothing of the connection left on the stack.
 * Output is collected per connection and written once per loop iteration, by a prepare handle: a response's
 * head, body and end leave in one segment.
 */
#include "http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "http/conn.h"

#define LISTEN_BACKLOG 1024
#define TCP_KEEPALIVE_S 60

static void server_maybe_done(struct http_server *s);

static void on_server_handle_closed(uv_handle_t *h)
{
        struct http_server *s = h->data;

        s->handles--;
        server_maybe_done(s);
}

static void server_maybe_done(struct http_server *s)
{
        if (!s->stopping || s->count)
                return;
        if (!s->closing_handles) {
                s->closing_handles = true;
                uv_close((uv_handle_t *)&s->flusher, on_server_handle_closed);
        }
        if (s->handles)
                return;
        if (s->done)
                s->done(s->done_data);
        free(s);
}

static void conn_free(struct http_conn *c)
{
        struct http_server *s = c->server;
        struct http_exchange *x = STEAL(c->x);

        if (x && x->accepted && x->ops->on_close)
                x->ops->on_close(x, !c->clean, x->userdata);
        exchange_free(x);
        if (c->prev)
                c->prev->next = c->next;
        else
                s->conns = c->next;
        if (c->next)
                c->next->prev = c->prev;
        s->count--;
        wire_free(c->wire);
        if (c->session)
                s->options.transport->close(c->session);
        buf_free(&c->raw);
        buf_free(&c->in);
        buf_free(&c->out);
        free(c);
        server_maybe_done(s);
}

static void on_conn_handle_closed(uv_handle_t *h)
{
        struct http_conn *c = h->data;

        if (--c->handles == 0)
                conn_free(c);
}

void conn_unlink_dirty(struct http_conn *c)
{
        struct http_conn **p = &c->server->dirty;

        if (!c->dirty)
                return;
        while (*p != c)
                p = &(*p)->next_dirty;
        *p = c->next_dirty;
        c->dirty = false;
}

static void conn_close_how(struct http_conn *c, bool reset)
{
        if (c->closing)
                return;
        c->closing = true;
        conn_unlink_dirty(c);
        uv_close((uv_handle_t *)&c->timer, on_conn_handle_closed);
        if (!reset || uv_tcp_close_reset(&c->tcp, on_conn_handle_closed) < 0)
                uv_close((uv_handle_t *)&c->tcp, on_conn_handle_closed);
}

void conn_close(struct http_conn *c)
{
        conn_close_how(c, false);
}

void conn_close_reset(struct http_conn *c)
{
        conn_close_how(c, true);
}

static void note_peer(struct http_conn *c)
{
        struct sockaddr_storage a;
        int len = sizeof(a);

        if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&a, &len) < 0)
                return;
        if (a.ss_family == AF_INET)
                uv_ip4_name((struct sockaddr_in *)&a, c->peer, sizeof(c->peer));
        else if (a.ss_family == AF_INET6)
                uv_ip6_name((struct sockaddr_in6 *)&a, c->peer, sizeof(c->peer));
}

static void on_connection(uv_stream_t *listener, int status)
{
        struct http_server *s = listener->data;
        struct http_conn *c;

        if (status < 0)
                return;
        c = xcalloc(1, sizeof(*c));
        c->server = s;
        uv_tcp_init(s->loop, &c->tcp);
        uv_timer_init(s->loop, &c->timer);
        c->tcp.data = c->timer.data = c;
        c->handles = 2;
        c->next = s->conns;
        if (c->next)
                c->next->prev = c;
        s->conns = c;
        s->count++;
        if (uv_accept(listener, (uv_stream_t *)&c->tcp) < 0) {
                conn_close(c);
                return;
        }
        if (s->options.transport) {
                c->session = s->options.transport->open(s->options.ssl_ctx);
                if (!c->session) {
                        conn_close(c);
                        return;
                }
        }
        note_peer(c);
        uv_tcp_nodelay(&c->tcp, 1);
        uv_tcp_keepalive(&c->tcp, 1, TCP_KEEPALIVE_S);
        if (s->count > s->options.max_connections)
                conn_refuse(c, 503, "too many connections to this server; try again later");
        conn_read_start(c);
}

static void on_prepare(uv_prepare_t *h)
{
        struct http_server *s = h->data;

        while (s->dirty)
                conn_flush(s->dirty);
}

static struct http_server *server_alloc(uv_loop_t *loop, const struct http_server_options *options)
{
        struct http_server *s = xcalloc(1, sizeof(*s));

        s->loop = loop;
        s->options = *options;
        if (!s->options.idle_timeout_s)
                s->options.idle_timeout_s = 640;
        if (!s->options.head_timeout_s)
                s->options.head_timeout_s = 30;
        if (!s->options.max_connections)
                s->options.max_connections = 10000;
        uv_tcp_init(loop, &s->listener);
        uv_prepare_init(loop, &s->flusher);
        uv_prepare_start(&s->flusher, on_prepare);
        s->listener.data = s->flusher.data = s;
        s->handles = 2;
        return s;
}

/* Before anybody knows the server: it frees itself from the loop. */
static void server_discard(struct http_server *s)
{
        s->stopping = true;
        uv_close((uv_handle_t *)&s->listener, on_server_handle_closed);
        server_maybe_done(s);
}

static void server_note_port(struct http_server *s)
{
        struct sockaddr_storage a;
        int len = sizeof(a);

        if (uv_tcp_getsockname(&s->listener, (struct sockaddr *)&a, &len) < 0)
                return;
        if (a.ss_family == AF_INET)
                s->port = ntohs(((struct sockaddr_in *)&a)->sin_port);
        else if (a.ss_family == AF_INET6)
                s->port = ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
}

static int server_listen(struct http_server *s, const char *what, struct http_server **ret, struct error *err)
{
        int r = uv_listen((uv_stream_t *)&s->listener, LISTEN_BACKLOG, on_connection);

        if (r < 0) {
                server_discard(s);
                return error_errno(err, r, "listen on %s", what);
        }
        server_note_port(s);
        *ret = s;
        return 0;
}

int http_server_new(uv_loop_t *loop, const char *host, int port, const struct http_server_options *options,
                    struct http_server **ret, struct error *err)
{
        CLEANUP_FREE char *what = xasprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
        struct sockaddr_storage a = {};
        struct http_server *s;
        int r;

        if (port < 0 || port > 65535 || (uv_ip4_addr(host, port, (struct sockaddr_in *)&a) < 0 &&
                                         uv_ip6_addr(host, port, (struct sockaddr_in6 *)&a) < 0))
                return error_set(err, ERROR_INVALID, "listen on %s: not a numeric address and port", what);
        s = server_alloc(loop, options);
        r = uv_tcp_bind(&s->listener, (struct sockaddr *)&a, 0);
        if (r < 0) {
                server_discard(s);
                return error_errno(err, r, "listen on %s", what);
        }
        return server_listen(s, what, ret, err);
}

int http_server_new_fd(uv_loop_t *loop, int fd, const struct http_server_options *options, struct http_server **ret,
                       struct error *err)
{
        struct http_server *s = server_alloc(loop, options);
        int r = uv_tcp_open(&s->listener, fd);

        if (r < 0) {
                server_discard(s);
                return error_errno(err, r, "take over listening socket");
        }
        return server_listen(s, "the passed socket", ret, err);
}

int http_server_port(const struct http_server *s)
{
        return s->port;
}

static void server_end(struct http_server *s, void (*done)(void *data), void *data)
{
        s->done = done;
        s->done_data = data;
        if (!s->stopping) {
                s->stopping = true;
                uv_close((uv_handle_t *)&s->listener, on_server_handle_closed);
        }
}

void http_server_stop(struct http_server *s, void (*done)(void *data), void *data)
{
        server_end(s, done, data);
        for (struct http_conn *c = s->conns; c; c = c->next)
                if (c->state == CONN_HEAD)
                        conn_close(c);
        server_maybe_done(s);
}

void http_server_close(struct http_server *s, void (*done)(void *data), void *data)
{
        server_end(s, done, data);
        for (struct http_conn *c = s->conns; c; c = c->next)
                conn_close(c);
        server_maybe_done(s);
}
