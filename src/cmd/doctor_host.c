/* Checks of the host: network, cgroups, memory, disk, limits, reachability. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cmd/doctor.h"
#include "vm/net.h"

#define GIB (1024ULL * 1024 * 1024)
#define DISK_FREE_MIN (20 * GIB)   /* a template of the default size and its builds */
#define MEMORY_MIN (4 * GIB)
#define DESCRIPTORS_MIN 65536      /* a sandbox takes about ten in serve, a proxied connection two */
#define WATCHES_MIN 8192
#define SMALL_FILE_MAX 65536

/* The number in a file of /proc, or `otherwise`. */
static uint64_t read_number(const char *path, uint64_t otherwise)
{
        CLEANUP_BUF struct buf text = {};
        uint64_t value;

        if (file_read(path, 64, &text, NULL) < 0 || !text.data || !str_to_u64(str_trim(text.data), UINT64_MAX, &value))
                return otherwise;
        return value;
}

/* In a child, as the caller must stay where it is. vfork is not used: unshare would reach the parent. */
static bool can_make_namespace(void)
{
        int status = -1;
        pid_t pid = fork();

        if (pid == 0)
                _exit(unshare(CLONE_NEWNET) < 0);
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        return pid > 0 && status == 0;
}

static void check_tun(struct doctor *d)
{
        CLEANUP_CLOSE int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

        if (fd >= 0)
                findings_add(&d->findings, "network", FINDING_OK, xstrdup("/dev/net/tun opens"), NULL);
        else
                findings_add(&d->findings, "network", FINDING_FAIL, xasprintf("/dev/net/tun: %s", strerror(errno)),
                             xstrdup("modprobe tun; in a container pass the device; or --network user"));
}

static void check_resolver(struct doctor *d)
{
        char resolver[NET_ADDRESS_MAX];

        if (net_host_resolver(resolver))
                findings_add(&d->findings, "resolver", FINDING_OK, xasprintf("guests ask %s", resolver), NULL);
        else
                findings_add(&d->findings, "resolver", FINDING_WARN,
                             xstrdup("no IPv4 nameserver outside 127/8 in /etc/resolv.conf nor systemd-resolved's list: "
                                     "names do not resolve in guests"),
                             xstrdup("put one into /etc/resolv.conf"));
}

void doctor_check_network(struct doctor *d)
{
        if (geteuid() != 0) {
                findings_add(&d->findings, "network", FINDING_WARN,
                             xstrdup("not root: only --network user (guests reach this host's loopback; no restrictions)"),
                             xstrdup("run vmon serve as root for network nat"));
                return;
        }
        check_tun(d);
        if (!can_make_namespace())
                findings_add(&d->findings, "network", FINDING_FAIL, xstrdup("network namespaces cannot be made"),
                             xstrdup("give this container CAP_SYS_ADMIN, or --network user"));
        check_resolver(d);
}

static void check_cgroups(struct doctor *d)
{
        CLEANUP_BUF struct buf controllers = {}, mounts = {};

        if (file_read("/sys/fs/cgroup/cgroup.controllers", SMALL_FILE_MAX, &controllers, NULL) >= 0) {
                findings_add(&d->findings, "cgroups", FINDING_OK,
                             xasprintf("v2: %s", controllers.data ? str_trim(controllers.data) : ""), NULL);
        } else if (path_exists("/sys/fs/cgroup/memory") || path_exists("/sys/fs/cgroup/cpu")) {
                findings_add(&d->findings, "cgroups", FINDING_OK,
                             xasprintf("v1:%s%s%s", path_exists("/sys/fs/cgroup/cpu") ? " cpu" : "",
                                       path_exists("/sys/fs/cgroup/memory") ? " memory" : "",
                                       path_exists("/sys/fs/cgroup/pids") ? " pids" : ""),
                             NULL);
        } else {
                findings_add(&d->findings, "cgroups", FINDING_WARN,
                             xstrdup("none: the CPU and memory of a VM's processes are bounded by QEMU's own size only"),
                             xstrdup("mount -t cgroup2 none /sys/fs/cgroup"));
        }
}

static void check_memory(struct doctor *d)
{
        CLEANUP_BUF struct buf text = {};
        const char *line;
        uint64_t kib = 0;

        if (file_read("/proc/meminfo", SMALL_FILE_MAX, &text, NULL) >= 0 && (line = strstr(buf_str(&text), "MemAvailable:")))
                kib = strtoull(line + strlen("MemAvailable:"), NULL, 10);
        findings_add(&d->findings, "memory", kib * 1024 < MEMORY_MIN ? FINDING_WARN : FINDING_OK,
                     xasprintf("%" PRIu64 " MiB available", kib / 1024),
                     kib * 1024 < MEMORY_MIN ? xstrdup("4 GiB are a practical minimum; give the machine more") : NULL);
}

/* The data directory may not exist yet: its nearest ancestor tells the file system. */
static void check_disk(struct doctor *d)
{
        CLEANUP_FREE char *path = xstrdup(d->data_dir);
        struct statvfs fs;
        uint64_t free_bytes;

        while (statvfs(path, &fs) < 0 && errno == ENOENT && strrchr(path, '/') > path)
                *strrchr(path, '/') = '\0';
        if (statvfs(path, &fs) < 0 && statvfs("/", &fs) < 0) {
                findings_add(&d->findings, "disk", FINDING_WARN, xasprintf("%s: %s", path, strerror(errno)), NULL);
                return;
        }
        free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        findings_add(&d->findings, "disk", free_bytes < DISK_FREE_MIN ? FINDING_WARN : FINDING_OK,
                     xasprintf("%" PRIu64 " GiB free for %s", (uint64_t)(free_bytes / GIB), d->data_dir),
                     free_bytes < DISK_FREE_MIN
                             ? xstrdup("templates and builds want 20 GiB; free some, or move --data-dir to a larger disk")
                             : NULL);
}

static void check_descriptors(struct doctor *d)
{
        struct rlimit limit = {};
        bool few;

        getrlimit(RLIMIT_NOFILE, &limit);
        few = limit.rlim_max != RLIM_INFINITY && limit.rlim_max < DESCRIPTORS_MIN;
        findings_add(&d->findings, "descriptors", few ? FINDING_WARN : FINDING_OK,
                     xasprintf("open files: %llu, at most %llu", (unsigned long long)limit.rlim_cur,
                               (unsigned long long)limit.rlim_max),
                     few ? xasprintf("raise it to %d (LimitNOFILE= in the unit, ulimit -Hn)", DESCRIPTORS_MIN) : NULL);
}

static void check_inotify(struct doctor *d)
{
        uint64_t watches = read_number("/proc/sys/fs/inotify/max_user_watches", 0);
        bool few = watches < WATCHES_MIN;

        findings_add(&d->findings, "inotify", few ? FINDING_WARN : FINDING_OK, xasprintf("%" PRIu64 " watches", watches),
                     few ? xasprintf("sysctl -w fs.inotify.max_user_watches=%d", WATCHES_MIN) : NULL);
}

void doctor_check_limits(struct doctor *d)
{
        check_cgroups(d);
        check_memory(d);
        check_disk(d);
        check_descriptors(d);
        check_inotify(d);
}

void doctor_check_address(struct doctor *d)
{
        const char *url = getenv("VMON_PUBLIC_URL"), *listen = getenv("VMON_LISTEN");

        if (url && *url)
                findings_add(&d->findings, "public-url", FINDING_OK, xstrdup(url), NULL);
        else
                findings_add(&d->findings, "public-url", FINDING_OK,
                             xasprintf("not set: clients use http://%s, from this machine only unless --listen says otherwise",
                                       listen && *listen ? listen : "127.0.0.1:3000"),
                             xstrdup("for others: --listen 0.0.0.0:3000 --public-url https://…, and --domain NAME with a "
                                     "wildcard DNS record for sandbox host names"));
}
