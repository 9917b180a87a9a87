/* Start-up and tear-down of the shim; shim.h has the whole story. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "network.h"
#include "shim.h"
#include "vm/fdpass.h"
#include "vm/qemu.h"

#define CONTROL_FD 3
#define CONFIG_TIMEOUT_MS 10000

static const char *const network_names[] = {"nat", "user", "none"};

static int read_config(struct shim *s, int control, struct error *err)
{
        CLEANUP_BUF struct buf b = {};
        const char *network;
        int r = line_receive(control, &b, CONFIG_TIMEOUT_MS, &s->config, NULL);

        if (r < 0)
                return error_errno(err, r, "read the configuration from descriptor %d", CONTROL_FD);
        if (!json_str(s->config, "id") || !json_str(s->config, "dir") || !json_object_get(s->config, "argv"))
                return error_set(err, ERROR_INVALID, "the configuration lacks id, dir or argv");
        s->id = xstrdup(json_str(s->config, "id"));
        s->dir = xstrdup(json_str(s->config, "dir"));
        network = json_str(s->config, "network");
        for (size_t i = 0; i < 3; i++)
                if (streq(network, network_names[i]))
                        s->network = (enum vm_network)i;
        return 0;
}

static int open_sockets(struct shim *s, struct error *err)
{
        s->dirfd = open(s->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (s->dirfd < 0)
                return error_errno(err, errno, "open %s", s->dir);
        unlinkat(s->dirfd, "exit.json", 0);
        s->listen_fd = unix_listen_at(s->dirfd, "shim.sock", 128);
        if (s->listen_fd < 0)
                return error_errno(err, s->listen_fd, "listen on %s/shim.sock", s->dir);
        s->agent_fd = unix_listen_at(s->dirfd, "agent.sock", 8);
        if (s->agent_fd < 0)
                return error_errno(err, s->agent_fd, "listen on %s/agent.sock", s->dir);
        fcntl(s->listen_fd, F_SETFL, O_NONBLOCK);
        return 0;
}

static int watch_signals(struct shim *s, struct error *err)
{
        sigset_t set;

        signal(SIGPIPE, SIG_IGN);
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        sigprocmask(SIG_BLOCK, &set, NULL);
        s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        return s->signal_fd < 0 ? error_errno(err, errno, "signalfd") : 0;
}

/* Everything up to a running QEMU. */
static int start(struct shim *s, struct error *err)
{
        int64_t expires = json_int(s->config, "expires_at_ns", 0);
        int r;

        if (geteuid() == 0) {
                r = slot_claim(&s->slot, &s->slot_fd, err);
                if (r < 0)
                        return r;
        }
        if ((r = open_sockets(s, err)) < 0 || (r = watch_signals(s, err)) < 0 || (r = network_begin(s, err)) < 0 ||
            (r = share_spawn(s, err)) < 0)
                return r;
        cgroup_create(s, (unsigned)json_int(s->config, "memory_mib", 0), (unsigned)json_int(s->config, "vcpus", 1));
        r = guest_spawn(s, err);
        if (r < 0)
                return r;
        /* QEMU needs tens of milliseconds to start: the slow part of the network fits in there. */
        r = network_finish(s, err);
        if (r < 0)
                return r;
        if (expires > 0 && (r = shim_set_timer(s, expires)) < 0)
                return error_errno(err, r, "set the expiry");
        s->end_on_full = json_bool(s->config, "end_on_full", false);
        json_decref(s->config);
        s->config = NULL;
        return 0;
}

static char *ring_text(const struct ring *r)
{
        CLEANUP_FREE char *raw = xmalloc(r->len + 1);

        ring_copy(r, raw);
        return utf8_scrub(raw, r->len);
}

static const char *reason(const struct shim *s)
{
        if (s->reason)
                return s->reason;
        return WIFEXITED(s->qemu_status) && WEXITSTATUS(s->qemu_status) == 0 ? "guest-exit" : "crash";
}

/* Whole or not there, but not durable: whoever reads it does so right after the end, and each fsync would delay that for everybody who
 * waits for it. */
static void leave(const char *path, const char *text, size_t len)
{
        CLEANUP_FREE char *part = xasprintf("%s.tmp", path);
        CLEANUP_CLOSE int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        if (fd >= 0 && fd_write_all(fd, text, len) == 0)
                rename(part, path);
}

static void write_exit(struct shim *s)
{
        CLEANUP_FREE char *path = path_join(s->dir, "exit.json"), *errors = ring_text(&s->errors), *text = NULL;
        CLEANUP_JSON json_t *j = json_object();

        json_object_set_new(j, "reason", json_string(reason(s)));
        if (WIFEXITED(s->qemu_status))
                json_object_set_new(j, "status", json_integer(WEXITSTATUS(s->qemu_status)));
        else if (WIFSIGNALED(s->qemu_status))
                json_object_set_new(j, "signal", json_integer(WTERMSIG(s->qemu_status)));
        json_object_set_new(j, "ended_at_ns", json_integer(clock_realtime_ns()));
        json_object_set_new(j, "qemu_errors", json_string(errors));
        text = json_text(j);
        leave(path, text, strlen(text));
}

static void write_console(struct shim *s)
{
        CLEANUP_FREE char *path = path_join(s->dir, "console.log"), *raw = xmalloc(s->console.len + 1);

        ring_copy(&s->console, raw);
        leave(path, raw, s->console.len);
}

static void stop_children(struct shim *s)
{
        if (s->qemu > 0 && !s->qemu_reaped) {
                kill(s->qemu, SIGKILL);
                waitpid(s->qemu, &s->qemu_status, 0);
                s->qemu_reaped = true;
        }
        if (s->virtiofsd > 0) {
                kill(s->virtiofsd, SIGKILL);
                waitpid(s->virtiofsd, NULL, 0);
        }
}

static void clean_up(struct shim *s)
{
        stop_children(s);
        network_end(s);
        cgroup_remove(s);
        write_console(s);
        write_exit(s);
        unlinkat(s->dirfd, "agent.sock", 0);
        unlinkat(s->dirfd, "shim.sock", 0);
}

/* QEMU ended before its monitor spoke: what it printed is the reason. */
static void report_early_end(struct shim *s)
{
        CLEANUP_FREE char *text = ring_text(&s->errors), *errors = str_one_line(text);
        struct error err = {};

        if (s->monitor.ready)
                return;
        error_set(&err, ERROR_UNAVAILABLE, "QEMU ended while starting (%s %d): %s",
                  WIFSIGNALED(s->qemu_status) ? "signal" : "status",
                  WIFSIGNALED(s->qemu_status) ? WTERMSIG(s->qemu_status) : WEXITSTATUS(s->qemu_status), errors);
        client_started(s, &err);
}

static int send_failure(int control, const struct error *err)
{
        const char *kind = err->kind == ERROR_LIMIT ? "limit" : err->kind == ERROR_UNAVAILABLE ? "unavailable" :
                           err->kind == ERROR_INVALID ? "invalid" : "internal";
        CLEANUP_JSON json_t *j = json_pack("{s:{s:s, s:i, s:s}}", "error", "kind", kind, "errno", err->number, "message",
                                           err->message);

        return line_send(control, j, -1);
}

static int run(int control)
{
        static struct shim s = {.dirfd = -1, .slot = -1, .slot_fd = -1, .qemu_pidfd = -1, .virtiofsd_pidfd = -1,
                                .listen_fd = -1, .timer_fd = -1, .signal_fd = -1, .console_fd = -1, .errors_fd = -1,
                                .share_errors_fd = -1, .tap_fd = -1, .fs_fd = -1, .fs_listen_fd = -1, .agent_fd = -1,
                                .monitor.fd = -1, .console.size = SHIM_CONSOLE_BYTES, .errors.size = SHIM_ERRORS_BYTES};
        struct error err = {};
        int r = read_config(&s, control, &err);

        if (r < 0) {
                send_failure(control, &err);
                return 1;
        }
        r = start(&s, &err);
        if (r < 0) {
                clean_up(&s);
                send_failure(control, &err);
                return 1;
        }
        fcntl(control, F_SETFL, O_NONBLOCK);
        client_new(&s, control, true);
        shim_loop(&s);
        report_early_end(&s);
        client_flush(&s);
        clean_up(&s);
        return 0;
}

int main(void)
{
        int control, null = open("/dev/null", O_RDWR | O_CLOEXEC);
        pid_t child;

        if (fcntl(CONTROL_FD, F_GETFD) < 0) {
                fprintf(stderr, "vmon-shim: started by hand? It is run by vmon, with its configuration on descriptor %d.\n",
                        CONTROL_FD);
                return 2;
        }
        /* Nobody's child: the driver reaps this parent at once and never has to reap the shim. */
        child = fork();
        if (child != 0)
                _exit(child < 0 ? 2 : 0);
        /* The driver's terminal or journal must not be held open, nor matter. */
        for (int i = 0; i < 3; i++)
                dup2(null, i);
        control = fcntl(CONTROL_FD, F_DUPFD_CLOEXEC, SHIM_FD_HIGH);
        if (control < 0)
                return 2;
        /* 3 to 7 stay taken, so that none of the shim's own descriptors lands where QEMU's must go. */
        for (int i = QEMU_FD_QMP; i < QEMU_FD_MEMORY; i++)
                dup3(null, i, O_CLOEXEC);
        umask(077);
        return run(control);
}
