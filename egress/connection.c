/* One connection of the guest: reading its name, resolving that, dialling, passing on.
 *
 * A connection's relay and timer are loop handles; it is freed when both are closed. A resolution or dial that is under way when it ends is
 * forgotten.
 */
#include <arpa/inet.h>
#include <linux/netfilter_ipv4.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "egress.h"
#include "http/relay.h"
#include "vm/net_sniff.h"

struct connection {
        struct relay *relay;
        uv_timer_t timer;
        const char *const *domains;
        in_port_t port;     /* network order */
        size_t have;        /* bytes in the relay's buffer */
        struct resolution *resolution;
        struct dial *dial;
        unsigned open;
};

static unsigned connections;
void (*connection_none_left)(void);

unsigned connection_count(void)
{
        return connections;
}

static void handle_gone(struct connection *c)
{
        if (--c->open > 0)
                return;
        free(c);
        if (--connections == 0 && connection_none_left)
                connection_none_left();
}

static void timer_closed(uv_handle_t *handle)
{
        handle_gone(handle->data);
}

static void relay_ended(void *data)
{
        struct connection *c = data;

        if (!uv_is_closing((uv_handle_t *)&c->timer))
                uv_close((uv_handle_t *)&c->timer, timer_closed);
        handle_gone(c);
}

static void refuse(struct connection *c)
{
        if (c->resolution)
                resolution_forget(c->resolution);
        if (c->dial)
                dial_cancel(c->dial);
        c->resolution = NULL;
        c->dial = NULL;
        relay_reset(c->relay);
}

static void on_timeout(uv_timer_t *timer)
{
        refuse(timer->data);
}

static void dialled(void *data, int fd)
{
        struct connection *c = data;

        c->dial = NULL;
        if (fd < 0) {
                refuse(c);
                return;
        }
        if (uv_tcp_open(relay_stream(c->relay, RELAY_TO), fd) < 0) {
                close(fd);
                refuse(c);
                return;
        }
        uv_tcp_nodelay(relay_stream(c->relay, RELAY_TO), 1);
        uv_timer_stop(&c->timer);
        relay_start(c->relay, c->have);
}

static void resolved(void *data, const struct in_addr *addresses, size_t count)
{
        struct connection *c = data;

        c->resolution = NULL;
        if (count == 0)
                refuse(c);
        else
                c->dial = dial_start(c->timer.loop, addresses, count, c->port, dialled, c);
}

static bool allowed(const struct connection *c, const char *name)
{
        for (const char *const *d = c->domains; *d; d++)
                if (net_domain_matches(*d, name))
                        return true;
        return false;
}

static void named(struct connection *c, const char *name)
{
        struct resolution *r;

        if (!allowed(c, name)) {
                refuse(c);
                return;
        }
        uv_timer_start(&c->timer, on_timeout, EGRESS_CONNECT_TIMEOUT_MS, 0);
        r = resolve(name, resolved, c);
        if (r)
                c->resolution = r;
}

static void give_rest(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
        const struct connection *c = relay_data((uv_stream_t *)handle);

        (void)suggested;
        *buf = uv_buf_init(relay_buffer(c->relay) + c->have, (unsigned)(RELAY_CHUNK - c->have));
}

static void on_head(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct connection *c = relay_data(stream);
        char name[NET_DOMAIN_MAX];
        enum net_sniff found;

        (void)buf;
        if (n == 0)
                return;
        if (n < 0) {
                refuse(c);
                return;
        }
        c->have += (size_t)n;
        found = net_sniff(relay_buffer(c->relay), c->have, name);
        if (found == NET_SNIFF_MORE)
                return;
        uv_read_stop(stream);
        if (found == NET_SNIFF_NAME)
                named(c, name);
        else
                refuse(c);
}

/* Where the guest wanted to go; false for who came here directly. */
static bool original_port(uv_tcp_t *stream, in_port_t *ret)
{
        struct sockaddr_in a;
        socklen_t len = sizeof(a);
        uv_os_fd_t fd;

        if (uv_fileno((uv_handle_t *)stream, &fd) < 0 || getsockopt(fd, SOL_IP, SO_ORIGINAL_DST, &a, &len) < 0)
                return false;
        *ret = a.sin_port;
        return true;
}

void connection_accept(uv_stream_t *listener, const char *const *domains)
{
        struct connection *c = xcalloc(1, sizeof(*c));

        *c = (struct connection){.domains = domains, .open = 2};
        c->relay = relay_new(listener->loop, relay_ended, c);
        uv_timer_init(listener->loop, &c->timer);
        c->timer.data = c;
        connections++;
        if (uv_accept(listener, (uv_stream_t *)relay_stream(c->relay, RELAY_FROM)) < 0 || connections > EGRESS_CONNECTIONS_MAX ||
            !original_port(relay_stream(c->relay, RELAY_FROM), &c->port) ||
            uv_read_start((uv_stream_t *)relay_stream(c->relay, RELAY_FROM), give_rest, on_head) < 0) {
                refuse(c);
                return;
        }
        uv_timer_start(&c->timer, on_timeout, EGRESS_NAME_TIMEOUT_MS, 0);
}
