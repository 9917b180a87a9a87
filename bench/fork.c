/* vmon-bench-fork [--cold] BUILD_DIR KIT_DIR: the floor of a fork. QEMU alone (no shim, namespace, uid or cgroup) restores a
 * published snapshot; one JSON object with the milliseconds until the monitor speaks (start), the device state is loaded
 * (restore) and the agent has answered a ping (answer), and their total. --cold boots the same root disk instead (to the
 * agent's first answer). The memory is in a sealed memfd before the clock starts, as it is for `vmon serve`.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/disk.h"
#include "vm/fdpass.h"
#include "vm/qemu.h"
#include "vm/qmp.h"
#include "vm/template_internal.h"
#include "vm/tsc.h"
#include "vm/vm.h"

#define TIMEOUT_MS 180000
#define HIGH 200

struct bench {
        struct vm_template *t;
        char *dir;
        int qmp, qmp_child, console, console_child, agent_listen, dirfd;
        struct buf in;
        json_int_t id;
        pid_t qemu;
};

static _Noreturn void die(const char *what, const char *why)
{
        fprintf(stderr, "vmon-bench-fork: %s: %s\n", what, why);
        exit(1);
}

static int high(int fd)
{
        int moved = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);

        if (fd < 0 || moved < 0)
                die("descriptor", strerror(errno));
        close(fd);
        return moved;
}

static int open_file(const char *path, int flags)
{
        int fd = open(path, flags | O_CLOEXEC);

        if (fd < 0)
                die(path, strerror(errno));
        return high(fd);
}

static void place(int from, int to)
{
        if (dup2(from, to) < 0)
                _exit(127);
}

static void start(struct bench *b, char **argv, int rootfs, int overlay, int overlay_read, int modules)
{
        b->qemu = fork();
        if (b->qemu != 0)
                return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        place(b->qmp_child, QEMU_FD_QMP);
        place(b->console_child, QEMU_FD_CONSOLE);
        place(b->agent_listen, QEMU_FD_AGENT);
        place(b->t->memory_fd, QEMU_FD_MEMORY);
        place(modules, QEMU_FD_MODULES);
        place(rootfs, qemu_disk_fd(0, false));
        place(overlay, qemu_disk_fd(1, false));
        place(overlay_read, qemu_disk_fd(1, true));
        if (b->t->kit->qemu_lib)
                setenv("LD_LIBRARY_PATH", b->t->kit->qemu_lib, 1);
        execv(argv[0], argv);
        _exit(127);
}

/* Reads until the answer to the last command, or the event when given. */
static void await(struct bench *b, const char *event)
{
        for (;;) {
                CLEANUP_JSON json_t *line = NULL;
                struct qmp_message m;
                int r = line_receive(b->qmp, &b->in, TIMEOUT_MS, &line, NULL);

                if (r < 0)
                        die("QEMU's monitor", strerror(-r));
                qmp_classify(line, &m);
                if (m.kind == QMP_ERROR)
                        die("QEMU", m.text);
                if (!event && (m.kind == QMP_GREETING || (m.kind == QMP_RETURN && m.id == b->id)))
                        return;
                if (event && m.kind == QMP_EVENT && streq(m.text, event) && streq(json_str(m.value, "status"), "completed"))
                        return;
        }
}

static void command(struct bench *b, const char *name, const char *arguments, int fd)
{
        CLEANUP_JSON json_t *a = arguments ? json_loads(arguments, 0, NULL) : NULL;
        CLEANUP_BUF struct buf line = {};

        qmp_format(&line, name, a, ++b->id);
        if (fd_send(b->qmp, line.data, line.len, fd) < 0)
                die(name, "QEMU has ended");
}

static void restore(struct bench *b)
{
        CLEANUP_FREE char *path = xasprintf("/proc/self/fd/%d", b->t->device_state_fd);
        int state = open_file(path, O_RDONLY);

        command(b, "migrate-set-capabilities", "{\"capabilities\":[{\"capability\":\"x-ignore-shared\",\"state\":true},"
                "{\"capability\":\"events\",\"state\":true}]}", -1);
        await(b, NULL);
        command(b, "getfd", "{\"fdname\":\"state\"}", state);
        await(b, NULL);
        command(b, "migrate-incoming", "{\"uri\":\"fd:state\"}", -1);
        await(b, "MIGRATION");
        command(b, "cont", NULL, -1);
}

static void ping(struct bench *b)
{
        static const char request[] = "{\"id\":1,\"op\":\"ping\"}\n";
        int agent = unix_connect_at(b->dirfd, "agent.sock"), r;
        CLEANUP_BUF struct buf in = {};
        json_t *answer;

        if (agent < 0 || fd_send(agent, request, sizeof request - 1, -1) < 0)
                die("agent channel", "QEMU has ended");
        r = line_receive(agent, &in, TIMEOUT_MS, &answer, NULL);
        if (r < 0)
                die("guest agent", strerror(-r));
        json_decref(answer);
        close(agent);
}

static void channels(struct bench *b)
{
        int qmp[2], console[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, qmp) < 0 ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, console) < 0)
                die("socketpair", strerror(errno));
        b->qmp = high(qmp[0]);
        b->qmp_child = high(qmp[1]);
        b->console = high(console[0]);
        b->console_child = high(console[1]);
        b->agent_listen = high(unix_listen_at(b->dirfd, "agent.sock", 1));
}

static double ms(int64_t from, int64_t to)
{
        return (double)(to - from) / NSEC_PER_MSEC;
}

static void run(struct bench *b, bool cold)
{
        static const bool qcow2[] = {false, true};
        const struct vm_manifest *m = &b->t->manifest;
        CLEANUP_FREE char *rootfs = path_join(b->t->build_dir, "rootfs.img"), *overlay = path_join(b->dir, "overlay.qcow2");
        struct qemu_options o = {.qemu = b->t->kit->qemu, .qemu_data = b->t->kit->qemu_data, .arch = m->architecture,
                                 .backend = m->backend, .cpu_model = m->cpu_model, .vcpus = m->vcpus, .memory_mib = m->memory_mib,
                                 .memory = cold ? QEMU_MEMORY_ANONYMOUS : QEMU_MEMORY_PRIVATE, .network = VM_NETWORK_NONE,
                                 .disk_qcow2 = qcow2, .disks = 2, .top_writable = true, .incoming = !cold,
                                 .kernel = b->t->kit->vmlinuz, .initrd = b->t->kit->initramfs, .mode = "root",
                                 .tsc_khz = tsc_khz()};
        int64_t began, started, restored, answered;
        struct error err = {};
        char **argv;

        if (qemu_argv(&o, &argv, &err) < 0)
                die("QEMU", err.message);
        began = clock_monotonic_ns();
        if (disk_overlay_create(overlay, vm_manifest_part(m, "rootfs.img")->size, &err) < 0)
                die("overlay", err.message);
        channels(b);
        start(b, argv, open_file(rootfs, O_RDONLY), open_file(overlay, O_RDWR), open_file(overlay, O_RDONLY),
              open_file(b->t->kit->modules, O_RDONLY));
        close(b->qmp_child);
        await(b, NULL);
        command(b, "qmp_capabilities", NULL, -1);
        await(b, NULL);
        started = clock_monotonic_ns();
        if (!cold)
                restore(b);
        restored = clock_monotonic_ns();
        ping(b);
        answered = clock_monotonic_ns();
        printf("{\"start_ms\": %.2f, \"restore_ms\": %.2f, \"answer_ms\": %.2f, \"total_ms\": %.2f}\n", ms(began, started),
               ms(started, restored), ms(restored, answered), ms(began, answered));
        qemu_argv_free(argv);
}

int main(int argc, char **argv)
{
        bool cold = argc == 4 && streq(argv[1], "--cold");
        char dir[] = "/tmp/vmon-bench-fork-XXXXXX";
        struct error err = {};
        struct bench b = {.dir = dir};

        if (argc != 3 + cold) {
                fprintf(stderr, "usage: vmon-bench-fork [--cold] BUILD_DIR KIT_DIR\n");
                return 2;
        }
        if (vm_template_open(argv[1 + cold], argv[2 + cold], "tcg", &b.t, &err) < 0 &&
            vm_template_open(argv[1 + cold], argv[2 + cold], "kvm", &b.t, &err) < 0)
                die("snapshot", err.message);
        b.t->memory_fd = high(b.t->memory_fd);
        if (!mkdtemp(dir))
                die("temporary directory", strerror(errno));
        b.dirfd = open_file(dir, O_PATH | O_DIRECTORY);
        run(&b, cold);
        kill(b.qemu, SIGKILL);
        waitpid(b.qemu, NULL, 0);
        tree_remove(dir, NULL);
        vm_template_close(b.t);
        return 0;
}
