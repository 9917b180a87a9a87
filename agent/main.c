/* vmon-agent: tells its role apart and runs it (docs/agent-protocol.md). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "agent.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "cgroup.h"
#include "forward.h"
#include "guest.h"
#include "guest-end.h"
#include "guest-reset.h"
#include "loop.h"
#include "process.h"
#include "serial.h"
#include "state.h"
#include "web.h"

#define RAMFS 0x858458f6
#define TMPFS 0x01021994
#define DESCRIPTORS_WANTED 65536
#define LISTEN_RETRY_MS 200

/* The root of an initramfs is the one that no disk lies under. */
static bool root_is_memory(void)
{
        struct statfs fs;

        return statfs("/", &fs) == 0 && (fs.f_type == RAMFS || fs.f_type == TMPFS);
}

static void usage(FILE *to)
{
        fprintf(to, "usage: vmon-agent [-version] [-port N] [-listen ADDRESS] [-serial PATH] [-share DIR] [-root-safe]\n"
                    "  -serial PATH   character device, or UNIX socket to listen at, in place of the virtio port\n"
                    "  -share DIR     where the host's files are (default %s)\n"
                    "  -root-safe     leave control groups, clock, file systems and kernel state alone (tests)\n",
                SHARE_DIR);
}

static void parse_options(int argc, char **argv)
{
        for (int i = 1; i < argc; i++) {
                const char *name = argv[i] + strspn(argv[i], "-");
                const char *value = i + 1 < argc ? argv[i + 1] : NULL;
                uint64_t port;

                if (streq(name, "version")) {
                        puts(ENVD_VERSION);
                        exit(EXIT_SUCCESS);
                } else if (streq(name, "root-safe"))
                        agent_options.confined = true;
                else if (streq(name, "daemon"))
                        continue;
                else if (streq(name, "port") && value && str_to_u64(value, 65535, &port)) {
                        agent_options.port = (int)port;
                        i++;
                } else if (value && streq(name, "listen"))
                        agent_options.listen = argv[++i];
                else if (value && streq(name, "serial"))
                        agent_options.serial = argv[++i];
                else if (value && streq(name, "share"))
                        agent_options.share = argv[++i];
                else {
                        usage(streq(name, "help") ? stdout : stderr);
                        exit(streq(name, "help") ? EXIT_SUCCESS : 2);
                }
        }
}

static void on_child(uv_signal_t *handle, int number)
{
        (void)handle, (void)number;
        process_reap();
        guest_end_reaped();
}

static void on_terminate(uv_signal_t *handle, int number)
{
        (void)number;
        if (agent_options.mode == MODE_SERVICE)
                uv_stop(handle->loop);
        else
                guest_end();
}

static void watch_signal(uv_signal_t *handle, int number, uv_signal_cb callback)
{
        uv_signal_init(agent_loop, handle);
        uv_signal_start(handle, callback, number);
}

static void raise_descriptor_limit(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
                return;
        limit.rlim_cur = limit.rlim_max < DESCRIPTORS_WANTED ? limit.rlim_max : DESCRIPTORS_WANTED;
        setrlimit(RLIMIT_NOFILE, &limit);
}

int agent_serve(void)
{
        /* To PID 1: ctrl-alt-del; what busybox's reboot, halt and poweroff send; a failing power supply. */
        static const int ends[] = { SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGPWR };
        static uv_signal_t child, end[sizeof(ends) / sizeof(ends[0])];
        struct error err;

        signal(SIGPIPE, SIG_IGN);
        raise_descriptor_limit();
        json_object_seed(0); /* before there are threads */
        loop_init();
        watch_signal(&child, SIGCHLD, on_child);
        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
                if (agent_options.mode != MODE_SERVICE || ends[i] == SIGTERM || ends[i] == SIGINT)
                        watch_signal(&end[i], ends[i], on_terminate);
        cgroup_setup();
        state_write_files();
        if (agent_options.mode != MODE_INITRAMFS) {
                if (web_start(&err) < 0) {
                        log_error("%s", err.message);
                        /* PID 1 must live on: the host sees no answer on the port and says so. */
                        if (agent_options.mode == MODE_SERVICE)
                                return EXIT_FAILURE;
                }
                if (!agent_options.confined)
                        forward_start();
        }
        if (agent_options.serial || !agent_options.confined)
                serial_start(agent_options.serial);
        /* Orphans may have ended before the handler was there. */
        process_reap();
        uv_run(agent_loop, UV_RUN_DEFAULT);
        return EXIT_SUCCESS;
}

static void set_priorities(void)
{
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

        setpriority(PRIO_PROCESS, 0, -20);
        if (fd >= 0) {
                if (write(fd, "-1000", 5) < 0)
                        log_warn("shield from the OOM killer: %s", strerror(errno));
                close(fd);
        }
}

static void open_console(void)
{
        int fd = open("/dev/console", O_RDWR | O_NOCTTY);

        for (int i = 0; fd >= 0 && i < 3; i++)
                dup2(fd, i);
        if (fd > 2)
                close(fd);
}

/* A guest that cannot boot ends its VM, so that the host reads the console's last words instead of waiting. */
static void give_up(const struct error *err)
{
        log_error("%s", err->message);
        sync();
        reboot(RB_AUTOBOOT);
}

static int boot_root(struct error *err)
{
        char *wanted = guest_kernel_option("vmon.init");
        const char *const argv[] = { wanted && !streq(wanted, "agent") ? wanted : AGENT_BINARY, NULL };
        int r = guest_mount_root(err);

        if (r >= 0 && guest_mount_module_disk(NEW_ROOT, err) < 0)
                log_warn("%s", err->message);
        if (r >= 0)
                r = guest_switch_root(argv, err);
        free(wanted);
        return r;
}

static int run_initramfs(void)
{
        struct error err;
        char *mode;

        guest_mount_basics(false);
        open_console();
        if (guest_load_modules(&err) < 0)
                log_warn("%s", err.message);
        if (guest_configure_network(&err) < 0)
                log_warn("%s", err.message);
        mode = guest_kernel_option("vmon.mode");
        if (streq(mode, "root") && boot_root(&err) < 0)
                give_up(&err);
        free(mode);
        return agent_serve();
}

static int run_init(void)
{
        guest_mount_basics(true);
        guest_reset_prepare();
        open_console();
        set_priorities();
        if (sethostname(GUEST_HOSTNAME, strlen(GUEST_HOSTNAME)) < 0)
                log_warn("set the host name: %s", strerror(errno));
        return agent_serve();
}

int main(int argc, char **argv)
{
        umask(022);
        if (getpid() != 1) {
                parse_options(argc, argv);
                if (!agent_options.confined)
                        set_priorities();
                return agent_serve();
        }
        agent_options.mode = root_is_memory() && path_exists("/init") ? MODE_INITRAMFS : MODE_INIT;
        setenv("PATH", AGENT_PATH, 1);
        return agent_options.mode == MODE_INITRAMFS ? run_initramfs() : run_init();
}
