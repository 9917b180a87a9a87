/* Theory of operation. The freezer walks the agent's own cgroup path from the root; at each level every sibling
 * of the next component is frozen. So nothing on the agent's path is touched (an ancestor freezes its
 * descendants) and everything else is. Processes that sit directly in one of those ancestors, or beside the
 * agent, cannot be frozen that way and are stopped by SIGSTOP; they are remembered with their start time, so
 * that thawing never continues another process or one that the user had stopped himself.
 */
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "loop.h"
#include "process.h"
#include "procfs.h"

#define CGROUP_ROOT "/sys/fs/cgroup"
#define FREEZE_BUDGET_NS (5 * NSEC_PER_SEC)
#define END_ROUNDS_MAX 50
#define END_WAIT_MS 1000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool available, rehearsing;
static char **frozen;
static size_t frozen_count;
static struct procfs_task *stopped;
static size_t stopped_count;

static int write_file(const char *dir, const char *name, const char *text)
{
        CLEANUP_FREE char *path = path_join(dir, name);
        CLEANUP_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);

        if (fd < 0 || write(fd, text, strlen(text)) < 0)
                return -errno;
        return 0;
}

static void limit_memory(const char *dir)
{
        uint64_t total = procfs_meminfo("MemTotal");
        uint64_t reserve = total / 8 < (128ULL << 20) ? total / 8 : 128ULL << 20;
        char text[32];

        snprintf(text, sizeof(text), "%llu", (unsigned long long)(total - reserve));
        write_file(dir, "memory.high", text);
        write_file(dir, "memory.max", text);
}

static void make_group(const char *name, const char *cpu_weight, const char *io_weight)
{
        CLEANUP_FREE char *dir = path_join(CGROUP_ROOT, name);

        if (mkdir(dir, 0755) < 0 && errno != EEXIST) {
                log_warn("create the control group %s: %s", name, strerror(errno));
                return;
        }
        /* A controller that the kernel lacks only costs the weight. */
        write_file(dir, "cpu.weight", cpu_weight);
        write_file(dir, "io.weight", io_weight);
        limit_memory(dir);
}

void cgroup_setup(void)
{
        available = !agent_options.confined && path_exists(CGROUP_ROOT "/cgroup.subtree_control");
        if (!available)
                return;
        write_file(CGROUP_ROOT, "cgroup.subtree_control", "+cpu");
        write_file(CGROUP_ROOT, "cgroup.subtree_control", "+io");
        write_file(CGROUP_ROOT, "cgroup.subtree_control", "+memory");
        make_group("user", "50", "default 10");
        make_group("ptys", "200", "default 50");
        if (agent_options.mode == MODE_INIT) {
                CLEANUP_FREE char *own = path_join(CGROUP_ROOT, "vmon-agent");

                mkdir(own, 0755);
                write_file(own, "cgroup.procs", "0");
        }
}

int cgroup_open_procs(enum cgroup_kind kind)
{
        if (!available || kind == CGROUP_AGENT || __atomic_load_n(&rehearsing, __ATOMIC_SEQ_CST))
                return -1;
        return open(kind == CGROUP_PTY ? CGROUP_ROOT "/ptys/cgroup.procs" : CGROUP_ROOT "/user/cgroup.procs",
                    O_WRONLY | O_CLOEXEC);
}

void cgroup_rehearse(bool on)
{
        __atomic_store_n(&rehearsing, on, __ATOMIC_SEQ_CST);
}

/* The agent's path in the v2 tree, "/" when unknown. */
static char *own_path(void)
{
        CLEANUP_BUF struct buf text = {};
        char *line;

        if (file_read("/proc/self/cgroup", 64 * 1024, &text, NULL) < 0 || !text.data)
                return xstrdup("/");
        line = str_starts(text.data, "0::") ? text.data : strstr(text.data, "\n0::");
        if (!line)
                return xstrdup("/");
        line = strchr(line, '/');
        return line ? xstrndup(line, strcspn(line, "\n")) : xstrdup("/");
}

static void freeze_group(const char *dir)
{
        if (write_file(dir, "cgroup.freeze", "1") < 0)
                return;
        frozen = xreallocarray(frozen, frozen_count + 1, sizeof(*frozen));
        frozen[frozen_count++] = xstrdup(dir);
}

static void freeze_children(const char *dir, const char *except)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        struct dirent *e;

        while (d && (e = readdir(d))) {
                CLEANUP_FREE char *child = NULL;

                if (e->d_type != DT_DIR || e->d_name[0] == '.' || streq(e->d_name, except))
                        continue;
                child = path_join(dir, e->d_name);
                freeze_group(child);
        }
}

static void freeze_siblings(void)
{
        CLEANUP_FREE char *path = own_path();
        CLEANUP_FREE char *dir = xstrdup(CGROUP_ROOT);
        char *save = NULL;

        for (char *part = strtok_r(path, "/", &save);; part = strtok_r(NULL, "/", &save)) {
                char *next;

                freeze_children(dir, part ? part : "");
                if (!part)
                        return;
                next = path_join(dir, part);
                free(dir);
                dir = next;
        }
}

static bool group_is_frozen(int fd)
{
        char text[256];
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

        if (n < 0)
                return true; /* the group went away */
        text[n] = 0;
        return strstr(text, "frozen 1") || strstr(text, "populated 0");
}

static void wait_frozen(const char *dir, int64_t end)
{
        CLEANUP_FREE char *path = path_join(dir, "cgroup.events");
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        int64_t left;

        while (fd >= 0 && !group_is_frozen(fd) && (left = end - clock_monotonic_ns()) > 0)
                poll(&(struct pollfd){ fd, POLLPRI, 0 }, 1, (int)(left / NSEC_PER_MSEC) + 1);
}

/* What no frozen group holds. */
static void stop_rest(void)
{
        struct procfs_task *tasks;
        size_t count = procfs_tasks(&tasks);

        for (size_t i = 0; i < count; i++) {
                CLEANUP_FREE char *group = NULL;
                bool covered = false;

                if (tasks[i].kernel || tasks[i].pid == getpid() || tasks[i].pid == 1 || strchr("TtZX", tasks[i].state))
                        continue;
                group = procfs_cgroup(tasks[i].pid);
                for (size_t k = 0; group && k < frozen_count && !covered; k++) {
                        const char *dir = frozen[k] + strlen(CGROUP_ROOT);

                        covered = str_starts(group, dir) && (group[strlen(dir)] == '/' || group[strlen(dir)] == 0);
                }
                if (covered || kill(tasks[i].pid, SIGSTOP) < 0)
                        continue;
                stopped = xreallocarray(stopped, stopped_count + 1, sizeof(*stopped));
                stopped[stopped_count++] = tasks[i];
        }
        free(tasks);
}

void freezer_freeze(void)
{
        int64_t end = clock_monotonic_ns() + FREEZE_BUDGET_NS;

        if (agent_options.confined)
                return;
        pthread_mutex_lock(&lock);
        if (frozen_count == 0 && stopped_count == 0) {
                if (available)
                        freeze_siblings();
                stop_rest();
                for (size_t i = 0; i < frozen_count; i++)
                        wait_frozen(frozen[i], end);
        }
        pthread_mutex_unlock(&lock);
}

void freezer_thaw(void)
{
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < frozen_count; i++) {
                write_file(frozen[i], "cgroup.freeze", "0");
                free(frozen[i]);
        }
        for (size_t i = 0; i < stopped_count; i++)
                if (procfs_start_time(stopped[i].pid) == stopped[i].start_time)
                        kill(stopped[i].pid, SIGCONT);
        free(frozen);
        free(stopped);
        frozen = NULL;
        stopped = NULL;
        frozen_count = stopped_count = 0;
        pthread_mutex_unlock(&lock);
}

static void reap_on_loop(void *data)
{
        (void)data;
        process_reap();
}

/* Kills what runs now; returns how many there were. Waits by pidfd for each to die. */
static size_t end_round(void)
{
        struct procfs_task *tasks;
        size_t count = procfs_tasks(&tasks), victims = 0;
        struct pollfd *fds = xcalloc(count + 1, sizeof(*fds));

        for (size_t i = 0; i < count; i++) {
                if (tasks[i].kernel || tasks[i].pid == getpid())
                        continue;
                fds[victims].fd = (int)syscall(SYS_pidfd_open, tasks[i].pid, 0);
                fds[victims].events = POLLIN;
                victims++;
                kill(tasks[i].pid, SIGKILL);
        }
        for (size_t i = 0; i < victims; i++) {
                poll(&fds[i], fds[i].fd >= 0, END_WAIT_MS);
                if (fds[i].fd >= 0)
                        close(fds[i].fd);
        }
        free(fds);
        free(tasks);
        loop_call(reap_on_loop, NULL);
        return victims;
}

int process_end_all(struct error *err)
{
        if (agent_options.mode != MODE_INIT || getpid() != 1)
                return error_set(err, ERROR_INVALID, "step-end needs the agent as PID 1, not in mode %s",
                                 agent_mode_name(agent_options.mode));
        freezer_thaw();
        for (int round = 0; round < END_ROUNDS_MAX; round++)
                if (end_round() == 0)
                        return 0;
        return error_set(err, ERROR_INTERNAL, "processes are left after %d rounds of SIGKILL", END_ROUNDS_MAX);
}
