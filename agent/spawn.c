/* Theory of operation: after fork() the child makes system calls only, on memory that the parent prepared: the
 * agent has threads, so no lock (malloc's, stdio's) may be taken there. IDs change by raw system calls because
 * glibc's wrappers would signal the other threads, which the child does not have.
 *
 * A close-on-exec pipe tells the parent: closed by exec = running; otherwise a stage and an errno.
 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "state.h"

#define CANDIDATES_MAX 64
#define IOPRIO_BEST_EFFORT_4 ((2 << 13) | 4)

struct plan {
        char **argv;
        char **shell_argv;      /* for scripts without #!, and for a missing /bin/bash */
        char **env;
        char **candidates;      /* paths to try, NULL-terminated */
        const char *command;
        const char *cwd;
        const struct user *user;
        int fds[3];
        int report, cgroup;
        bool pty, bash;
};

enum stage { STAGE_IDENTITY, STAGE_CWD, STAGE_EXEC };

struct failure {
        int stage, number;
};

static void free_list(char **list)
{
        for (size_t i = 0; list && list[i]; i++)
                free(list[i]);
        free(list);
}

static char **make_argv(const struct spawn *s)
{
        size_t n = json_array_size(s->args);
        char **argv = xcalloc(n + 2, sizeof(*argv));

        argv[0] = xstrdup(s->command);
        for (size_t i = 0; i < n; i++)
                argv[i + 1] = xstrdup(json_string_value(json_array_get(s->args, i)));
        return argv;
}

/* {"sh", command, args…} or, in place of bash, {"sh", args…}. Borrows from argv. */
static char **make_shell_argv(char **argv, bool bash)
{
        size_t n = 0, at = 0;
        char **list;

        while (argv[n])
                n++;
        list = xcalloc(n + 3, sizeof(*list));
        list[at++] = (char *)"/bin/sh";
        for (size_t i = bash ? 1 : 0; i < n; i++)
                list[at++] = argv[i];
        return list;
}

static void merge(json_t *to, const json_t *from)
{
        if (from)
                json_object_update(to, (json_t *)from);
}

/* Later wins: the agent's PATH, the image's ENV, passwd, global variables, the request's (envd.md 5.2). */
static char **make_env(const struct spawn *s)
{
        json_t *all = json_object(), *image = state_image_env(), *global = state_global_env();
        char **env;
        const char *key;
        json_t *value;
        size_t n = 0;

        json_object_set_new(all, "PATH", json_string(AGENT_PATH));
        merge(all, image);
        json_object_set_new(all, "HOME", json_string(s->user->home));
        json_object_set_new(all, "USER", json_string(s->user->name));
        json_object_set_new(all, "LOGNAME", json_string(s->user->name));
        merge(all, global);
        json_object_set_new(all, "PWD", json_string(s->cwd));
        merge(all, s->env);
        env = xcalloc(json_object_size(all) + 1, sizeof(*env));
        json_object_foreach(all, key, value)
                env[n++] = xasprintf("%s=%s", key, json_string_value(value) ? json_string_value(value) : "");
        json_decref(all);
        json_decref(image);
        json_decref(global);
        return env;
}

static const char *path_in(char **env)
{
        for (; *env; env++)
                if (str_starts(*env, "PATH="))
                        return *env + 5;
        return AGENT_PATH;
}

static char **make_candidates(const char *command, char **env)
{
        char **list = xcalloc(CANDIDATES_MAX + 1, sizeof(*list));
        const char *path = path_in(env);

        if (strchr(command, '/')) {
                list[0] = xstrdup(command);
                return list;
        }
        for (size_t n = 0; *command && n < CANDIDATES_MAX; n++) {
                size_t len = strcspn(path, ":");

                list[n] = len ? xasprintf("%.*s/%s", (int)len, path, command) : xasprintf("./%s", command);
                path += len;
                if (*path++ == 0)
                        break;
        }
        return list;
}

static _Noreturn void fail(const struct plan *p, enum stage stage)
{
        struct failure f = { stage, errno };

        if (write(p->report, &f, sizeof(f)) < 0)
                _exit(125);
        _exit(125);
}

/* The line a shell would print, without stdio. Only what is the caller's or the system's fault is reported as a
 * failure to spawn. */
static _Noreturn void fail_exec(const struct plan *p, int number)
{
        bool missing = number == ENOENT || number == ENOTDIR;
        const char *text = missing              ? ": No such file or directory\n"
                         : number == ENOEXEC    ? ": Exec format error\n"
                         : number == ELOOP      ? ": Too many levels of symbolic links\n"
                                                : ": Permission denied\n";
        struct iovec line[2];

        if (number == E2BIG || number == ENOMEM || number == EAGAIN) {
                errno = number;
                fail(p, STAGE_EXEC);
        }
        /* In one write: nobody reads before this returns, and an ordered pipe holds one packet. */
        line[0] = (struct iovec){ .iov_base = (char *)p->command, .iov_len = strlen(p->command) };
        line[1] = (struct iovec){ .iov_base = (char *)text, .iov_len = strlen(text) };
        if (writev(2, line, 2) < 0)
                _exit(127);
        _exit(missing ? 127 : 126);
}

static void reset_signals(void)
{
        sigset_t none;
        struct sigaction action = { .sa_handler = SIG_DFL };

        for (int i = 1; i < _NSIG; i++)
                sigaction(i, &action, NULL);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
}

static void set_priorities(void)
{
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

        if (fd >= 0) {
                if (write(fd, "100", 3) < 0)
                        errno = 0;
                close(fd);
        }
        setpriority(PRIO_PROCESS, 0, 0);
        syscall(SYS_ioprio_set, 1, 0, IOPRIO_BEST_EFFORT_4);
}

static void set_identity(const struct plan *p)
{
        const struct user *u = p->user;

        if (geteuid() != 0 && u->uid == geteuid())
                return; /* an unprivileged agent can run its own user's processes only */
        if (syscall(SYS_setgroups, u->group_count, u->groups) < 0 || syscall(SYS_setresgid, u->gid, u->gid, u->gid) < 0 ||
            syscall(SYS_setresuid, u->uid, u->uid, u->uid) < 0)
                fail(p, STAGE_IDENTITY);
}

static void set_descriptors(const struct plan *p)
{
        for (int i = 0; i < 3; i++)
                if (dup2(p->fds[i], i) < 0)
                        fail(p, STAGE_IDENTITY);
        if (p->pty) {
                setsid();
                ioctl(0, TIOCSCTTY, 0);
        }
        /* Nothing but 0, 1 and 2 reaches the command, whatever a library forgot to mark. */
        syscall(SYS_close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
}

static _Noreturn void run_child(const struct plan *p)
{
        int denied = 0;

        set_descriptors(p);
        if (p->cgroup >= 0 && write(p->cgroup, "0", 1) < 0)
                errno = 0; /* without its group the command still runs */
        set_priorities();
        reset_signals();
        umask(022);
        set_identity(p);
        if (chdir(p->cwd) < 0)
                fail(p, STAGE_CWD);
        errno = ENOENT;
        for (char **path = p->candidates; *path; path++) {
                execve(*path, p->argv, p->env);
                if (errno == ENOEXEC && !p->bash) {
                        p->shell_argv[1] = *path;
                        execve("/bin/sh", p->shell_argv, p->env);
                        errno = ENOEXEC;
                }
                if (errno == ENOENT && p->bash)
                        execve("/bin/sh", p->shell_argv, p->env);
                if (errno == EACCES)
                        denied = EACCES;
                else if (errno != ENOENT && errno != ENOTDIR)
                        break;
        }
        fail_exec(p, denied ? denied : errno);
}

static int open_pty(const struct spawn *s, struct plan *p, struct spawned *ret, struct error *err)
{
        CLEANUP_CLOSE int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
        struct winsize size = { .ws_col = s->cols, .ws_row = s->rows };
        int unlock = 0, slave;

        if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
                return error_errno(err, errno, "open a terminal");
        slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (slave < 0)
                return error_errno(err, errno, "open a terminal");
        ioctl(slave, TIOCSWINSZ, &size);
        if (fchown(slave, s->user->uid, (gid_t)-1) < 0)
                errno = 0; /* a courtesy: tty(1) and mesg(1) work without it */
        p->fds[0] = p->fds[1] = p->fds[2] = slave;
        ret->in = fcntl(master, F_DUPFD_CLOEXEC, 3);
        ret->out = STEAL_FD(master);
        return 0;
}

static int open_pipe(int *ret_read, int *ret_write)
{
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        *ret_read = fds[0];
        *ret_write = fds[1];
        return 0;
}

/* Packets of one write each, one at a time: the next write waits for the reader. A kernel that refuses leaves a plain pipe. */
static int open_output(bool ordered, int *ret_read, int *ret_write)
{
        int r = open_pipe(ret_read, ret_write);

        if (r >= 0 && ordered) {
                fcntl(*ret_write, F_SETPIPE_SZ, 1); /* rounded up to a page, the least */
                fcntl(*ret_write, F_SETFL, fcntl(*ret_write, F_GETFL) | O_DIRECT);
        }
        return r;
}

static int open_streams(const struct spawn *s, struct plan *p, struct spawned *ret, struct error *err)
{
        int r = 0;

        if (s->pty)
                return open_pty(s, p, ret, err);
        if (s->stdin_pipe)
                r = open_pipe(&p->fds[0], &ret->in);
        else if ((p->fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
                r = -errno;
        if (r >= 0)
                r = open_output(s->ordered, &ret->out, &p->fds[1]);
        if (r >= 0)
                r = open_output(s->ordered, &ret->err, &p->fds[2]);
        if (r < 0)
                return error_errno(err, r, "create a pipe");
        /* So that "> /dev/stderr", which opens the pipe anew, is allowed to who owns the process. Never /dev/null itself. */
        for (int i = s->stdin_pipe ? 0 : 1; i < 3; i++)
                if (fchown(p->fds[i], s->user->uid, s->user->gid) < 0)
                        errno = 0; /* an unprivileged agent */
        for (int *fd = (int[]){ ret->in, ret->out, ret->err, -2 }; *fd != -2; fd++)
                if (*fd >= 0)
                        fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) | O_NONBLOCK);
        return 0;
}

static void close_if(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static int fork_child(struct plan *p, pid_t *ret_pid, struct error *err)
{
        static const char *const what[] = { "switch to the user", "enter the directory", "execute" };
        struct failure f;
        int report = -1, r;
        sigset_t all, before;
        pid_t pid;

        r = open_pipe(&report, &p->report);
        if (r < 0)
                return error_errno(err, r, "create a pipe");
        /* No handler of ours may run in the child before reset_signals(). */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pid = fork();
        if (pid == 0)
                run_child(p);
        r = errno;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        close(p->report);
        if (pid < 0) {
                close(report);
                return error_errno(err, r, "fork");
        }
        do
                r = (int)read(report, &f, sizeof(f));
        while (r < 0 && errno == EINTR);
        close(report);
        *ret_pid = pid;
        if (r != (int)sizeof(f))
                return 0;
        return f.stage == STAGE_CWD ? error_set(err, ERROR_INVALID, "chdir %s: %s", p->cwd, strerror(f.number))
                                    : error_set(err, ERROR_INVALID, "%s: %s", what[f.stage], strerror(f.number));
}

int spawn_child(const struct spawn *s, struct spawned *ret, struct error *err)
{
        struct plan p = { .command = s->command, .cwd = s->cwd, .user = s->user, .fds = { -1, -1, -1 }, .pty = s->pty,
                          .bash = streq(s->command, "/bin/bash") };
        int r;

        *ret = (struct spawned){ .in = -1, .out = -1, .err = -1 };
        p.argv = make_argv(s);
        p.shell_argv = make_shell_argv(p.argv, p.bash);
        p.env = make_env(s);
        p.candidates = make_candidates(s->command, p.env);
        p.cgroup = cgroup_open_procs(s->group);
        r = open_streams(s, &p, ret, err);
        if (r >= 0)
                r = fork_child(&p, &ret->pid, err);
        if (s->pty)
                close_if(&p.fds[0]);
        else
                for (int i = 0; i < 3; i++)
                        close_if(&p.fds[i]);
        close_if(&p.cgroup);
        if (r < 0) {
                close_if(&ret->in);
                close_if(&ret->out);
                close_if(&ret->err);
        }
        free_list(p.argv);
        free(p.shell_argv);
        free_list(p.env);
        free_list(p.candidates);
        return r;
}

void spawn_command_line(const struct spawn *s, struct buf *out)
{
        const json_t *arg;
        size_t i;

        buf_adds(out, s->command);
        json_array_foreach(s->args, i, arg)
                buf_addf(out, " %s", json_string_value(arg));
}
