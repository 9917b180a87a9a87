/* KVM or software emulation.
 *
 * Theory of operation: a /dev/kvm that opens proves nothing (design 1: there are hosts where a VM is created and its
 * kernel then hangs), so `auto` boots the kit kernel and lets the agent answer a ping over its serial channel. The
 * channel is the probe QEMU's standard input and output; the ping is written at once and waits there until the guest
 * opens the port. The verdict holds for the boot of this host and the version of the kit.
 */
#include "vm/hypervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/kit_internal.h"
#include "vm/tsc.h"

#define PROBE_TIMEOUT_S 10
#define CPUINFO_MAX (16UL << 20)
#define CONSOLE_MAX (1UL << 20)
#define CACHE_MAX 16384
#define ANSWER_MAX 65536

bool hypervisor_cpuinfo_has_virtualisation(const char *text)
{
        const char *flags = str_starts(text, "flags") ? text : strstr(text, "\nflags");
        CLEANUP_FREE char *line = flags ? xstrndup(flags + 1, strcspn(flags + 1, "\n")) : NULL;
        char *save = NULL;

        for (char *word = line ? strtok_r(line, " \t:", &save) : NULL; word; word = strtok_r(NULL, " \t:", &save))
                if (streq(word, "vmx") || streq(word, "svm"))
                        return true;
        return false;
}

static char *missing_for_kvm(const char *arch)
{
        CLEANUP_BUF struct buf cpuinfo = {};
        CLEANUP_CLOSE int kvm = -1;
        struct utsname u;

        uname(&u);
        if (!streq(u.machine, arch))
                return xasprintf("this machine is %s, not %s", u.machine, arch);
        if (streq(arch, "x86_64") && (file_read("/proc/cpuinfo", CPUINFO_MAX, &cpuinfo, NULL) < 0 ||
                                      !hypervisor_cpuinfo_has_virtualisation(buf_str(&cpuinfo))))
                return xstrdup("the CPU offers no hardware virtualisation (no vmx or svm in /proc/cpuinfo); enable it in "
                               "the firmware, or nested virtualisation for this VM");
        kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
        if (kvm < 0)
                return xasprintf("/dev/kvm does not open (%s); load the kvm module or give access to it", strerror(errno));
        return NULL;
}

bool hypervisor_kvm_possible(const char *arch, char **ret_reason)
{
        char *missing = missing_for_kvm(arch);

        if (ret_reason)
                *ret_reason = missing;
        else
                free(missing);
        return !missing;
}

struct probe {
        pid_t pid;
        int in, out; /* of the serial channel */
};

static int probe_spawn(const struct kit *kit, const char *accelerator, const char *console, struct probe *ret)
{
        bool arm = streq(kit->arch, "aarch64");
        CLEANUP_FREE char *lib = xasprintf("LD_LIBRARY_PATH=%s", kit->qemu_lib ? kit->qemu_lib : "");
        CLEANUP_FREE char *serial = xasprintf("file:%s", console);
        /* Not quiet: what the console says last is the reason when no answer comes. The TSC as in every VM (qemu.c). */
        CLEANUP_FREE char *tsc = arm ? xstrdup("") : xasprintf(" tsc_early_khz=%" PRIu64 " tsc=reliable", tsc_khz());
        CLEANUP_FREE char *line = xasprintf("console=%s panic=-1 reboot=t net.ifnames=0%s vmon.mode=unpack",
                                            arm ? "ttyAMA0" : "ttyS0", tsc);
        const char *machine = arm ? "virt" : "microvm,acpi=on,pit=on,pic=on,rtc=on";
        char *const argv[] = {kit->qemu, "-M", (char *)machine, "-accel", (char *)accelerator, "-cpu",
                              streq(accelerator, "kvm") ? "host" : "max", "-m", "512", "-smp", "1", "-L", kit->qemu_data,
                              "-global", "virtio-mmio.force-legacy=false", "-no-reboot", "-nodefaults",
                              "-no-user-config", "-display", "none", "-kernel", kit->vmlinuz, "-initrd", kit->initramfs,
                              "-append", line, "-serial", serial, "-chardev", "stdio,id=agent,signal=off",
                              "-device", "virtio-serial-device", "-device", "virtserialport,chardev=agent,name=vmon.agent",
                              NULL};
        char *const env[] = {kit->qemu_lib ? lib : NULL, NULL};
        int in[2] = {-1, -1}, out[2] = {-1, -1}, r;
        posix_spawn_file_actions_t actions;

        if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
                return -errno;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, in[0], 0);
        posix_spawn_file_actions_adddup2(&actions, out[1], 1);
        posix_spawn_file_actions_addopen(&actions, 2, console, O_WRONLY | O_APPEND | O_CREAT, 0600);
        r = -posix_spawn(&ret->pid, kit->qemu, &actions, NULL, argv, env);
        posix_spawn_file_actions_destroy(&actions);
        close(in[0]);
        close(out[1]);
        ret->in = in[1];
        ret->out = out[0];
        return r;
}

/* Waits for a line with "result"; false at the end of the stream or of the time. */
static bool probe_answered(const struct probe *p, unsigned timeout_s)
{
        static const char ping[] = "{\"id\":1,\"op\":\"ping\"}\n";
        int64_t end = clock_monotonic_ns() + timeout_s * NSEC_PER_SEC;
        CLEANUP_BUF struct buf answer = {};

        if (fd_write_all(p->in, ping, sizeof(ping) - 1) < 0)
                return false;
        for (int64_t now; (now = clock_monotonic_ns()) < end && answer.len < ANSWER_MAX;) {
                struct pollfd fd = {.fd = p->out, .events = POLLIN};
                ssize_t n;

                if (poll(&fd, 1, (int)((end - now) / NSEC_PER_MSEC) + 1) <= 0)
                        continue;
                n = read(p->out, buf_reserve(&answer, 4096), 4096);
                if (n <= 0)
                        return false;
                buf_grew(&answer, (size_t)n);
                if (strstr(answer.data, "\"result\"") && strchr(strstr(answer.data, "\"result\""), '\n'))
                        return true;
        }
        return false;
}

/* The last line that is not empty, scrubbed. */
static char *last_line(const char *path)
{
        CLEANUP_BUF struct buf text = {};
        size_t end, start;

        if (file_read(path, CONSOLE_MAX, &text, NULL) < 0 || !text.data)
                return xstrdup("");
        for (end = text.len; end > 0 && strchr("\r\n", text.data[end - 1]); end--)
                ;
        for (start = end; start > 0 && text.data[start - 1] != '\n'; start--)
                ;
        return utf8_scrub(text.data + start, end - start);
}

int hypervisor_probe(const struct kit *kit, const char *accelerator, unsigned timeout_s, const char *temp_dir,
                     struct error *err)
{
        CLEANUP_FREE char *console = xasprintf("%s/probe-console.%d", temp_dir, getpid()), *last = NULL;
        struct probe p = {-1, -1, -1};
        bool answered = false;
        void (*old)(int);
        int r = probe_spawn(kit, accelerator, console, &p);

        if (r >= 0) {
                /* A QEMU that ends at once must not end us. */
                old = signal(SIGPIPE, SIG_IGN);
                answered = probe_answered(&p, timeout_s);
                signal(SIGPIPE, old);
                kill(p.pid, SIGKILL);
                while (waitpid(p.pid, NULL, 0) < 0 && errno == EINTR)
                        ;
        }
        if (p.in >= 0)
                close(p.in);
        if (p.out >= 0)
                close(p.out);
        last = last_line(console);
        unlink(console);
        if (r < 0)
                return error_errno(err, r, "start the probe VM");
        if (answered)
                return 0;
        return error_set(err, ERROR_UNAVAILABLE, "a probe boot with %s did not answer within %u seconds (console: %s)",
                         accelerator, timeout_s, *last ? last : "empty");
}

/* The random name of this boot of the host. */
static char *boot_id(void)
{
        CLEANUP_BUF struct buf text = {};

        if (file_read("/proc/sys/kernel/random/boot_id", 64, &text, NULL) < 0)
                return xstrdup("unknown");
        return xstrdup(str_trim(text.data));
}

static bool cache_read(const char *path, const char *boot, const char *kit, const char **ret, char **ret_reason)
{
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        const char *verdict;

        if (file_read(path, CACHE_MAX, &text, NULL) < 0 || json_parse(buf_str(&text), text.len, &j, NULL) < 0)
                return false;
        verdict = json_str(j, "verdict");
        if (!streq(json_str(j, "boot_id"), boot) || !streq(json_str(j, "kit"), kit) || !verdict)
                return false;
        *ret = streq(verdict, "kvm") ? "kvm" : "tcg";
        *ret_reason = xstrdup(json_str(j, "reason") ? json_str(j, "reason") : "");
        return true;
}

/* Only saves a later probe: a failure is not one of the caller's. */
static void cache_write(const char *path, const char *boot, const char *kit, const char *verdict, const char *reason)
{
        CLEANUP_JSON json_t *j = json_pack("{s:s,s:s,s:s,s:s}", "boot_id", boot, "kit", kit, "verdict", verdict, "reason",
                                           reason);
        CLEANUP_FREE char *text = json_text(j);

        file_write_atomic(path, text, strlen(text), 0600, NULL);
}

static const char *select_auto(const struct kit *kit, const char *cache_dir, char **ret_reason)
{
        CLEANUP_FREE char *boot = boot_id(), *path = path_join(cache_dir, "hypervisor.json");
        const char *verdict = "tcg";
        struct error err;

        if (!hypervisor_kvm_possible(kit->arch, ret_reason))
                return "tcg";
        if (dir_make(cache_dir, 0700, NULL) >= 0 && cache_read(path, boot, kit->version, &verdict, ret_reason))
                return verdict;
        if (hypervisor_probe(kit, "kvm", PROBE_TIMEOUT_S, cache_dir, &err) >= 0) {
                verdict = "kvm";
                *ret_reason = xstrdup("a probe boot with KVM answered");
        } else {
                *ret_reason = xstrdup(err.message);
        }
        cache_write(path, boot, kit->version, verdict, *ret_reason);
        return verdict;
}

int hypervisor_select(const struct kit *kit, const char *wanted, const char *cache_dir, const char **ret,
                      char **ret_reason, struct error *err)
{
        CLEANUP_FREE char *reason = NULL;
        const char *verdict;

        if (streq(wanted, "tcg")) {
                verdict = "tcg";
                reason = xstrdup("asked for");
        } else if (streq(wanted, "kvm")) {
                if (!hypervisor_kvm_possible(kit->arch, &reason))
                        return error_set(err, ERROR_UNAVAILABLE, "hypervisor kvm: %s; or use --hypervisor tcg", reason);
                verdict = "kvm";
                reason = xstrdup("asked for");
        } else if (streq(wanted, "auto")) {
                static pthread_mutex_t one_probe = PTHREAD_MUTEX_INITIALIZER;

                pthread_mutex_lock(&one_probe);
                verdict = select_auto(kit, cache_dir, &reason);
                pthread_mutex_unlock(&one_probe);
        } else {
                return error_set(err, ERROR_INVALID, "hypervisor \"%s\" is none of auto, kvm, tcg", wanted);
        }
        *ret = verdict;
        if (ret_reason)
                *ret_reason = STEAL(reason);
        return 0;
}
