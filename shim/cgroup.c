/* Memory, CPU and process limits of one VM: cgroup v2, v1 or hybrid, whatever is mounted; none is fine too (status
 * tells which are in force). The group is <mount>/[controller/]vmon/<id>.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "shim.h"
#include "vm/qemu.h"

#define ROOT "/sys/fs/cgroup"
/* What QEMU needs beyond the guest's RAM: its own heap, disk caches, and under emulation the cache of translated code. A
 * Debian provisioning fills the latter to the brim. */
#define OVERHEAD_MIB (512 + QEMU_TCG_CACHE_MIB)
#define PIDS_MAX 256
/* All VMs together weigh as much as 16 ordinary processes, and each by its vCPUs among them: a cgroup counts like one process
 * otherwise, and a compiler run beside starves every guest. */
#define ALL_WEIGHT 16
#define WEIGHT_V1 1024
#define WEIGHT_V2 100

static int put(const char *dir, const char *name, const char *value)
{
        CLEANUP_FREE char *path = path_join(dir, name);
        CLEANUP_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);

        if (fd < 0)
                return -errno;
        return fd_write_all(fd, value, strlen(value));
}

/* Makes <base>/vmon/<id> and remembers it. */
static const char *make(struct shim *s, const char *base)
{
        char *dir = xasprintf("%s/vmon/%s", base, s->id);

        if (dir_make(dir, 0755, NULL) < 0) {
                free(dir);
                return NULL;
        }
        for (size_t i = 0; i < 4; i++)
                if (!s->cgroups[i])
                        return s->cgroups[i] = dir;
        free(dir);
        return NULL;
}

static void put_number(const char *dir, const char *name, unsigned long long value)
{
        CLEANUP_FREE char *text = xasprintf("%llu", value);

        put(dir, name, text);
}

static void create_v2(struct shim *s, const char *memory, const char *cpu, const char *pids, unsigned vcpus)
{
        const char *dir;

        if (dir_make(ROOT "/vmon", 0755, NULL) < 0)
                return;
        put(ROOT, "cgroup.subtree_control", "+memory +cpu +pids");
        put(ROOT "/vmon", "cgroup.subtree_control", "+memory +cpu +pids");
        put_number(ROOT "/vmon", "cpu.weight", ALL_WEIGHT * WEIGHT_V2);
        dir = make(s, ROOT);
        if (!dir)
                return;
        put_number(dir, "cpu.weight", vcpus * WEIGHT_V2);
        put(dir, "memory.max", memory);
        put(dir, "cpu.max", cpu);
        put(dir, "pids.max", pids);
}

static const char *create_v1(struct shim *s, const char *controller, const char *name, const char *value)
{
        CLEANUP_FREE char *base = xasprintf(ROOT "/%s", controller);
        const char *dir;

        if (!path_exists(base))
                return NULL;
        dir = make(s, base);
        if (dir)
                put(dir, name, value);
        return dir;
}

void cgroup_create(struct shim *s, unsigned memory_mib, unsigned vcpus)
{
        CLEANUP_FREE char *memory = xasprintf("%llu", (unsigned long long)(memory_mib + OVERHEAD_MIB) << 20);
        /* One CPU more than the guest has, for QEMU's own threads. */
        CLEANUP_FREE char *quota = xasprintf("%u", (vcpus + 1) * 100000);
        CLEANUP_FREE char *cpu = xasprintf("%s 100000", quota);
        CLEANUP_FREE char *pids = xasprintf("%d", PIDS_MAX);
        const char *dir;

        if (s->slot < 0)
                return;
        if (path_exists(ROOT "/cgroup.controllers")) {
                create_v2(s, memory, cpu, pids, vcpus);
                return;
        }
        create_v1(s, "memory", "memory.limit_in_bytes", memory);
        dir = create_v1(s, "cpu", "cpu.cfs_quota_us", quota);
        if (dir) {
                put_number(ROOT "/cpu/vmon", "cpu.shares", ALL_WEIGHT * WEIGHT_V1);
                put_number(dir, "cpu.shares", vcpus * WEIGHT_V1);
        }
        create_v1(s, "pids", "pids.max", pids);
}

void cgroup_join(const struct shim *s)
{
        for (size_t i = 0; i < 4 && s->cgroups[i]; i++)
                put(s->cgroups[i], "cgroup.procs", "0");
}

void cgroup_remove(struct shim *s)
{
        for (size_t i = 0; i < 4 && s->cgroups[i]; i++) {
                rmdir(s->cgroups[i]);
                free(s->cgroups[i]);
                s->cgroups[i] = NULL;
        }
}
