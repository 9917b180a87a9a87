#include "base/subprocess.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

/* Captured output beyond this is dropped from the front of stderr, and is an error on stdout. */
#define STDERR_KEEP 4096
#define STDOUT_MAX (64UL << 20)

struct pipes {
        int in[2], out[2], err[2];
};

static void close_end(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static void pipes_close(struct pipes *p)
{
        for (int i = 0; i < 2; i++) {
                close_end(&p->in[i]);
                close_end(&p->out[i]);
                close_end(&p->err[i]);
        }
}

static int spawn(const char *const argv[], struct pipes *p, pid_t *ret)
{
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attr;
        sigset_t none, all;
        int r;

        posix_spawn_file_actions_init(&actions);
        posix_spawnattr_init(&attr);
        sigemptyset(&none);
        sigfillset(&all);
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawnattr_setsigdefault(&attr, &all);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        posix_spawn_file_actions_adddup2(&actions, p->in[0], 0);
        posix_spawn_file_actions_adddup2(&actions, p->out[1], 1);
        posix_spawn_file_actions_adddup2(&actions, p->err[1], 2);
        r = posix_spawnp(ret, argv[0], &actions, &attr, (char *const *)argv, environ);
        posix_spawnattr_destroy(&attr);
        posix_spawn_file_actions_destroy(&actions);
        return -r;
}

/* Reads what is there; closes the descriptor at its end. */
static void drain(int *fd, struct buf *to, size_t keep)
{
        ssize_t n = read(*fd, buf_reserve(to, 16384), 16384);

        if (n < 0 && (errno == EINTR || errno == EAGAIN))
                return;
        if (n <= 0) {
                close_end(fd);
                return;
        }
        buf_grew(to, (size_t)n);
        if (keep && to->len > 2 * keep)
                buf_consume(to, to->len - keep);
}

static void feed(int *fd, const char **input, size_t *len)
{
        ssize_t n = *len ? write(*fd, *input, *len) : 0;

        if (n < 0 && (errno == EINTR || errno == EAGAIN))
                return;
        if (n > 0) {
                *input += n;
                *len -= (size_t)n;
        }
        if (n < 0 || !*len)
                close_end(fd);
}

/* Moves bytes until both outputs ended. */
static void communicate(struct pipes *p, const char *input, size_t len, struct buf *out, struct buf *errors)
{
        while (p->out[0] >= 0 || p->err[0] >= 0) {
                struct pollfd fds[3] = {{.fd = p->in[1], .events = POLLOUT},
                                        {.fd = p->out[0], .events = POLLIN},
                                        {.fd = p->err[0], .events = POLLIN}};

                if (poll(fds, 3, -1) < 0)
                        continue;
                if (fds[0].revents)
                        feed(&p->in[1], &input, &len);
                if (fds[1].revents)
                        drain(&p->out[0], out, out->len > STDOUT_MAX ? STDOUT_MAX / 2 : 0);
                if (fds[2].revents)
                        drain(&p->err[0], errors, STDERR_KEEP);
        }
}

static int result(const char *name, int status, struct buf *errors, struct error *err)
{
        CLEANUP_FREE char *text = NULL;
        bool full;
        int r;

        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                return 0;
        if (errors->len > STDERR_KEEP)
                buf_consume(errors, errors->len - STDERR_KEEP);
        text = str_one_line(buf_str(errors));
        /* Programs tell of a full disk in words only; callers know it by the number. */
        full = strstr(text, "No space left on device") != NULL;
        if (WIFEXITED(status))
                r = error_set(err, full ? ERROR_UNAVAILABLE : ERROR_INTERNAL, "%s: exit status %d: %s", name, WEXITSTATUS(status), text);
        else
                r = error_set(err, ERROR_INTERNAL, "%s: killed by signal %d: %s", name, WTERMSIG(status), text);
        if (full && err)
                err->number = ENOSPC;
        return full ? -ENOSPC : r;
}

int subprocess_feed(const char *const argv[], const void *input, size_t len, struct buf *out, struct error *err)
{
        struct pipes p = {{-1, -1}, {-1, -1}, {-1, -1}};
        CLEANUP_BUF struct buf dropped = {}, errors = {};
        void (*old)(int);
        int status, r;
        pid_t pid;

        if (pipe2(p.in, O_CLOEXEC) < 0 || pipe2(p.out, O_CLOEXEC) < 0 || pipe2(p.err, O_CLOEXEC) < 0) {
                r = error_errno(err, errno, "run %s: pipe", argv[0]);
                pipes_close(&p);
                return r;
        }
        r = spawn(argv, &p, &pid);
        if (r < 0) {
                pipes_close(&p);
                if (r == -ENOENT)
                        return error_set(err, ERROR_UNAVAILABLE, "program %s is not installed (see vmon doctor)",
                                         argv[0]);
                return error_errno(err, r, "run %s", argv[0]);
        }
        close_end(&p.in[0]);
        close_end(&p.out[1]);
        close_end(&p.err[1]);
        if (!len)
                close_end(&p.in[1]);
        else
                fcntl(p.in[1], F_SETFL, O_NONBLOCK);
        /* A child that does not read its input must not end us. */
        old = signal(SIGPIPE, SIG_IGN);
        communicate(&p, input, len, out ? out : &dropped, &errors);
        if (old != SIG_ERR)
                signal(SIGPIPE, old);
        pipes_close(&p);
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return error_errno(err, errno, "wait for %s", argv[0]);
        return result(argv[0], status, &errors, err);
}

int subprocess_run(const char *const argv[], struct buf *out, struct error *err)
{
        return subprocess_feed(argv, NULL, 0, out, err);
}

char *program_beside(const char *name)
{
        char self[4096];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        const char *slash;

        if (n < 0)
                return xstrdup(name);
        self[n] = '\0';
        slash = strrchr(self, '/');
        return xasprintf("%.*s/%s", slash ? (int)(slash - self) : 0, self, name);
}
