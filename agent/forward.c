/* Theory of operation: once a second the LISTEN sockets of /proc/net/tcp and tcp6 are compared with the forwards
 * that exist. A port that is bound to 127.0.0.1 or ::1 gets a listener on the guest's outer address; one whose
 * listener went loses it (connections under way go on). Each connection is two streams, each with at most one
 * chunk under way, so a slow side holds the fast one back. The loopback address is the one that was seen.
 */
#include "forward.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "loop.h"

#define SCAN_MS 1000
#define FORWARDS_MAX 1024
#define CHUNK (64 * 1024)
#define BACKLOG 128
#define STATE_LISTEN 0x0A

struct forward {
        struct forward *next;
        uv_tcp_t listener;
        unsigned port;
        bool v6, seen;
};

struct pair;

struct side {
        uv_tcp_t tcp;
        uv_write_t write;
        uv_shutdown_t shutdown;
        struct pair *pair;
        struct side *other;
        char data[CHUNK];
        bool ended; /* it sent its FIN */
};

struct pair {
        struct side inner, outer;
        uv_connect_t connect;
        unsigned open;
        bool closing;
};

static struct forward *forwards;
static unsigned forward_count;

static void side_closed(uv_handle_t *handle)
{
        struct side *s = handle->data;

        if (--s->pair->open == 0)
                free(s->pair);
}

static void close_pair(struct pair *p)
{
        if (p->closing)
                return;
        p->closing = true;
        uv_close((uv_handle_t *)&p->inner.tcp, side_closed);
        uv_close((uv_handle_t *)&p->outer.tcp, side_closed);
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
                close_pair(to->pair);
        else if (!to->pair->closing)
                uv_read_start((uv_stream_t *)&to->other->tcp, give_buffer, on_read);
}

static void on_shut_down(uv_shutdown_t *request, int status)
{
        struct side *to = request->data;

        if (status < 0 || (to->ended && to->other->ended))
                close_pair(to->pair);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct side *from = stream->data, *to = from->other;
        uv_buf_t chunk;

        if (n == 0)
                return;
        uv_read_stop(stream);
        if (n == UV_EOF) {
                from->ended = true;
                to->shutdown.data = to;
                if (uv_shutdown(&to->shutdown, (uv_stream_t *)&to->tcp, on_shut_down) < 0)
                        close_pair(from->pair);
                return;
        }
        if (n < 0) {
                close_pair(from->pair);
                return;
        }
        chunk = uv_buf_init(buf->base, (unsigned)n);
        to->write.data = to;
        if (uv_write(&to->write, (uv_stream_t *)&to->tcp, &chunk, 1, on_written) < 0)
                close_pair(from->pair);
}

static void on_connected(uv_connect_t *request, int status)
{
        struct pair *p = request->data;

        if (status < 0) {
                close_pair(p);
                return;
        }
        uv_read_start((uv_stream_t *)&p->inner.tcp, give_buffer, on_read);
        uv_read_start((uv_stream_t *)&p->outer.tcp, give_buffer, on_read);
}

static void init_side(struct pair *p, struct side *s, struct side *other)
{
        uv_tcp_init(agent_loop, &s->tcp);
        uv_tcp_nodelay(&s->tcp, 1);
        s->tcp.data = s;
        s->pair = p;
        s->other = other;
        p->open++;
}

static void on_connection(uv_stream_t *listener, int status)
{
        struct forward *f = listener->data;
        struct pair *p;
        struct sockaddr_storage address;
        int r;

        if (status < 0)
                return;
        p = xcalloc(1, sizeof(*p));
        init_side(p, &p->inner, &p->outer);
        init_side(p, &p->outer, &p->inner);
        if (f->v6)
                uv_ip6_addr("::1", (int)f->port, (struct sockaddr_in6 *)&address);
        else
                uv_ip4_addr("127.0.0.1", (int)f->port, (struct sockaddr_in *)&address);
        p->connect.data = p;
        r = uv_accept(listener, (uv_stream_t *)&p->outer.tcp);
        if (r >= 0)
                r = uv_tcp_connect(&p->connect, &p->inner.tcp, (struct sockaddr *)&address, on_connected);
        if (r < 0)
                close_pair(p);
}

static void forward_closed(uv_handle_t *handle)
{
        free(handle->data);
}

/* A port that cannot be bound (somebody listens on the outer address himself) is tried again at each scan. */
static void add_forward(unsigned port, bool v6)
{
        struct forward *f = xcalloc(1, sizeof(*f));
        struct sockaddr_in address;

        *f = (struct forward){ .port = port, .v6 = v6, .seen = true };
        uv_tcp_init(agent_loop, &f->listener);
        f->listener.data = f;
        uv_ip4_addr(GUEST_ADDRESS, (int)port, &address);
        if (uv_tcp_bind(&f->listener, (struct sockaddr *)&address, 0) < 0 ||
            uv_listen((uv_stream_t *)&f->listener, BACKLOG, on_connection) < 0) {
                uv_close((uv_handle_t *)&f->listener, forward_closed);
                return;
        }
        f->next = forwards;
        forwards = f;
        forward_count++;
}

static void see_listener(unsigned port, bool v6)
{
        for (struct forward *f = forwards; f; f = f->next)
                if (f->port == port) {
                        f->seen = true;
                        return;
                }
        if (forward_count < FORWARDS_MAX)
                add_forward(port, v6);
}

static void scan_table(const char *path, const char *loopback, bool v6)
{
        CLEANUP_FCLOSE FILE *f = fopen(path, "re");
        char line[512], address[40];
        unsigned port, state;

        while (f && fgets(line, sizeof(line), f))
                if (sscanf(line, " %*d: %39[0-9A-F]:%4X %*[0-9A-F]:%*4X %2X", address, &port, &state) == 3 &&
                    state == STATE_LISTEN && strcmp(address, loopback) == 0)
                        see_listener(port, v6);
}

static void scan(void *data)
{
        char v4[9];

        (void)data;
        for (struct forward *f = forwards; f; f = f->next)
                f->seen = false;
        /* The table prints the address as one host-endian word. */
        snprintf(v4, sizeof(v4), "%08X", (unsigned)htonl(INADDR_LOOPBACK));
        scan_table("/proc/net/tcp", v4, false);
        scan_table("/proc/net/tcp6", htonl(1) == 1 ? "00000000000000000000000000000001" : "00000000000000000000000001000000",
                   true);
        for (struct forward **at = &forwards; *at; ) {
                struct forward *f = *at;

                if (f->seen) {
                        at = &f->next;
                        continue;
                }
                *at = f->next;
                forward_count--;
                uv_close((uv_handle_t *)&f->listener, forward_closed);
        }
}

void forward_start(void)
{
        timer_start(SCAN_MS, SCAN_MS, scan, NULL);
}
