/* The host-only serial channel (docs/agent-protocol.md): JSON lines over QEMU's chardev socket.
 *
 * What the host writes before the guest has opened the port waits in the socket, so one ping is normally enough; it is repeated
 * because an agent that executes its successor (switch-root) can take a line with it. Answers to abandoned requests are
 * recognised by their id and dropped.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/agent_internal.h"
#include "vm/fdpass.h"
#include "vm/vm_internal.h"

#define PING_INTERVAL_MS 1000
/* Granularity of cancellation and of noticing that the VM is gone. */
#define SLICE_MS 250
/* From the end of QEMU's sockets to that of its shim. */
#define END_WAIT_MS 2000
/* Console lines shown with a guest that does not come up. */
#define CONSOLE_LINES 12

struct agent {
        struct vm *vm;
        int fd;
        json_int_t last_id;
        struct buf in;
};

int agent_open(struct vm *vm, struct agent **ret, struct error *err)
{
        struct agent *a;
        int fd, r = vm_agent_channel(vm, &fd, err);

        if (r < 0)
                return r;
        a = xcalloc(1, sizeof *a);
        a->vm = vm;
        a->fd = fd;
        *ret = a;
        return 0;
}

void agent_close(struct agent *a)
{
        if (!a)
                return;
        close(a->fd);
        buf_free(&a->in);
        free(a);
}

int agent_send(struct agent *a, const char *op, const json_t *arguments, json_int_t *ret_id, struct error *err)
{
        CLEANUP_JSON json_t *request = json_pack("{s:s, s:I}", "op", op, "id", a->last_id + 1);
        int r;

        if (arguments)
                json_object_update_missing(request, (json_t *)arguments);
        r = line_send(a->fd, request, -1);
        if (r < 0)
                return error_errno(err, r, "guest agent: send %s", op);
        *ret_id = ++a->last_id;
        return 0;
}

static int failure(const json_t *e, struct error *err)
{
        const char *kind = json_str(e, "kind"), *message = json_str(e, "message") ?: "unknown error";

        if (streq(kind, "invalid"))
                return error_set(err, ERROR_INVALID, "%s", message);
        if (streq(kind, "not-found"))
                return error_set(err, ERROR_NOT_FOUND, "%s", message);
        if (streq(kind, "unavailable"))
                return error_set(err, ERROR_UNAVAILABLE, "%s", message);
        return error_set(err, ERROR_INTERNAL, "%s", message);
}

/* One line of the answer: 1 = it was the last one, 0 = more to come. */
static int take_answer(const json_t *line, json_int_t id, agent_event on_event, void *data, json_t **ret, struct error *err)
{
        const json_t *e;

        if (json_int(line, "id", -1) != id)
                return 0;
        if ((e = json_object_get(line, "event"))) {
                if (on_event)
                        on_event(e, data);
                return 0;
        }
        if ((e = json_object_get(line, "error")))
                return failure(e, err);
        if (ret)
                *ret = json_incref(json_object_get(line, "result") ?: json_null());
        return 1;
}

int agent_wait(struct agent *a, json_int_t id, int timeout_ms, agent_event on_event, void *data, json_t **ret,
               struct error *err)
{
        int64_t end = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;

        for (;;) {
                CLEANUP_JSON json_t *line = NULL;
                int64_t left = (end - clock_monotonic_ns()) / NSEC_PER_MSEC;
                int r = line_receive(a->fd, &a->in, left > 0 ? (int)left : 0, &line, NULL);

                if (r == -ETIMEDOUT) {
                        error_set(err, ERROR_UNAVAILABLE, "guest agent: no answer within %d ms", timeout_ms);
                        return -ETIMEDOUT;
                }
                if (r == -EPIPE || r == -ECONNRESET)
                        return error_set(err, ERROR_UNAVAILABLE, "guest agent: the virtual machine has ended");
                if (r < 0)
                        return error_errno(err, r, "guest agent: malformed answer");
                r = take_answer(line, id, on_event, data, ret, err);
                if (r != 0)
                        return r < 0 ? r : 0;
        }
}

int agent_request(struct agent *a, const char *op, const json_t *arguments, unsigned timeout_s, agent_event on_event,
                  void *data, json_t **ret, struct error *err)
{
        json_int_t id;
        int r = agent_send(a, op, arguments, &id, err);

        if (r == 0)
                r = agent_wait(a, id, (int)timeout_s * 1000, on_event, data, ret, err);
        return r < 0 ? error_wrap(err, r, "%s", op) : 0;
}

/* The last lines of the console, for a message; of a panic the line that names it, and not the trace that follows. */
static const char *tail(char *console)
{
        char *panic = strstr(console, "Kernel panic");
        const char *p = console + strlen(console);
        int lines = 0;

        if (panic) {
                panic[strcspn(panic, "\r\n")] = '\0';
                return panic;
        }

        while (p > console && lines <= CONSOLE_LINES)
                if (*--p == '\n' && ++lines > CONSOLE_LINES)
                        return p + 1;
        return p;
}

static int not_up(struct vm *vm, const char *why, struct error *err)
{
        CLEANUP_FREE char *console = vm_console(vm), *line = str_one_line(tail(str_trim(console)));

        return error_set(err, ERROR_UNAVAILABLE, "the guest of VM %s did not come up: %s; its console ends with: %s", vm->id, why,
                         *line ? line : "(nothing)");
}

/* The same for one that has ended, or is just ending. */
static int not_up_ended(struct vm *vm, struct error *err)
{
        CLEANUP_FREE char *why = NULL;
        bool full = false;
        int r;

        if (!vm_end_reason(vm, END_WAIT_MS, &why, &full))
                why = xstrdup("the virtual machine has ended");
        r = not_up(vm, why, err);
        if (full && err)
                err->number = ENOSPC;
        return r;
}

static bool ended(const struct vm *vm)
{
        struct pollfd p = {.fd = vm_exit_fd(vm), .events = POLLIN};

        return poll(&p, 1, 0) > 0;
}

/* One ping with its wait in slices: 1 when the wanted mode answered, 0 when not yet. */
static int ping(struct agent *a, const char *mode, bool (*cancelled)(void *), void *data, struct error *err)
{
        int64_t end = clock_monotonic_ns() + PING_INTERVAL_MS * NSEC_PER_MSEC;
        CLEANUP_JSON json_t *result = NULL;
        json_int_t id;
        int r = agent_send(a, "ping", NULL, &id, err);

        if (r < 0)
                return r;
        for (;;) {
                r = agent_wait(a, id, SLICE_MS, NULL, NULL, &result, err);
                if (cancelled && cancelled(data))
                        return error_set(err, ERROR_CANCELLED, "cancelled while waiting for the guest");
                if (r != -ETIMEDOUT)
                        break;
                if (ended(a->vm) || clock_monotonic_ns() >= end)
                        return 0;
        }
        if (r < 0)
                return r;
        if (!mode || streq(json_str(result, "mode"), mode))
                return 1;
        /* The predecessor answered; give the next one a moment before asking again. */
        poll(NULL, 0, SLICE_MS / 5);
        return 0;
}

/* The socket goes with QEMU, and an agent that changes root may close its end: reopen in the latter case. */
static int reopen(struct agent *a)
{
        int fd;

        if (ended(a->vm) || vm_agent_channel(a->vm, &fd, NULL) < 0)
                return -ENOENT;
        close(a->fd);
        a->fd = fd;
        buf_clear(&a->in);
        return 0;
}

int agent_connect(struct vm *vm, const char *mode, unsigned timeout_s, bool (*cancelled)(void *), void *data,
                  struct agent **ret, struct error *err)
{
        int64_t end = clock_monotonic_ns() + timeout_s * NSEC_PER_SEC;
        struct agent *a;
        int r = agent_open(vm, &a, err);

        if (r < 0)
                return ended(vm) ? not_up_ended(vm, err) : r;
        do {
                r = ping(a, mode, cancelled, data, err);
                if (r == 0 && ended(vm))
                        r = -ENOENT;
                if (r < 0 && r != -ECANCELED && reopen(a) == 0)
                        r = 0;
        } while (r == 0 && clock_monotonic_ns() < end);
        if (r > 0) {
                *ret = a;
                return 0;
        }
        agent_close(a);
        if (r == -ECANCELED)
                return r;
        /* QEMU's sockets end a moment before its shim does. */
        if (r < 0 && vm_wait_end(vm, END_WAIT_MS))
                return not_up_ended(vm, err);
        if (r < 0)
                return r;
        CLEANUP_FREE char *why = xasprintf("its agent did not answer within %u s", timeout_s);

        return not_up(vm, why, err);
}
