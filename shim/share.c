/* virtiofsd for a build VM: one directory, read-only.
 *
 * QEMU 7.2's virtiofsd has no read-only mode, so it gets its own mount namespace in which the directory is a read-only
 * bind mount, and then its own user namespace, which locks that mount: not even a taken-over virtiofsd can undo it.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/close_range.h>

#include "base/json.h"
#include "base/mem.h"
#include "shim.h"
#include "vm/fdpass.h"

#define FS_LISTEN_FD 3

static _Noreturn void fail(const char *what)
{
        CLEANUP_FREE char *text = xasprintf("virtiofsd: %s: %s\n", what, strerror(errno));

        (void)!write(2, text, strlen(text));
        _exit(127);
}

static void write_file(const char *path, const char *text)
{
        int fd = open(path, O_WRONLY | O_CLOEXEC);

        if (fd < 0 || write(fd, text, strlen(text)) < 0)
                fail(path);
        close(fd);
}

static void isolate(const char *dir)
{
        if (geteuid() == 0) {
                if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
                    mount(dir, dir, NULL, MS_BIND, NULL) < 0 ||
                    mount(NULL, dir, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
                        fail("read-only mount");
        }
        CLEANUP_FREE char *uid_map = xasprintf("0 %u 1", geteuid());
        CLEANUP_FREE char *gid_map = xasprintf("0 %u 1", getegid());

        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
                fail("user namespace");
        write_file("/proc/self/setgroups", "deny");
        write_file("/proc/self/uid_map", uid_map);
        write_file("/proc/self/gid_map", gid_map);
        /* The C one wants to write its pid there. */
        if (mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m") < 0)
                fail("tmpfs on /run");
}

static _Noreturn void run_child(const struct shim *s, const json_t *share, int errors)
{
        const char *dir = json_str(share, "dir");
        CLEANUP_FREE char *source = xasprintf("source=%s", dir);
        CLEANUP_FREE char *lib = xasprintf("LD_LIBRARY_PATH=%s", json_str(share, "lib") ?: "");
        const char *argv[] = {json_str(share, "path"), "--fd=3", "--rlimit-nofile=0", "--thread-pool-size=0", "-o",
                              source, "-o", "sandbox=namespace", "-o", "cache=always", NULL};
        char *env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", json_str(share, "lib") ? lib : NULL, NULL};
        sigset_t none;
        int null = open("/dev/null", O_RDWR);

        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        if (dup2(null, 0) < 0 || dup2(errors, 1) < 0 || dup2(errors, 2) < 0 || dup2(s->fs_listen_fd, FS_LISTEN_FD) < 0)
                _exit(127);
        syscall(SYS_close_range, FS_LISTEN_FD + 1, ~0u, CLOSE_RANGE_CLOEXEC);
        isolate(dir);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execve(argv[0], (char **)argv, env);
        fail(argv[0]);
}

int share_spawn(struct shim *s, struct error *err)
{
        const json_t *share = json_object_get(s->config, "share");
        int errors[2];
        pid_t pid;

        if (!json_is_object(share))
                return 0;
        s->fs_listen_fd = unix_listen_at(s->dirfd, "fs.sock", 1);
        if (s->fs_listen_fd < 0)
                return error_errno(err, s->fs_listen_fd, "share %s: listen", json_str(share, "dir"));
        s->fs_fd = unix_connect_at(s->dirfd, "fs.sock");
        unlinkat(s->dirfd, "fs.sock", 0);
        if (s->fs_fd < 0)
                return error_errno(err, s->fs_fd, "share %s: connect", json_str(share, "dir"));
        if (pipe2(errors, O_CLOEXEC) < 0)
                return error_errno(err, errno, "share: pipe");
        pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "start virtiofsd: fork");
        if (pid == 0)
                run_child(s, share, errors[1]);
        close(errors[1]);
        close(s->fs_listen_fd);
        s->fs_listen_fd = -1;
        s->virtiofsd = pid;
        s->virtiofsd_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        s->share_errors_fd = errors[0];
        return 0;
}
