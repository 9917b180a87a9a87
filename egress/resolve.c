/* c-ares on the loop: its sockets are polled here, its timeouts are one timer. */
#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "egress.h"
#include "vm/net.h"

#define QUERY_TIMEOUT_MS 2000
#define QUERY_TRIES 3

struct resolution {
        void (*done)(void *data, const struct in_addr *addresses, size_t count); /* NULL: forgotten */
        void *data;
        bool answered, starting;
};

struct watch {
        struct watch *next;
        uv_poll_t poll;
        ares_socket_t fd;
};

static ares_channel channel;
static uv_loop_t *resolver_loop;
static uv_timer_t timer;
static struct watch *watches;

static void set_timer(void);

static void on_timer(uv_timer_t *t)
{
        (void)t;
        ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
        set_timer();
}

static void set_timer(void)
{
        struct timeval tv, *left = ares_timeout(channel, NULL, &tv);

        if (left)
                uv_timer_start(&timer, on_timer, (uint64_t)left->tv_sec * 1000 + (uint64_t)left->tv_usec / 1000 + 1, 0);
        else
                uv_timer_stop(&timer);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
        struct watch *w = poll->data;
        ares_socket_t fd = w->fd;

        if (status < 0)
                events = UV_READABLE | UV_WRITABLE;
        ares_process_fd(channel, events & UV_READABLE ? fd : ARES_SOCKET_BAD, events & UV_WRITABLE ? fd : ARES_SOCKET_BAD);
        set_timer();
}

static void watch_closed(uv_handle_t *handle)
{
        free(handle->data);
}

static struct watch *watch_of(ares_socket_t fd)
{
        struct watch *w = watches;

        while (w && w->fd != fd)
                w = w->next;
        if (!w) {
                w = xcalloc(1, sizeof(*w));
                *w = (struct watch){.next = watches, .fd = fd};
                uv_poll_init(resolver_loop, &w->poll, fd);
                w->poll.data = w;
                watches = w;
        }
        return w;
}

/* The socket is closed by c-ares right after the call without events. */
static void socket_state(void *data, ares_socket_t fd, int readable, int writable)
{
        struct watch *w = watch_of(fd);

        (void)data;
        if (readable || writable) {
                uv_poll_start(&w->poll, (readable ? UV_READABLE : 0) | (writable ? UV_WRITABLE : 0), on_poll);
                return;
        }
        for (struct watch **p = &watches; *p; p = &(*p)->next)
                if (*p == w) {
                        *p = w->next;
                        break;
                }
        uv_poll_stop(&w->poll);
        uv_close((uv_handle_t *)&w->poll, watch_closed);
}

int resolver_open(uv_loop_t *loop, const char *server, struct error *err)
{
        /* DNS only: the host's own file of names is not the guest's. No search list: names are whole. */
        struct ares_options o = {.flags = ARES_FLAG_NOSEARCH, .timeout = QUERY_TIMEOUT_MS, .tries = QUERY_TRIES,
                                 .lookups = (char[]){"b"}, .sock_state_cb = socket_state};
        int r = ares_library_init(ARES_LIB_INIT_ALL);

        if (r == ARES_SUCCESS)
                r = ares_init_options(&channel, &o, ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB);
        if (r == ARES_SUCCESS)
                r = ares_set_servers_csv(channel, server);
        if (r != ARES_SUCCESS)
                return error_set(err, ERROR_INTERNAL, "open a resolver with server %s: %s", server, ares_strerror(r));
        resolver_loop = loop;
        uv_timer_init(loop, &timer);
        uv_unref((uv_handle_t *)&timer);
        return 0;
}

static void answered(void *arg, int status, int timeouts, struct ares_addrinfo *info)
{
        struct resolution *r = arg;
        struct in_addr addresses[EGRESS_ADDRESSES_MAX];
        size_t count = 0;

        (void)timeouts;
        for (const struct ares_addrinfo_node *n = status == ARES_SUCCESS ? info->nodes : NULL; n && count < EGRESS_ADDRESSES_MAX; n = n->ai_next) {
                const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)n->ai_addr;

                if (n->ai_family == AF_INET && !net_always_denied(a->sin_addr))
                        addresses[count++] = a->sin_addr;
        }
        if (info)
                ares_freeaddrinfo(info);
        if (r->done)
                r->done(r->data, addresses, count);
        r->answered = true;
        if (!r->starting)
                free(r);
}

struct resolution *resolve(const char *name, void (*done)(void *data, const struct in_addr *addresses, size_t count), void *data)
{
        struct ares_addrinfo_hints hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = ARES_AI_NOSORT};
        struct resolution *r = xcalloc(1, sizeof(*r));

        *r = (struct resolution){.done = done, .data = data, .starting = true};
        ares_getaddrinfo(channel, name, NULL, &hints, answered, r);
        set_timer();
        r->starting = false;
        if (!r->answered)
                return r;
        free(r);
        return NULL;
}

void resolution_forget(struct resolution *r)
{
        r->done = NULL;
}
