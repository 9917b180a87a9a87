/* Theory of operation. A process is in one of three states:
 *
 *   running   registered, PID alive
 *   reaped    waitpid() has its status, but an output pipe is still held open by a descendant
 *   finished  off the registry; only its end is retained for 30 s
 *
 * running -> reaped on SIGCHLD; reaped -> finished when both pipes reached EOF, or at once when the process was
 * signalled through the agent or its deadline fired (envd.md 2.1 Start 5): then what the pipes hold is drained.
 *
 * An ordered process (a build step, below) is waited for PROCESS_LINGER_MS at most: a daemon that it started and that holds its output
 * would otherwise hold the build until its time limit.
 *
 * Output is read by uv_poll_t, 32 KiB a read, one event a read, and given to every listener; reading pauses while
 * any listener is blocked and never otherwise, so that nobody listening means read and drop. Input is a queue of
 * requests written as the pipe takes it.
 *
 * Ordered output (build steps): two pipes alone do not tell in which order they were written. Here each holds one packet, the data of
 * one write (spawn.c), and both are watched edge-triggered by an epoll descriptor of their own, whose ready list is in the order of the
 * writes: a writer has queued the first pipe before it can write the second, and cannot write either anew before the agent has read
 * it. So one packet is read for each event, never more, and all of a process's writes are seen in its order. Only a descriptor that
 * the process opened anew by name (/dev/stderr) lacks the packet mode: the kernel may append its write to one that waits in that pipe,
 * which then overtakes what was written to the other pipe in between. Nothing that a process may open by name has packets.
 *
 * Reaping looks with WNOWAIT first: a child is collected only after it is known whose it is.
 */
#include "process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <uv.h>

#include "agent.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "loop.h"
#include "process-internal.h"

#define PIPE_READ (32 * 1024)
#define PTY_READ (16 * 1024)
#define PACKET_MAX (64 * 1024) /* a page, the largest there is; what a read leaves of a packet would be lost */
#define READS_PER_WAKE 8 /* so that one noisy process does not starve the others */
#define DRAIN_MAX (1024 * 1024)

struct pipe_end {
        uv_poll_t *poll;       /* NULL when closed */
        int fd;
        enum process_stream stream;
        struct process *process;
};

struct input {
        struct input *next;
        char *data;
        size_t len, done;
        void (*callback)(void *data, int result);
        void *userdata;
};

struct waiter {
        struct waiter *next;
        void (*done)(void *data);
        void *data;
};

struct process {
        struct process *next;
        pid_t pid;
        json_t *info;               /* ProcessInfo for List */
        char *tag;
        bool pty, reaped, hurried;
        uint64_t bytes[STREAM_PTY + 1]; /* that came, by stream */
        int status;
        struct pipe_end out, err, in;
        uv_poll_t *order;           /* on `order_fd`, which watches out and err; NULL unless ordered */
        int order_fd;
        struct input *inputs;
        struct process_listener *listeners;
        struct waiter *waiters;
        struct timer *deadline, *linger;
};

static struct process *processes;

static void free_poll(uv_handle_t *handle)
{
        free(handle);
}

static void pipe_close(struct pipe_end *e)
{
        if (!e->poll)
                return;
        /* A child that is just being forked may hold a copy: closing alone would leave the pipe watched. */
        if (e->process->order)
                epoll_ctl(e->process->order_fd, EPOLL_CTL_DEL, e->fd, NULL);
        uv_poll_stop(e->poll);
        uv_close((uv_handle_t *)e->poll, free_poll);
        e->poll = NULL;
        close(e->fd);
        e->fd = -1;
}

static void pipe_open(struct process *p, struct pipe_end *e, int fd, enum process_stream stream)
{
        *e = (struct pipe_end){ .fd = fd, .stream = stream, .process = p };
        if (fd < 0)
                return;
        e->poll = xcalloc(1, sizeof(*e->poll));
        uv_poll_init(agent_loop, e->poll, fd);
        e->poll->data = e;
}

static void deliver(struct process *p, enum process_stream stream, const char *data, size_t len)
{
        struct process_listener *next;

        for (struct process_listener *l = p->listeners; l; l = next) {
                next = l->next;
                l->output(l, stream, data, len);
        }
}

static bool is_blocked(const struct process *p)
{
        for (const struct process_listener *l = p->listeners; l; l = l->next)
                if (l->blocked)
                        return true;
        return false;
}

/* One read. 1 = there was data, 0 = nothing now, -1 = end. */
static int read_once(struct pipe_end *e)
{
        char data[PACKET_MAX];
        ssize_t n = read(e->fd, data, e->stream == STREAM_PTY ? PTY_READ : e->process->order ? PACKET_MAX : PIPE_READ);

        if (n > 0) {
                e->process->bytes[e->stream] += (uint64_t)n;
                deliver(e->process, e->stream, data, (size_t)n);
                return 1;
        }
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1; /* a pty ends with EIO */
}

static void finish_if_done(struct process *p);
static void update_reading(struct process *p);

static void on_readable(uv_poll_t *handle, int status, int events)
{
        struct pipe_end *e = handle->data;
        struct process *p = e->process;
        int r = 1;

        (void)events;
        for (int i = 0; i < READS_PER_WAKE && r > 0 && !is_blocked(p); i++)
                r = status < 0 ? -1 : read_once(e);
        if (r < 0)
                pipe_close(e);
        update_reading(p);
        finish_if_done(p);
}

static void watch_in_order(struct process *p, struct pipe_end *e, int operation)
{
        struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.ptr = e };

        if (epoll_ctl(p->order_fd, operation, e->fd, &event) < 0)
                log_error("watch the output of process %d: %m", (int)p->pid);
}

/* One packet of the pipe that was written first. False when nothing is ready. */
static bool read_in_order(struct process *p)
{
        struct epoll_event event;
        struct pipe_end *e;
        int left = 0;

        if (epoll_wait(p->order_fd, &event, 1, 0) <= 0)
                return false;
        e = event.data.ptr;
        if (read_once(e) < 0)
                pipe_close(e);
        /* The end makes no event of its own when it came with the last packet; and a pipe may hold more than one after all. */
        else if ((event.events & EPOLLHUP) || (ioctl(e->fd, FIONREAD, &left) == 0 && left > 0))
                watch_in_order(p, e, EPOLL_CTL_MOD);
        return true;
}

static void on_order(uv_poll_t *handle, int status, int events)
{
        struct process *p = handle->data;

        (void)status, (void)events;
        for (int i = 0; i < READS_PER_WAKE && !is_blocked(p) && read_in_order(p); i++)
                ;
        update_reading(p);
        finish_if_done(p);
}

static void order_open(struct process *p)
{
        p->order_fd = epoll_create1(EPOLL_CLOEXEC);
        if (p->order_fd < 0)
                return; /* read as they come, then */
        p->order = xcalloc(1, sizeof(*p->order));
        uv_poll_init(agent_loop, p->order, p->order_fd);
        p->order->data = p;
        watch_in_order(p, &p->out, EPOLL_CTL_ADD);
        watch_in_order(p, &p->err, EPOLL_CTL_ADD);
}

static void order_close(struct process *p)
{
        if (!p->order)
                return;
        uv_poll_stop(p->order);
        uv_close((uv_handle_t *)p->order, free_poll);
        p->order = NULL;
        close(p->order_fd);
}

static void update_reading(struct process *p)
{
        bool blocked = is_blocked(p);

        if (p->order && blocked)
                uv_poll_stop(p->order);
        else if (p->order)
                uv_poll_start(p->order, UV_READABLE, on_order);
        if (p->order)
                return;
        for (struct pipe_end **e = (struct pipe_end *[]){ &p->out, &p->err, NULL }; *e; e++) {
                if (!(*e)->poll)
                        continue;
                if (blocked)
                        uv_poll_stop((*e)->poll);
                else
                        uv_poll_start((*e)->poll, UV_READABLE, on_readable);
        }
}

static void drain(struct pipe_end *e)
{
        for (size_t total = 0; e->poll && total < DRAIN_MAX; total += PTY_READ)
                if (read_once(e) <= 0)
                        break;
        pipe_close(e);
}

static void end_inputs(struct process *p, int result)
{
        while (p->inputs) {
                struct input *i = p->inputs;

                p->inputs = i->next;
                if (i->callback)
                        i->callback(i->userdata, result);
                free(i->data);
                free(i);
        }
}

static void run_waiters(struct process *p)
{
        while (p->waiters) {
                struct waiter *w = p->waiters;

                p->waiters = w->next;
                w->done(w->data);
                free(w);
        }
}

static void unregister(struct process *p)
{
        for (struct process **at = &processes; *at; at = &(*at)->next)
                if (*at == p) {
                        *at = p->next;
                        return;
                }
}

static void finish(struct process *p)
{
        struct process_end end;

        drain(&p->out);
        drain(&p->err);
        order_close(p);
        pipe_close(&p->in);
        end_inputs(p, -EPIPE);
        process_describe(p->status, &end);
        process_log_end(p->pid, p->tag, p->pty, p->bytes, &end);
        unregister(p);
        process_retain(p->pid, p->tag, &end);
        while (p->listeners) {
                struct process_listener *l = p->listeners;

                p->listeners = l->next;
                l->process = NULL;
                l->ended(l, &end);
        }
        p->deadline = timer_free(p->deadline);
        p->linger = timer_free(p->linger);
        json_decref(p->info);
        free(p->tag);
        free(p);
}

static void finish_if_done(struct process *p)
{
        if (p->reaped && (p->hurried || (!p->out.poll && !p->err.poll)))
                finish(p);
}

static void on_deadline(void *data)
{
        struct process *p = data;

        p->hurried = true;
        if (!p->reaped)
                kill(p->pid, SIGKILL);
        finish_if_done(p);
}

static void on_linger(void *data)
{
        struct process *p = data;

        p->hurried = true;
        finish_if_done(p);
}

static json_t *make_info(const struct process_start *s, pid_t pid)
{
        json_t *config = json_object(), *info = json_object();

        if (*s->spawn.command)
                json_object_set_new(config, "cmd", json_string(s->spawn.command));
        if (json_array_size(s->spawn.args))
                json_object_set_new(config, "args", json_deep_copy(s->spawn.args));
        if (json_object_size(s->spawn.env))
                json_object_set_new(config, "envs", json_deep_copy(s->spawn.env));
        if (s->cwd_given)
                json_object_set_new(config, "cwd", json_string(s->cwd_given));
        json_object_set_new(info, "config", config);
        json_object_set_new(info, "pid", json_integer(pid));
        if (s->tag)
                json_object_set_new(info, "tag", json_string(s->tag));
        return info;
}

int process_start(const struct process_start *s, struct process **ret, struct error *err)
{
        struct spawned child;
        struct process *p;
        int r = spawn_child(&s->spawn, &child, err);

        if (r < 0)
                return r;
        p = xcalloc(1, sizeof(*p));
        p->pid = child.pid;
        p->pty = s->spawn.pty;
        p->tag = s->tag ? xstrdup(s->tag) : NULL;
        p->info = make_info(s, p->pid);
        pipe_open(p, &p->out, child.out, p->pty ? STREAM_PTY : STREAM_STDOUT);
        pipe_open(p, &p->err, child.err, STREAM_STDERR);
        pipe_open(p, &p->in, child.in, STREAM_STDOUT);
        if (s->spawn.ordered && !p->pty)
                order_open(p);
        process_forget_ended(p->pid, p->tag);
        p->next = processes;
        processes = p;
        if (s->deadline_ms >= 0)
                p->deadline = timer_start((uint64_t)s->deadline_ms, 0, on_deadline, p);
        process_log_start(p->pid, s);
        update_reading(p);
        *ret = p;
        return 0;
}

struct process *process_by_pid(pid_t pid)
{
        for (struct process *p = processes; p; p = p->next)
                if (p->pid == pid)
                        return p;
        return NULL;
}

struct process *process_by_tag(const char *tag)
{
        struct process *found = NULL;

        for (struct process *p = processes; p; p = p->next)
                if (p->tag && streq(p->tag, tag))
                        found = p; /* the list is newest first: the oldest live one counts */
        return found;
}

pid_t process_pid(const struct process *p)
{
        return p->pid;
}

bool process_is_pty(const struct process *p)
{
        return p->pty;
}

json_t *process_list(void)
{
        json_t *list = json_array();

        for (struct process *p = processes; p; p = p->next)
                json_array_append(list, p->info);
        return list;
}

void process_listen(struct process *p, struct process_listener *l)
{
        l->process = p;
        l->blocked = false;
        l->next = p->listeners;
        p->listeners = l;
}

void process_unlisten(struct process_listener *l)
{
        struct process *p = l->process;

        if (!p)
                return;
        for (struct process_listener **at = &p->listeners; *at; at = &(*at)->next)
                if (*at == l) {
                        *at = l->next;
                        break;
                }
        l->process = NULL;
        update_reading(p);
}

void process_unblock(struct process_listener *l)
{
        l->blocked = false;
        if (l->process)
                update_reading(l->process);
}

static void write_inputs(struct process *p);

static void on_writable(uv_poll_t *handle, int status, int events)
{
        struct pipe_end *e = handle->data;

        (void)status, (void)events;
        write_inputs(e->process);
}

static void close_input(struct process *p, int result)
{
        pipe_close(&p->in);
        end_inputs(p, result);
}

static void write_inputs(struct process *p)
{
        while (p->inputs && p->in.poll) {
                struct input *i = p->inputs;
                ssize_t n = i->len > i->done ? write(p->in.fd, i->data + i->done, i->len - i->done) : 0;

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EAGAIN) {
                        uv_poll_start(p->in.poll, UV_WRITABLE, on_writable);
                        return;
                }
                if (n < 0) {
                        int number = errno;

                        if (p->pty)
                                end_inputs(p, -number);
                        else
                                close_input(p, -number);
                        return;
                }
                i->done += (size_t)n;
                if (i->done < i->len)
                        continue;
                p->inputs = i->next;
                if (i->callback)
                        i->callback(i->userdata, 0);
                free(i->data);
                free(i);
        }
        if (p->in.poll)
                uv_poll_stop(p->in.poll);
}

void process_write(struct process *p, const void *data, size_t len, void (*done)(void *data, int result), void *userdata)
{
        struct input *i, **end;

        if (!p->in.poll) {
                done(userdata, -EBADF);
                return;
        }
        i = xcalloc(1, sizeof(*i));
        *i = (struct input){ NULL, xmemdup(data, len), len, 0, done, userdata };
        for (end = &p->inputs; *end; end = &(*end)->next)
                ;
        *end = i;
        if (p->inputs == i)
                write_inputs(p);
}

void process_forget_writer(void *userdata)
{
        for (struct process *p = processes; p; p = p->next)
                for (struct input *i = p->inputs; i; i = i->next)
                        if (i->userdata == userdata)
                                i->callback = NULL;
}

void process_close_stdin(struct process *p)
{
        close_input(p, -EBADF);
}

int process_signal(struct process *p, int number)
{
        if (!p->reaped && kill(p->pid, number) < 0 && errno != ESRCH)
                return -errno;
        if (number == SIGKILL || number == SIGTERM)
                p->hurried = true;
        finish_if_done(p);
        return 0;
}

void process_when_reaped(struct process *p, void (*done)(void *data), void *data)
{
        struct waiter *w;

        if (p->reaped) {
                done(data);
                return;
        }
        w = xcalloc(1, sizeof(*w));
        *w = (struct waiter){ p->waiters, done, data };
        p->waiters = w;
}

void process_forget_reaped(void *data)
{
        for (struct process *p = processes; p; p = p->next)
                for (struct waiter **at = &p->waiters; *at; )
                        if ((*at)->data == data) {
                                struct waiter *w = *at;

                                *at = w->next;
                                free(w);
                        } else
                                at = &(*at)->next;
}

int process_resize(struct process *p, unsigned short cols, unsigned short rows)
{
        struct winsize size = { .ws_col = cols, .ws_row = rows };

        if (!p->out.poll)
                return 0;
        return ioctl(p->out.fd, TIOCSWINSZ, &size) < 0 ? -errno : 0;
}

void process_reap(void)
{
        siginfo_t info;

        for (;;) {
                struct process *p;
                int status;

                info.si_pid = 0;
                if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
                        return;
                p = process_by_pid(info.si_pid);
                if (waitpid(info.si_pid, &status, 0) < 0 || !p || p->reaped)
                        continue;
                p->status = status;
                p->reaped = true;
                if (p->order)
                        p->linger = timer_start(PROCESS_LINGER_MS, 0, on_linger, p);
                run_waiters(p);
                finish_if_done(p);
        }
}
