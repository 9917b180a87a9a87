/* Starts QEMU: own uid, no privileges to regain, limits, and only the descriptors of enum qemu_fd.
 *
 * Stages in the child: join cgroup -> descriptors in place -> rlimits -> uid -> parent-death signal (a change of uid
 * clears it) -> exec. All that can fail in the parent is prepared there.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <linux/close_range.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "shim.h"
#include "vm/qemu.h"

/* QEMU's own descriptors: eventfds and sockets, besides the chain's. */
#define NOFILE_MAX 1024

struct child {
        char **argv, **env;
        int numbers[2 * QEMU_DISKS_MAX + QEMU_FD_DISKS]; /* descriptors that stay, besides 0-2 */
        size_t count;
        int console, qmp, errors;
};

static char **string_array(const json_t *list)
{
        char **v = xcalloc(json_array_size(list) + 1, sizeof *v);
        const json_t *one;
        size_t i;

        json_array_foreach(list, i, one)
                v[i] = (char *)json_string_value(one);
        return v;
}

static void keep(struct child *c, int fd)
{
        if (c->count < sizeof c->numbers / sizeof *c->numbers)
                c->numbers[c->count++] = fd;
}

static int set_limits(void)
{
        const struct {
                int what;
                rlim_t value;
        } limits[] = {{RLIMIT_CORE, 0}, {RLIMIT_NOFILE, NOFILE_MAX}, {RLIMIT_MEMLOCK, 0}, {RLIMIT_MSGQUEUE, 0}};

        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
                struct rlimit l = {limits[i].value, limits[i].value};

                if (setrlimit((__rlimit_resource_t)limits[i].what, &l) < 0)
                        return -errno;
        }
        return 0;
}

static bool uses_kvm(char *const *argv)
{
        for (; argv[0] && argv[1]; argv++)
                if (streq(argv[0], "-accel") && streq(argv[1], "kvm"))
                        return true;
        return false;
}

/* The group of /dev/kvm for who needs it. Never root's: it would open whatever is readable to that group. */
static size_t device_group(char *const *argv, gid_t *ret)
{
        struct stat st;

        if (!uses_kvm(argv) || stat("/dev/kvm", &st) < 0 || st.st_gid == 0 || !(st.st_mode & S_IWGRP))
                return 0;
        *ret = st.st_gid;
        return 1;
}

static int drop_privileges(const struct shim *s, char *const *argv)
{
        gid_t group = s->uid;
        size_t groups = device_group(argv, &group);

        if (s->slot < 0)
                return 0;
        if (setgroups(groups, &group) < 0 || setresgid(s->uid, s->uid, s->uid) < 0 ||
            setresuid(s->uid, s->uid, s->uid) < 0)
                return -errno;
        return 0;
}

static _Noreturn void fail(const char *what)
{
        const char *text = strerror(errno);

        /* Standard error is the shim's error ring by now. */
        (void)!write(2, what, strlen(what));
        (void)!write(2, ": ", 2);
        (void)!write(2, text, strlen(text));
        (void)!write(2, "\n", 1);
        _exit(127);
}

static void place(int from, int to)
{
        if (from >= 0 && dup2(from, to) < 0)
                fail("descriptor");
}

static _Noreturn void run_child(const struct shim *s, const struct child *c, pid_t parent)
{
        sigset_t none;
        int null;

        signal(SIGPIPE, SIG_DFL);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        cgroup_join(s);
        null = open("/dev/null", O_RDWR);
        place(c->errors, 2);
        place(2, 1);
        place(null, 0);
        place(c->qmp, QEMU_FD_QMP);
        place(c->console, QEMU_FD_CONSOLE);
        place(s->agent_fd, QEMU_FD_AGENT);
        place(s->tap_fd, QEMU_FD_TAP);
        place(s->fs_fd, QEMU_FD_FS);
        if (syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
                fail("close_range");
        for (size_t i = 0; i < c->count; i++)
                fcntl(c->numbers[i], F_SETFD, 0);
        if (set_limits() < 0)
                fail("limits");
        if (drop_privileges(s, c->argv) < 0)
                fail("drop privileges");
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                fail("prctl");
        if (getppid() != parent)
                _exit(127);
        execve(c->argv[0], c->argv, c->env);
        fail(c->argv[0]);
}

static int make_channels(struct shim *s, struct child *c, struct error *err)
{
        int qmp[2], console[2], errors[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, qmp) < 0 ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, console) < 0 ||
            pipe2(errors, O_CLOEXEC) < 0)
                return error_errno(err, errno, "make QEMU's channels");
        s->monitor.fd = qmp[0];
        s->console_fd = console[0];
        s->errors_fd = errors[0];
        c->qmp = qmp[1];
        c->console = console[1];
        c->errors = errors[1];
        return 0;
}

static void list_descriptors(const struct shim *s, struct child *c)
{
        const json_t *inherited = json_object_get(s->config, "fds"), *one;
        size_t i;

        keep(c, QEMU_FD_QMP);
        keep(c, QEMU_FD_CONSOLE);
        keep(c, QEMU_FD_AGENT);
        if (s->tap_fd >= 0)
                keep(c, QEMU_FD_TAP);
        if (s->fs_fd >= 0)
                keep(c, QEMU_FD_FS);
        json_array_foreach(inherited, i, one)
                keep(c, (int)json_integer_value(one));
}

static void release(struct shim *s, struct child *c)
{
        close(c->qmp);
        close(c->console);
        close(c->errors);
        for (size_t i = 0; i < c->count; i++)
                if (c->numbers[i] >= QEMU_FD_MEMORY)
                        close(c->numbers[i]);
        close(s->agent_fd);
        if (s->fs_fd >= 0)
                close(s->fs_fd);
        s->agent_fd = s->fs_fd = -1;
        s->tap_fd = -1; /* the network's */
        free(c->argv);
        free(c->env);
}

int guest_spawn(struct shim *s, struct error *err)
{
        struct child c = {};
        pid_t parent = getpid(), pid;
        int r;

        r = make_channels(s, &c, err);
        if (r < 0)
                return r;
        c.argv = string_array(json_object_get(s->config, "argv"));
        c.env = string_array(json_object_get(s->config, "env"));
        list_descriptors(s, &c);
        if (s->slot >= 0) {
                s->uid = UID_BASE + (uid_t)s->slot;
                /* The build's memory file is opened anew by QEMU through /proc/self/fd. */
                if (json_bool(s->config, "own_memory", false) && fchown(QEMU_FD_MEMORY, s->uid, s->uid) < 0)
                        return error_errno(err, errno, "give the memory file to QEMU");
        }
        pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "start QEMU: fork");
        if (pid == 0)
                run_child(s, &c, parent);
        s->qemu = pid;
        s->qemu_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        release(s, &c);
        if (s->qemu_pidfd < 0)
                return error_errno(err, errno, "start QEMU: pidfd_open");
        return 0;
}
