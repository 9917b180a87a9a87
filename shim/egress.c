/* The guest's connections that domains decide on (egress/egress.h): who listens for them, and the programs that serve them.
 *
 * A program is started when the first connection waits, so that a sandbox whose guest asks for nothing costs nothing; and again when one has ended by
 * itself. New rules get a listener and a program of their own. The program before accepts no more and goes with its last connection: rules are for
 * connections that are not open yet.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/json.h"
#include "base/mem.h"
#include "network.h"
#include "shim.h"
#include "vm/net.h"
#include "vm/net_egress.h"

/* Programs that still have connections by former rules; of more, the oldest is ended. */
#define DRAINING_MAX 8

struct egress {
        struct egress *next; /* newest first */
        int listener;        /* -1: superseded */
        int control;         /* -1: not running */
        pid_t pid;
        json_t *domains;
};

static void close_fd(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static void end_program(struct egress *e, bool now)
{
        if (e->control < 0)
                return;
        if (now)
                kill(e->pid, SIGKILL);
        while (waitpid(e->pid, NULL, 0) < 0 && errno == EINTR)
                ;
        close_fd(&e->control);
}

static void egress_free(struct egress *e)
{
        end_program(e, true);
        close_fd(&e->listener);
        json_decref(e->domains);
        free(e);
}

/* Those that are superseded and have ended, and the oldest of too many. */
static void reap(struct shim *s)
{
        unsigned draining = 0;

        for (struct egress **p = &s->egress; *p;) {
                struct egress *e = *p;

                if (e->listener >= 0 || (e->control >= 0 && ++draining <= DRAINING_MAX)) {
                        p = &e->next;
                        continue;
                }
                *p = e->next;
                s->egress_count--;
                egress_free(e);
        }
}

void egress_replace(struct shim *s, int listener, const json_t *domains)
{
        for (struct egress *e = s->egress; e; e = e->next) {
                close_fd(&e->listener);
                if (e->control >= 0)
                        shutdown(e->control, SHUT_WR);
        }
        if (listener >= 0) {
                struct egress *e = xcalloc(1, sizeof *e);

                *e = (struct egress){.next = s->egress, .listener = listener, .control = -1, .domains = json_deep_copy(domains)};
                s->egress = e;
                s->egress_count++;
        }
        reap(s);
}

void egress_end(struct shim *s)
{
        egress_replace(s, -1, NULL);
        while (s->egress) {
                struct egress *e = s->egress;

                s->egress = e->next;
                s->egress_count--;
                egress_free(e);
        }
}

size_t egress_poll_size(const struct shim *s)
{
        return s->egress_count;
}

/* One entry each: the running program's end, or a connection that wants one. */
size_t egress_poll_fill(const struct shim *s, struct pollfd *fds)
{
        size_t n = 0;

        for (const struct egress *e = s->egress; e; e = e->next)
                fds[n++] = (struct pollfd){.fd = e->control >= 0 ? e->control : e->listener, .events = e->control >= 0 ? POLLRDHUP : POLLIN};
        return n;
}

static void join_cgroup(void *shim)
{
        cgroup_join(shim);
}

/* Nobody can serve them: refused, each that waits, and what comes next is tried again. */
static void refuse_waiting(struct egress *e)
{
        const struct linger reset = {1, 0};
        int fd;

        while (e->listener >= 0 && (fd = accept4(e->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
                close(fd);
        }
}

static void start_program(struct shim *s, struct egress *e)
{
        CLEANUP_FREE const char **domains = network_strings(e->domains);
        struct net_egress_start start = {e->listener, EGRESS_UID_BASE + (uid_t)s->slot, domains, join_cgroup, s};
        struct error err = {};

        if (net_egress_spawn(&start, &e->pid, &e->control, &err) < 0) {
                ring_add(&s->errors, err.message, strlen(err.message));
                refuse_waiting(e);
        }
}

void egress_poll_handle(struct shim *s, const struct pollfd *fds, size_t n)
{
        struct egress *e = s->egress;

        for (size_t i = 0; i < n && e; i++, e = e->next) {
                if (!fds[i].revents)
                        continue;
                if (e->control >= 0 && fds[i].fd == e->control) {
                        end_program(e, false);
                        refuse_waiting(e);
                } else if (e->control < 0 && fds[i].fd == e->listener) {
                        start_program(s, e);
                }
        }
        reap(s);
}
