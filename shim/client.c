/* Connections of <dir>/shim.sock (and the driver's first one).
 *
 * A client is READING until a whole request line is there; then QUEUED (qmp, waiting for the monitor), SENT (at QEMU),
 * AWAITING (an event), DIALLING (a guest port) or at once REPLYING; after the answer has left it reads again. Input beyond
 * one request waits. A client that goes away in any state is forgotten; a command at QEMU is then answered to nobody.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "network.h"
#include "shim.h"
#include "vm/fdpass.h"
#include "vm/qmp.h"

enum state { STARTING, READING, QUEUED, SENT, AWAITING, DIALLING, REPLYING, GONE };
/* What a `connect` has asked of QEMU first, with network user. */
enum forwarding { NOT_FORWARDING, ADDING, LISTING };

struct client {
        struct shim *shim;
        struct client *next;
        enum state state;
        int fd;
        int in_fd;          /* came with the request */
        int out_fd;         /* leaves with the answer, owned */
        int dial_fd;
        unsigned port;      /* of the guest, being connected to */
        enum forwarding forwarding;
        int64_t deadline_ns;
        struct buf in, out;
        json_t *request;
        json_t *result;     /* of QMP, while an event is awaited */
        json_t *event;      /* that came before the result */
        uint64_t sequence;  /* order in the queue */
};

static uint64_t sequence;

struct client *client_new(struct shim *s, int fd, bool starting)
{
        struct client *c = xcalloc(1, sizeof *c);

        *c = (struct client){.shim = s, .next = s->clients, .state = starting ? STARTING : READING, .fd = fd, .in_fd = -1,
                             .out_fd = -1, .dial_fd = -1};
        s->clients = c;
        s->client_count++;
        return c;
}

static void close_fd(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static void finish_request(struct client *c)
{
        close_fd(&c->in_fd);
        close_fd(&c->dial_fd);
        json_decref(c->request);
        json_decref(c->result);
        json_decref(c->event);
        c->request = c->result = c->event = NULL;
        c->forwarding = NOT_FORWARDING;
}

static void gone(struct client *c)
{
        if (c->shim->monitor.active == c)
                c->shim->monitor.active = NULL;
        finish_request(c);
        close_fd(&c->out_fd);
        close_fd(&c->fd);
        buf_free(&c->in);
        buf_free(&c->out);
        c->in = c->out = (struct buf){};
        c->state = GONE;
}

static void reap(struct shim *s)
{
        for (struct client **p = &s->clients; *p;) {
                struct client *c = *p;

                if (c->state != GONE) {
                        p = &c->next;
                        continue;
                }
                *p = c->next;
                s->client_count--;
                free(c);
        }
}

static void reply(struct client *c, json_t *answer, int fd)
{
        CLEANUP_FREE char *text = json_text(answer);

        json_decref(answer);
        buf_adds(&c->out, text);
        buf_addc(&c->out, '\n');
        c->out_fd = fd;
        finish_request(c);
        c->state = REPLYING;
}

static void reply_error(struct client *c, const char *kind, int number, const char *message)
{
        CLEANUP_FREE char *text = utf8_scrub(message, strlen(message));

        reply(c, json_pack("{s:{s:s, s:i, s:s}}", "error", "kind", kind, "errno", number, "message", text), -1);
}

static json_t *ok(void)
{
        return json_pack("{s:b}", "ok", 1);
}

/* Operations. */

static void op_status(struct client *c)
{
        struct shim *s = c->shim;
        json_t *limits = json_array(), *answer = ok();

        for (size_t i = 0; i < 4 && s->cgroups[i]; i++)
                json_array_append_new(limits, json_string(s->cgroups[i]));
        json_object_set_new(answer, "id", json_string(s->id));
        json_object_set_new(answer, "shim_pid", json_integer(getpid()));
        json_object_set_new(answer, "qemu_pid", json_integer(s->qemu));
        json_object_set_new(answer, "slot", json_integer(s->slot));
        json_object_set_new(answer, "expires_at_ns", json_integer(s->expires_at_ns));
        json_object_set_new(answer, "limits", limits);
        reply(c, answer, -1);
}

static void op_console(struct client *c)
{
        struct ring *r = &c->shim->console;
        CLEANUP_CLOSE int fd = memfd_create("console", MFD_CLOEXEC);
        CLEANUP_FREE char *text = xmalloc(r->len + 1);

        ring_copy(r, text);
        if (fd < 0 || pwrite(fd, text, r->len, 0) != (ssize_t)r->len) {
                reply_error(c, "internal", errno, "console: no memory for a copy");
                return;
        }
        reply(c, ok(), STEAL_FD(fd));
}

static void op_set_expiry(struct client *c)
{
        const json_t *at = json_object_get(c->request, "expires_at_ns");
        int r;

        if (!json_is_integer(at) || json_integer_value(at) < 0) {
                reply_error(c, "invalid", EINVAL, "set-expiry: expires_at_ns must be a number of nanoseconds, or 0");
                return;
        }
        r = shim_set_timer(c->shim, json_integer_value(at));
        if (r < 0)
                reply_error(c, "internal", -r, "set-expiry: the timer cannot be set");
        else
                reply(c, ok(), -1);
}

static void op_kill(struct client *c)
{
        struct shim *s = c->shim;
        const char *reason = json_str(c->request, "reason");

        if (!s->ending && reason)
                s->kill_reason = xstrdup(reason);
        shim_end(s, s->kill_reason ?: "killed");
        reply(c, ok(), -1);
}

static void dial_done(struct client *c)
{
        int number = 0;
        socklen_t len = sizeof number;

        if (getsockopt(c->dial_fd, SOL_SOCKET, SO_ERROR, &number, &len) < 0)
                number = errno;
        if (number) {
                reply_error(c, "unavailable", number, strerror(number));
        } else {
                /* The receiver decides for itself. */
                fcntl(c->dial_fd, F_SETFL, 0);
                reply(c, ok(), STEAL_FD(c->dial_fd));
        }
}

static void dial(struct client *c, const char *address, unsigned port)
{
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        int one = 1;

        inet_pton(AF_INET, address, &a.sin_addr);
        c->dial_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (c->dial_fd < 0) {
                reply_error(c, "internal", errno, "connect: no socket");
                return;
        }
        setsockopt(c->dial_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->state = DIALLING;
        c->deadline_ns = clock_monotonic_ns() + SHIM_CONNECT_TIMEOUT_MS * NSEC_PER_MSEC;
        if (connect(c->dial_fd, (struct sockaddr *)&a, sizeof a) < 0 && errno != EINPROGRESS)
                reply_error(c, "unavailable", errno, strerror(errno));
}

static void enqueue(struct client *c)
{
        if (c->shim->monitor.fd < 0) {
                reply_error(c, "unavailable", EPIPE, "QEMU has ended");
                return;
        }
        c->sequence = ++sequence;
        c->state = QUEUED;
        monitor_queue(c->shim);
}

static void ask_to_forward(struct client *c, enum forwarding step, json_t *request)
{
        json_decref(c->request);
        c->request = request;
        c->forwarding = step;
        enqueue(c);
}

/* QEMU's text after one of the steps. */
static void forwarded(struct client *c, const char *text)
{
        enum forwarding step = c->forwarding;
        unsigned host;

        c->forwarding = NOT_FORWARDING;
        if (step == ADDING) {
                if (text[strspn(text, " \r\n")])
                        reply_error(c, "unavailable", EADDRNOTAVAIL, text);
                else
                        ask_to_forward(c, LISTING, forward_list_request());
                return;
        }
        forward_note_all(c->shim, text);
        host = forward_find(c->shim, c->port);
        if (host)
                dial(c, "127.0.0.1", host);
        else
                reply_error(c, "internal", EPROTO, "connect: QEMU does not list the port that it forwards");
}

static void op_connect(struct client *c)
{
        json_int_t port = json_int(c->request, "port", 0);
        unsigned host;

        if (port < 1 || port > 65535) {
                reply_error(c, "invalid", EINVAL, "connect: port must be 1 to 65535");
                return;
        }
        c->port = (unsigned)port;
        switch (c->shim->network) {
        case VM_NETWORK_NAT:
                dial(c, VM_GUEST_ADDRESS, c->port);
                break;
        case VM_NETWORK_USER:
                host = forward_find(c->shim, c->port);
                if (host)
                        dial(c, "127.0.0.1", host);
                else
                        ask_to_forward(c, ADDING, forward_add_request(c->port));
                break;
        case VM_NETWORK_NONE:
                reply_error(c, "unavailable", ENETUNREACH, "connect: this VM has no network");
                break;
        }
}

static void op_qmp(struct client *c)
{
        if (!json_str(c->request, "execute")) {
                reply_error(c, "invalid", EINVAL, "qmp: execute is missing");
                return;
        }
        enqueue(c);
}

static void op_set_egress(struct client *c)
{
        struct error err = {};
        int r = network_set_egress(c->shim, json_object_get(c->request, "egress"), &err);

        if (r < 0)
                reply_error(c, err.kind == ERROR_INVALID ? "invalid" : err.kind == ERROR_UNAVAILABLE ? "unavailable" : "internal", -r, err.message);
        else
                reply(c, ok(), -1);
}

static void handle_request(struct client *c)
{
        static const struct {
                const char *name;
                void (*run)(struct client *c);
        } ops[] = {{"status", op_status}, {"connect", op_connect}, {"qmp", op_qmp}, {"console", op_console},
                   {"set-expiry", op_set_expiry}, {"set-egress", op_set_egress}, {"kill", op_kill}};
        const char *op = json_str(c->request, "op");

        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
                if (streq(op, ops[i].name)) {
                        ops[i].run(c);
                        return;
                }
        reply_error(c, "invalid", EINVAL, "unknown operation");
}

static void take_request(struct client *c)
{
        int r;

        if (c->state != READING)
                return;
        r = line_take(&c->in, &c->request);
        if (r < 0)
                gone(c);
        else if (r > 0)
                handle_request(c);
}

/* QMP, from monitor.c. */

struct client *client_next_command(struct shim *s, const char **ret_command, const json_t **ret_arguments, int *ret_fd)
{
        struct client *first = NULL;

        for (struct client *c = s->clients; c; c = c->next)
                if (c->state == QUEUED && (!first || c->sequence < first->sequence))
                        first = c;
        if (!first)
                return NULL;
        first->state = SENT;
        *ret_command = json_str(first->request, "execute");
        *ret_arguments = json_object_get(first->request, "arguments");
        *ret_fd = first->in_fd;
        return first;
}

static void reply_result(struct client *c)
{
        json_t *answer = ok();

        json_object_set(answer, "return", c->result);
        if (c->event)
                json_object_set(answer, "event", json_object_get(c->event, "data") ?: c->event);
        reply(c, answer, -1);
}

void client_qmp_result(struct client *c, const json_t *line)
{
        struct qmp_message q;

        qmp_classify(line, &q);
        if (q.kind == QMP_ERROR) {
                reply_error(c, "internal", EIO, q.text);
                return;
        }
        if (c->forwarding) {
                forwarded(c, json_string_value(q.value) ?: "");
                return;
        }
        c->result = json_incref((json_t *)q.value);
        if (json_object_get(c->request, "await") && !c->event)
                c->state = AWAITING;
        else
                reply_result(c);
}

void client_qmp_event(struct shim *s, const json_t *line)
{
        struct qmp_message q;

        qmp_classify(line, &q);
        for (struct client *c = s->clients; c; c = c->next) {
                const json_t *wanted = c->request ? json_object_get(c->request, "await") : NULL;

                if ((c->state != SENT && c->state != AWAITING) || !wanted || c->event || !qmp_event_matches(&q, wanted))
                        continue;
                c->event = json_incref((json_t *)line);
                if (c->state == AWAITING)
                        reply_result(c);
        }
}

void client_qmp_lost(struct shim *s)
{
        for (struct client *c = s->clients; c; c = c->next)
                if (c->state == QUEUED || c->state == SENT || c->state == AWAITING)
                        reply_error(c, "unavailable", EPIPE, "QEMU has ended");
}

/* The driver's first connection learns how the start went. */
void client_started(struct shim *s, const struct error *err)
{
        for (struct client *c = s->clients; c; c = c->next) {
                if (c->state != STARTING)
                        continue;
                if (err)
                        reply_error(c, err->kind == ERROR_UNAVAILABLE ? "unavailable" :
                                       err->kind == ERROR_LIMIT ? "limit" : "internal", err->number, err->message);
                else
                        op_status(c);
        }
}

/* Polling. */

void client_accept(struct shim *s)
{
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0)
                client_new(s, fd, false);
}

size_t client_poll_size(const struct shim *s)
{
        return 2 * (size_t)s->client_count;
}

/* Two entries a client, in list order: its connection, and the socket it dials. */
size_t client_poll_fill(struct shim *s, struct pollfd *fds)
{
        size_t n = 0;

        for (struct client *c = s->clients; c; c = c->next) {
                short events = c->state == READING ? POLLIN : c->state == REPLYING ? POLLOUT : POLLRDHUP;

                fds[n++] = (struct pollfd){.fd = c->fd, .events = events};
                fds[n++] = (struct pollfd){.fd = c->dial_fd, .events = POLLOUT};
        }
        return n;
}

static void flush(struct client *c)
{
        /* Once the descriptor has left with the first byte it is gone from here. */
        ssize_t n;
        int r;

        if (c->out_fd >= 0) {
                r = fd_send(c->fd, c->out.data, 1, c->out_fd);
                if (r == -EAGAIN)
                        return;
                close_fd(&c->out_fd);
                if (r < 0) {
                        gone(c);
                        return;
                }
                buf_consume(&c->out, 1);
        }
        n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
                gone(c);
                return;
        }
        if (n > 0)
                buf_consume(&c->out, (size_t)n);
        if (c->out.len)
                return;
        buf_free(&c->out);
        c->out = (struct buf){};
        c->state = READING;
        take_request(c);
}

static void readable(struct client *c)
{
        ssize_t n = fd_recv(c->fd, &c->in, &c->in_fd, MSG_DONTWAIT);

        if (n == -EAGAIN)
                return;
        if (n <= 0)
                gone(c);
        else
                take_request(c);
}

static void handle(struct client *c, const struct pollfd *own, const struct pollfd *dial)
{
        if (c->state == DIALLING && dial->fd == c->dial_fd && dial->revents)
                dial_done(c);
        if (c->state == DIALLING && clock_monotonic_ns() >= c->deadline_ns)
                reply_error(c, "unavailable", ETIMEDOUT, "the guest did not answer in time");
        if (c->state == READING && (own->revents & (POLLIN | POLLHUP | POLLERR)))
                readable(c);
        else if (c->state != READING && c->state != REPLYING && (own->revents & (POLLRDHUP | POLLHUP | POLLERR)))
                gone(c);
        if (c->state == REPLYING)
                flush(c);
}

void client_poll_handle(struct shim *s, const struct pollfd *fds, size_t n)
{
        struct client *c = s->clients;

        for (size_t i = 0; i + 1 < n && c; i += 2, c = c->next)
                handle(c, fds + i, fds + i + 1);
        reap(s);
        monitor_queue(s);
}

void client_flush(struct shim *s)
{
        for (struct client *c = s->clients; c; c = c->next)
                if (c->state == REPLYING)
                        flush(c);
        reap(s);
}

int client_next_timeout_ms(const struct shim *s)
{
        int64_t now = clock_monotonic_ns(), first = INT64_MAX;

        for (const struct client *c = s->clients; c; c = c->next)
                if (c->state == DIALLING && c->deadline_ns < first)
                        first = c->deadline_ns;
        if (first == INT64_MAX)
                return -1;
        return first <= now ? 0 : (int)((first - now) / NSEC_PER_MSEC) + 1;
}
