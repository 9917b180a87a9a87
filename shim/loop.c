/* The poll loop and the end of a VM. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "shim.h"

enum { LISTEN, MONITOR, CONSOLE, ERRORS, SHARE_ERRORS, TIMER, SIGNAL, QEMU, VIRTIOFSD, FIXED };

int shim_set_timer(struct shim *s, int64_t expires_at_ns)
{
        struct itimerspec t = {.it_value = {.tv_sec = expires_at_ns / NSEC_PER_SEC,
                                            .tv_nsec = expires_at_ns % NSEC_PER_SEC}};

        if (s->timer_fd < 0)
                s->timer_fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);
        if (s->timer_fd < 0)
                return -errno;
        /* Absolute wall-clock time, also right after the clock was set. */
        if (timerfd_settime(s->timer_fd, TFD_TIMER_ABSTIME, &t, NULL) < 0)
                return -errno;
        s->expires_at_ns = expires_at_ns;
        return 0;
}

void shim_end(struct shim *s, const char *reason)
{
        if (s->ending)
                return;
        s->ending = true;
        s->reason = reason;
        if (s->qemu > 0 && !s->qemu_reaped)
                kill(s->qemu, SIGKILL);
}

static void close_fd(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static void drain(int *fd, struct ring *to)
{
        char chunk[4096];
        ssize_t n = read(*fd, chunk, sizeof chunk);

        if (n > 0)
                ring_add(to, chunk, (size_t)n);
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
                close_fd(fd);
}

static void drain_all(int *fd, struct ring *to)
{
        if (*fd < 0)
                return;
        fcntl(*fd, F_SETFL, O_NONBLOCK);
        for (;;) {
                char chunk[4096];
                ssize_t n = read(*fd, chunk, sizeof chunk);

                if (n <= 0)
                        return;
                ring_add(to, chunk, (size_t)n);
        }
}

static void expired(struct shim *s)
{
        uint64_t count;

        if (read(s->timer_fd, &count, sizeof count) > 0)
                shim_end(s, "expired");
}

static void qemu_ended(struct shim *s)
{
        if (waitpid(s->qemu, &s->qemu_status, 0) != s->qemu)
                return;
        s->qemu_reaped = true;
        close_fd(&s->qemu_pidfd);
        drain_all(&s->console_fd, &s->console);
        drain_all(&s->errors_fd, &s->errors);
        drain_all(&s->share_errors_fd, &s->errors);
        if (s->monitor.fd >= 0 && !s->monitor.guest_shutdown)
                monitor_readable(s); /* a last SHUTDOWN event may wait there */
        monitor_closed(s);
}

static void virtiofsd_ended(struct shim *s)
{
        int status;

        waitpid(s->virtiofsd, &status, 0);
        s->virtiofsd = 0;
        close_fd(&s->virtiofsd_pidfd);
}

static void handle_fixed(struct shim *s, const struct pollfd *f)
{
        if (f[CONSOLE].revents)
                drain(&s->console_fd, &s->console);
        if (f[ERRORS].revents)
                drain(&s->errors_fd, &s->errors);
        if (f[SHARE_ERRORS].revents)
                drain(&s->share_errors_fd, &s->errors);
        if (f[MONITOR].revents)
                monitor_readable(s);
        if (f[TIMER].revents)
                expired(s);
        if (f[SIGNAL].revents)
                shim_end(s, "killed");
        if (f[VIRTIOFSD].revents)
                virtiofsd_ended(s);
        if (f[LISTEN].revents)
                client_accept(s);
        if (f[QEMU].revents)
                qemu_ended(s);
}

int shim_loop(struct shim *s)
{
        CLEANUP_FREE struct pollfd *fds = NULL;
        size_t capacity = 0;

        while (!s->qemu_reaped) {
                size_t need = FIXED + client_poll_size(s) + egress_poll_size(s), n, e;
                const int fixed[FIXED] = {
                        s->client_count < SHIM_CLIENTS_MAX ? s->listen_fd : -1, s->monitor.fd, s->console_fd, s->errors_fd,
                        s->share_errors_fd, s->timer_fd, s->signal_fd, s->qemu_pidfd, s->virtiofsd_pidfd};

                if (!fds || need > capacity) {
                        capacity = need + 16;
                        fds = xreallocarray(fds, capacity, sizeof *fds);
                }
                for (size_t i = 0; i < FIXED; i++)
                        fds[i] = (struct pollfd){.fd = fixed[i], .events = POLLIN};
                n = client_poll_fill(s, fds + FIXED);
                e = egress_poll_fill(s, fds + FIXED + n);
                if (poll(fds, FIXED + n + e, client_next_timeout_ms(s)) < 0 && errno != EINTR)
                        return -errno;
                /* What is already there first: clients may replace rules, fixed handlers add a client at the head of the list. */
                egress_poll_handle(s, fds + FIXED + n, e);
                client_poll_handle(s, fds + FIXED, n);
                handle_fixed(s, fds);
        }
        return 0;
}
