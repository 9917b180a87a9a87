/* See shim_client.h. posix_spawn, for fork() of a large driver costs milliseconds. */
#include "vm/shim_client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/subprocess.h"
#include "vm/fdpass.h"

#define CONTROL_FD 3
/* QEMU starts in tens of milliseconds; a host this slow is out of order. */
#define START_TIMEOUT_MS 60000
/* Sources are moved up here, so that placing one cannot overwrite another. */
#define SOURCE_FD_MIN 600

static char *shim_path(void)
{
        const char *given = getenv("VMON_SHIM");

        return given && *given ? xstrdup(given) : program_beside("vmon-shim");
}

static enum error_kind kind_of(const char *kind)
{
        if (streq(kind, "invalid"))
                return ERROR_INVALID;
        if (streq(kind, "not-found"))
                return ERROR_NOT_FOUND;
        if (streq(kind, "unavailable"))
                return ERROR_UNAVAILABLE;
        if (streq(kind, "limit"))
                return ERROR_LIMIT;
        return ERROR_INTERNAL;
}

static int check_answer(const json_t *answer, struct error *err)
{
        const json_t *e = json_object_get(answer, "error");
        int number;

        if (!e)
                return 0;
        number = (int)json_int(e, "errno", 0);
        error_set(err, kind_of(json_str(e, "kind")), "%s", json_str(e, "message") ?: "unknown error");
        if (err)
                err->number = number;
        return number > 0 ? -number : error_kind_to_errno(kind_of(json_str(e, "kind")));
}

/* The child's descriptors: control at 3, each of `moved` at its number. */
static int spawn(const char *path, const char *id, int control, const struct shim_fd *moved, size_t count, pid_t *ret)
{
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attr;
        sigset_t none, all;
        /* No environment beyond PATH: nothing of the driver's may leak into a process that lives longer. */
        char *argv[] = {(char *)path, (char *)id, NULL}, *env[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
        int r;

        posix_spawn_file_actions_init(&actions);
        posix_spawnattr_init(&attr);
        sigemptyset(&none);
        sigfillset(&all);
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawnattr_setsigdefault(&attr, &all);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        posix_spawn_file_actions_adddup2(&actions, control, CONTROL_FD);
        for (size_t i = 0; i < count; i++)
                posix_spawn_file_actions_adddup2(&actions, moved[i].fd, moved[i].number);
        r = posix_spawn(ret, path, &actions, &attr, argv, env);
        posix_spawnattr_destroy(&attr);
        posix_spawn_file_actions_destroy(&actions);
        return -r;
}

static int move_up(int fd)
{
        int up = fcntl(fd, F_DUPFD_CLOEXEC, SOURCE_FD_MIN);

        /* A low limit on descriptors: any number above the targets used here will do. */
        return up >= 0 ? up : fcntl(fd, F_DUPFD_CLOEXEC, 300);
}

static int start(const char *path, const char *id, int control, const struct shim_fd *fds, size_t count)
{
        CLEANUP_FREE struct shim_fd *moved = xcalloc(count + 1, sizeof *moved);
        pid_t pid = 0;
        int r = 0, top = move_up(control), status;

        for (size_t i = 0; i < count; i++) {
                moved[i] = (struct shim_fd){move_up(fds[i].fd), fds[i].number};
                if (moved[i].fd < 0)
                        r = -errno;
        }
        if (top < 0)
                r = -EMFILE;
        if (r == 0)
                r = spawn(path, id, top, moved, count, &pid);
        for (size_t i = 0; i < count; i++)
                if (moved[i].fd >= 0)
                        close(moved[i].fd);
        if (top >= 0)
                close(top);
        /* It forks and goes at once; the shim proper is nobody's child. */
        if (r == 0)
                while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                        ;
        return r;
}

int shim_spawn(const json_t *config, const struct shim_fd *fds, size_t count, int *ret_control, json_t **ret_status,
               struct error *err)
{
        CLEANUP_FREE char *path = shim_path();
        CLEANUP_CLOSE int control = -1;
        CLEANUP_BUF struct buf b = {};
        CLEANUP_JSON json_t *status = NULL;
        int pair[2], r;

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
                return error_errno(err, errno, "start vmon-shim: socketpair");
        control = pair[0];
        r = start(path, json_str(config, "id"), pair[1], fds, count);
        close(pair[1]);
        if (r == -ENOENT)
                return error_set(err, ERROR_UNAVAILABLE, "%s is missing: it belongs beside vmon (rebuild, or reinstall)", path);
        if (r < 0)
                return error_errno(err, r, "start %s", path);
        r = line_send(control, config, -1);
        if (r < 0)
                return error_errno(err, r, "configure vmon-shim");
        r = line_receive(control, &b, START_TIMEOUT_MS, &status, NULL);
        if (r < 0)
                return error_errno(err, r, "start the virtual machine: no answer from vmon-shim");
        r = check_answer(status, err);
        if (r < 0)
                return error_wrap(err, r, "start the virtual machine");
        *ret_control = STEAL_FD(control);
        *ret_status = STEAL(status);
        return 0;
}

int shim_request(int dirfd, const json_t *request, int fd, int timeout_ms, json_t **ret, int *ret_fd, struct error *err)
{
        CLEANUP_CLOSE int socket = unix_connect_at(dirfd, "shim.sock"), came = -1;
        CLEANUP_BUF struct buf b = {};
        CLEANUP_JSON json_t *answer = NULL;
        int r;

        if (socket == -ENOENT || socket == -ECONNREFUSED)
                return error_set(err, ERROR_NOT_FOUND, "the virtual machine has ended");
        if (socket < 0)
                return error_errno(err, socket, "connect to the VM's supervisor");
        r = line_send(socket, request, fd);
        if (r == 0)
                r = line_receive(socket, &b, timeout_ms, &answer, &came);
        if (r == -EPIPE || r == -ECONNRESET)
                return error_set(err, ERROR_NOT_FOUND, "the virtual machine has ended");
        if (r < 0)
                return error_errno(err, r, "%s: no answer from the VM's supervisor", json_str(request, "op"));
        r = check_answer(answer, err);
        if (r < 0)
                return r;
        if (ret)
                *ret = STEAL(answer);
        if (ret_fd)
                *ret_fd = STEAL_FD(came);
        return 0;
}
