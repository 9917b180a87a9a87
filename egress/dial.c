/* Connects to the first of a name's addresses that answers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress.h"

#define ATTEMPT_MS 5000

struct dial {
        uv_loop_t *loop;
        uv_poll_t poll;
        uv_timer_t timer; /* of one attempt */
        struct in_addr addresses[EGRESS_ADDRESSES_MAX];
        size_t count, next;
        in_port_t port;
        int fd;          /* of the attempt under way */
        int result;      /* connected, or -1 */
        bool cancelled;
        unsigned open;
        void (*done)(void *data, int fd);
        void *data;
};

static void attempt(struct dial *d);

static void closed(uv_handle_t *handle)
{
        struct dial *d = handle->data;

        if (--d->open > 0)
                return;
        if (!d->cancelled)
                d->done(d->data, STEAL_FD(d->result));
        if (d->result >= 0)
                close(d->result);
        free(d);
}

static void finish(struct dial *d)
{
        uv_close((uv_handle_t *)&d->timer, closed);
}

static void attempt_closed(uv_handle_t *handle)
{
        struct dial *d = handle->data;

        if (d->result < 0)
                close(d->fd);
        d->fd = -1;
        if (d->result >= 0 || d->cancelled)
                finish(d);
        else
                attempt(d);
}

static void end_attempt(struct dial *d, int result)
{
        d->result = result;
        uv_timer_stop(&d->timer);
        uv_close((uv_handle_t *)&d->poll, attempt_closed);
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
        struct dial *d = poll->data;
        int number = 0;
        socklen_t len = sizeof(number);

        (void)events;
        if (status < 0 || getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &number, &len) < 0 || number != 0)
                end_attempt(d, -1);
        else
                end_attempt(d, d->fd);
}

static void on_late(uv_timer_t *timer)
{
        struct dial *d = timer->data;

        end_attempt(d, -1);
}

/* 0 with an attempt under way, else the address cannot even be tried. */
static int begin(struct dial *d)
{
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = d->port, .sin_addr = d->addresses[d->next++]};
        CLEANUP_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int r;

        if (fd < 0 || (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0 && errno != EINPROGRESS))
                return -errno;
        r = uv_poll_init(d->loop, &d->poll, fd);
        if (r < 0)
                return r;
        d->poll.data = d;
        d->fd = STEAL_FD(fd);
        uv_poll_start(&d->poll, UV_WRITABLE, on_writable);
        uv_timer_start(&d->timer, on_late, ATTEMPT_MS, 0);
        return 0;
}

static void attempt(struct dial *d)
{
        while (d->next < d->count)
                if (begin(d) == 0)
                        return;
        finish(d);
}

struct dial *dial_start(uv_loop_t *loop, const struct in_addr *addresses, size_t count, in_port_t port, void (*done)(void *data, int fd), void *data)
{
        struct dial *d = xcalloc(1, sizeof(*d));

        *d = (struct dial){.loop = loop, .count = count < EGRESS_ADDRESSES_MAX ? count : EGRESS_ADDRESSES_MAX, .port = port, .fd = -1, .result = -1,
                           .open = 1, .done = done, .data = data};
        memcpy(d->addresses, addresses, d->count * sizeof(*addresses));
        uv_timer_init(loop, &d->timer);
        d->timer.data = d;
        attempt(d);
        return d;
}

void dial_cancel(struct dial *d)
{
        d->cancelled = true;
        if (d->fd >= 0 && !uv_is_closing((uv_handle_t *)&d->poll))
                end_attempt(d, -1);
}
