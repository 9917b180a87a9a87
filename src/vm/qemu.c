/* Builds argv in the order machine, memory, disks, devices, sockets, start. See qemu.h for the fixed slots.
 *
 * Quirks that shaped it:
 *  - without virtio-mmio.force-legacy=false the guest gets virtio 0.9, which virtiofsd refuses;
 *  - all net offloads are off: the set must not depend on what the host side (tap, slirp) can do, or a snapshot
 *    would not load elsewhere;
 *  - send-configuration=off in both directions lets xen-save-devices-state streams be loaded later (pausing);
 *  - a guest whose TSC calibration fails under load hangs: tsc_early_khz; TSC is then also declared reliable, for
 *    microvm has no other clock to compare it with;
 *  - without ARAT (Nehalem has none) Linux takes the local APIC's timer for one that stops when the CPU sleeps, finds
 *    no other to wake it and falls back to a tick at HZ: an idle guest then costs 5 % of a CPU under emulation, and no
 *    sleep ends sooner than 4 ms later;
 *  - under emulation the guest's mitigations for speculation protect nothing and cost everything: page-table isolation
 *    empties the emulated TLB at each system call (docs/decisions.md 6).
 */
#include "vm/qemu.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"

/* Transports 1 to 7: the interrupt of microvm's transport 0 does not reach Linux (virtio-fs on it hangs). */
#define TRANSPORTS 7

struct vector {
        char **items;
        size_t len;
};

static void add(struct vector *v, char *item)
{
        v->items = xreallocarray(v->items, v->len + 2, sizeof(char *));
        v->items[v->len++] = item;
        v->items[v->len] = NULL;
}

static void add_pair(struct vector *v, const char *option, char *value)
{
        add(v, xstrdup(option));
        add(v, value);
}

const char *qemu_default_cpu(const char *arch, const char *backend)
{
        if (streq(backend, "kvm"))
                return "host";
        return streq(arch, "aarch64") ? "max" : "Nehalem-v1";
}

const char *const *qemu_devices(bool share)
{
        static const char *const with[] = {"blk", "modules", "net", "rng", "serial", "balloon", "fs", NULL};
        static const char *const without[] = {"blk", "modules", "net", "rng", "serial", "balloon", NULL};

        return share ? with : without;
}

char *qemu_kernel_command_line(const struct qemu_options *o)
{
        struct buf b = {};

        buf_addf(&b, "console=%s quiet net.ifnames=0 reboot=t panic=-1",
                 streq(o->arch, "aarch64") ? "ttyAMA0" : "ttyS0");
        if (o->tsc_khz && streq(o->arch, "x86_64"))
                buf_addf(&b, " tsc_early_khz=%llu tsc=reliable", (unsigned long long)o->tsc_khz);
        if (streq(o->backend, "tcg"))
                buf_adds(&b, " mitigations=off");
        buf_addf(&b, " vmon.mode=%s", o->mode);
        if (o->init)
                buf_addf(&b, " vmon.init=%s", o->init);
        return buf_steal(&b);
}

/* Values that land inside option strings must not be able to add options: no commas, blanks or control bytes. */
static bool word_ok(const char *s)
{
        if (!s || !*s)
                return false;
        for (; *s; s++)
                if (*s == ',' || *s <= ' ' || *s == 127)
                        return false;
        return true;
}

static int check(const struct qemu_options *o, struct error *err)
{
        if (!streq(o->arch, "x86_64") && !streq(o->arch, "aarch64"))
                return error_set(err, ERROR_INVALID, "architecture '%s' is not supported (x86_64, aarch64)", o->arch);
        if (!streq(o->backend, "kvm") && !streq(o->backend, "tcg"))
                return error_set(err, ERROR_INVALID, "hypervisor '%s' is not known (kvm, tcg)", o->backend);
        if (o->id && !word_ok(o->id))
                return error_set(err, ERROR_INVALID, "the VM's id is not a plain word");
        if (!word_ok(o->cpu_model))
                return error_set(err, ERROR_INVALID, "CPU model '%s' is not a model name", o->cpu_model);
        if (o->vcpus < 1 || o->vcpus > 64)
                return error_set(err, ERROR_INVALID, "%u vCPUs are not possible (1 to 64)", o->vcpus);
        if (o->memory_mib < 64 || o->memory_mib > 1048576)
                return error_set(err, ERROR_INVALID, "%u MiB of memory are not possible (64 to 1048576)",
                                 o->memory_mib);
        if (o->disks < 1 || o->disks > QEMU_DISKS_MAX)
                return error_set(err, ERROR_INVALID, "a chain of %zu disks is not possible (1 to %d)", o->disks,
                                 QEMU_DISKS_MAX);
        if (!o->incoming && (!word_ok(o->mode) || (o->init && !word_ok(o->init))))
                return error_set(err, ERROR_INVALID, "the boot mode or init program is not a plain word");
        if (o->share && o->memory != QEMU_MEMORY_MEMFD && o->memory != QEMU_MEMORY_SHARED)
                return error_set(err, ERROR_INVALID, "a shared directory needs shared memory");
        return 0;
}

static void add_machine(struct vector *v, const struct qemu_options *o)
{
        if (streq(o->arch, "aarch64"))
                add_pair(v, "-machine", xstrdup("virt,gic-version=3,memory-backend=ram"));
        else
                add_pair(v, "-machine", xstrdup("microvm,acpi=on,pit=on,pic=on,rtc=on,memory-backend=ram"));
        /* The cache of translated code counts against the VM's memory limit: bounded, and part of the shim's overhead. */
        add_pair(v, "-accel", streq(o->backend, "tcg") ? xasprintf("tcg,tb-size=%d", QEMU_TCG_CACHE_MIB) : xstrdup(o->backend));
        add_pair(v, "-cpu", xasprintf("%s%s", o->cpu_model, streq(o->arch, "x86_64") ? ",arat=on" : ""));
        add_pair(v, "-smp", xasprintf("%u", o->vcpus));
        add_pair(v, "-m", xasprintf("%uM", o->memory_mib));
        add_pair(v, "-global", xstrdup("virtio-mmio.force-legacy=false"));
        add_pair(v, "-global", xstrdup("migration.send-configuration=off"));
}

static void add_memory(struct vector *v, const struct qemu_options *o)
{
        switch (o->memory) {
        case QEMU_MEMORY_ANONYMOUS:
                add_pair(v, "-object", xasprintf("memory-backend-ram,id=ram,size=%uM", o->memory_mib));
                break;
        case QEMU_MEMORY_MEMFD:
                add_pair(v, "-object", xasprintf("memory-backend-memfd,id=ram,size=%uM,share=on", o->memory_mib));
                break;
        case QEMU_MEMORY_SHARED:
        case QEMU_MEMORY_PRIVATE:
                add_pair(v, "-object",
                         xasprintf("memory-backend-file,id=ram,size=%uM,mem-path=/proc/self/fd/%d,share=%s",
                                   o->memory_mib, QEMU_FD_MEMORY, o->memory == QEMU_MEMORY_SHARED ? "on" : "off"));
                break;
        }
}

/* Linux finds microvm's transports through ACPI from the last to the first, virt's through the device tree from the
 * first on; either way slot 0 is to be found first, for it is /dev/vda. */
static unsigned bus(const struct qemu_options *o, unsigned slot)
{
        return streq(o->arch, "aarch64") ? slot : TRANSPORTS - slot;
}

/* One image: its descriptors as a set, the file node, the format node d<i> on top of the layer below. */
static void add_disk(struct vector *v, const struct qemu_options *o, size_t i)
{
        bool writable = o->top_writable && i + 1 == o->disks;
        const char *access = writable ? "read-only=off" : "read-only=on";
        /* A guest's flushes reach the host's page cache, no further: what must outlive the host is fsynced when it is published. */
        const char *flush = writable ? ",cache.no-flush=on" : "";
        struct buf b = {};

        add_pair(v, "-add-fd", xasprintf("fd=%d,set=%zu", qemu_disk_fd(i, false), i + 1));
        if (writable)
                add_pair(v, "-add-fd", xasprintf("fd=%d,set=%zu", qemu_disk_fd(i, true), i + 1));
        add_pair(v, "-blockdev", xasprintf("driver=file,node-name=f%zu,filename=/dev/fdset/%zu,%s,locking=off,"
                                           "discard=unmap%s", i, i + 1, access, flush));
        buf_addf(&b, "driver=%s,node-name=d%zu,file=f%zu,%s", o->disk_qcow2[i] ? "qcow2" : "raw", i, i, access);
        if (writable)
                buf_addf(&b, ",discard=unmap,detect-zeroes=unmap%s", flush);
        if (i > 0)
                buf_addf(&b, ",backing=d%zu", i - 1);
        add_pair(v, "-blockdev", buf_steal(&b));
}

static void add_disks(struct vector *v, const struct qemu_options *o)
{
        for (size_t i = 0; i < o->disks; i++)
                add_disk(v, o, i);
        add_pair(v, "-device", xasprintf("virtio-blk-device,bus=virtio-mmio-bus.%u,drive=d%zu", bus(o, 0), o->disks - 1));
        add_pair(v, "-add-fd", xasprintf("fd=%d,set=%d", QEMU_FD_MODULES, QEMU_DISKS_MAX + 1));
        add_pair(v, "-blockdev", xasprintf("driver=raw,node-name=modules,read-only=on,file.driver=file,"
                                           "file.filename=/dev/fdset/%d,file.locking=off", QEMU_DISKS_MAX + 1));
        add_pair(v, "-device", xasprintf("virtio-blk-device,bus=virtio-mmio-bus.%u,drive=modules,serial=modules", bus(o, 1)));
}

static void add_network(struct vector *v, const struct qemu_options *o)
{
        const char *peer = "netdev=net0,";

        switch (o->network) {
        case VM_NETWORK_NAT:
                add_pair(v, "-netdev", xasprintf("tap,id=net0,fd=%d,vhost=off", QEMU_FD_TAP));
                break;
        case VM_NETWORK_USER:
                /* slirp's name server answers at the guest's gateway address, as the namespace does under nat. */
                add_pair(v, "-netdev", xstrdup("user,id=net0,ipv6=off,net=169.254.0.16/28,host=169.254.0.19,"
                                               "dns=" VM_GUEST_GATEWAY ",dhcpstart=169.254.0.24"));
                break;
        case VM_NETWORK_NONE:
                peer = "";
                break;
        }
        add_pair(v, "-device", xasprintf("virtio-net-device,bus=virtio-mmio-bus.%u,%smac=%s,csum=off,guest_csum=off,"
                                         "gso=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,"
                                         "host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,"
                                         "ctrl_guest_offloads=off", bus(o, 2), peer, VM_GUEST_MAC));
}

static void add_devices(struct vector *v, const struct qemu_options *o)
{
        add_network(v, o);
        add_pair(v, "-object", xstrdup("rng-builtin,id=rng0"));
        add_pair(v, "-device", xasprintf("virtio-rng-device,bus=virtio-mmio-bus.%u,rng=rng0", bus(o, 3)));
        add_pair(v, "-chardev", xasprintf("socket,id=agent,fd=%d,server=on,wait=off", QEMU_FD_AGENT));
        add_pair(v, "-device", xasprintf("virtio-serial-device,bus=virtio-mmio-bus.%u,id=serial0", bus(o, 4)));
        add_pair(v, "-device", xstrdup("virtserialport,bus=serial0.0,nr=1,chardev=agent,name=vmon.agent"));
        add_pair(v, "-device", xasprintf("virtio-balloon-device,bus=virtio-mmio-bus.%u,free-page-reporting=on", bus(o, 5)));
        if (!o->share)
                return;
        add_pair(v, "-chardev", xasprintf("socket,id=fs,fd=%d", QEMU_FD_FS));
        add_pair(v, "-device", xasprintf("vhost-user-fs-device,bus=virtio-mmio-bus.%u,chardev=fs,tag=share", bus(o, 6)));
}

static void add_start(struct vector *v, const struct qemu_options *o)
{
        add_pair(v, "-chardev", xasprintf("socket,id=console,fd=%d", QEMU_FD_CONSOLE));
        add_pair(v, "-serial", xstrdup("chardev:console"));
        add_pair(v, "-chardev", xasprintf("socket,id=qmp,fd=%d", QEMU_FD_QMP));
        add_pair(v, "-mon", xstrdup("chardev=qmp,mode=control"));
        if (o->incoming) {
                add_pair(v, "-incoming", xstrdup("defer"));
                add(v, xstrdup("-S")); /* a state saved by xen-save-devices-state arrives as a running one */
                return;
        }
        add_pair(v, "-kernel", xstrdup(o->kernel));
        add_pair(v, "-initrd", xstrdup(o->initrd));
        add_pair(v, "-append", qemu_kernel_command_line(o));
}

int qemu_argv(const struct qemu_options *o, char ***ret, struct error *err)
{
        struct vector v = {};
        int r = check(o, err);

        if (r < 0)
                return r;
        add(&v, xstrdup(o->qemu));
        if (o->id)
                add_pair(&v, "-name", xstrdup(o->id));
        add(&v, xstrdup("-nodefaults"));
        add(&v, xstrdup("-no-user-config"));
        add(&v, xstrdup("-no-reboot"));
        add_pair(&v, "-display", xstrdup("none"));
        add_pair(&v, "-sandbox",
                 xstrdup("on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"));
        if (o->qemu_data)
                add_pair(&v, "-L", xstrdup(o->qemu_data));
        add_machine(&v, o);
        add_memory(&v, o);
        add_disks(&v, o);
        add_devices(&v, o);
        add_start(&v, o);
        *ret = v.items;
        return 0;
}

void qemu_argv_free(char **argv)
{
        for (char **p = argv; p && *p; p++)
                free(*p);
        free(argv);
}
