/* The QEMU command line, as a pure function of what a VM is made of. No I/O, no secrets: everything that
 * needs a right (disks, memory, sockets, the tap) is a descriptor under a fixed number (enum qemu_fd).
 *
 * A restored VM needs exactly the devices of the captured one, at the same addresses. Hence every device has its own
 * slot, a fixed virtio-mmio transport, named here and recorded in manifest.json ("devices"):
 *
 *   slot 0 blk      /dev/vda, the root chain         slot 4 serial   port 1 "vmon.agent"
 *   slot 1 modules  /dev/vdb, serial "modules"       slot 5 balloon  free page reporting
 *   slot 2 net      VM_GUEST_MAC, no offloads        slot 6 fs       vhost-user-fs tag "share": build VMs only
 *   slot 3 rng
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vm/vm.h"

/* Descriptor numbers inside QEMU. MEMORY, MODULES and DISKS are opened by the driver and pass through the shim under
 * the same numbers; the others are made by the shim. */
enum qemu_fd {
        QEMU_FD_QMP = 3,
        QEMU_FD_CONSOLE = 4,
        QEMU_FD_AGENT = 5, /* listening */
        QEMU_FD_TAP = 6,
        QEMU_FD_FS = 7,
        QEMU_FD_MEMORY = 8,
        QEMU_FD_MODULES = 9,
        QEMU_FD_DISKS = 10, /* two per disk: as used, and read-only for a later reopen */
};

/* Layers a chain may have (QEMU itself slows down well before). */
#define QEMU_DISKS_MAX 128
/* TCG's cache of translated code: QEMU's own default is up to 1 GiB. */
#define QEMU_TCG_CACHE_MIB 512

enum qemu_memory {
        QEMU_MEMORY_ANONYMOUS = 0,
        QEMU_MEMORY_MEMFD,   /* shared, as virtio-fs needs it */
        QEMU_MEMORY_SHARED,  /* QEMU_FD_MEMORY, written through: a build's memory file */
        QEMU_MEMORY_PRIVATE, /* QEMU_FD_MEMORY, copy-on-write: a fork */
};

struct qemu_options {
        const char *id;         /* shown by ps as -name, or NULL */
        const char *qemu;       /* program */
        const char *qemu_data;  /* -L, or NULL */
        const char *arch;       /* x86_64 or aarch64 */
        const char *backend;    /* kvm or tcg */
        const char *cpu_model;  /* see qemu_default_cpu() */
        unsigned vcpus, memory_mib;
        enum qemu_memory memory;
        enum vm_network network;
        const bool *disk_qcow2; /* per disk, bottom first */
        size_t disks;
        bool top_writable;
        bool share;             /* virtio-fs on QEMU_FD_FS */
        /* Boot (incoming = false): */
        const char *kernel, *initrd;
        const char *mode, *init; /* vmon.mode, vmon.init (may be NULL) */
        uint64_t tsc_khz;        /* 0 = unknown: not passed */
        /* Restore: */
        bool incoming;
};

/* The model used when --cpu-baseline is not given. tcg: "Nehalem-v1" (x86-64-v2; what it offers depends on the QEMU
 * version alone, not on the host, unlike "max" and "host"). kvm: "host", so that a snapshot is tied to the CPU
 * it was taken on. aarch64: "max" under tcg, "host" under kvm. */
const char *qemu_default_cpu(const char *arch, const char *backend);

/* The kernel command line for a boot; the caller frees. */
char *qemu_kernel_command_line(const struct qemu_options *o);

/* The argument vector, NULL-terminated; free with qemu_argv_free(). ERROR_INVALID on values outside of what a VM may
 * have (vcpus 1-64, memory 64 MiB-1 TiB, 1-QEMU_DISKS_MAX disks, unknown architecture). */
int qemu_argv(const struct qemu_options *o, char ***ret, struct error *err);
void qemu_argv_free(char **argv);

/* Device names in slot order, for manifest.json; NULL-terminated, static. */
const char *const *qemu_devices(bool share);

/* The descriptor of disk `i`; `second` = its read-only twin. */
static inline int qemu_disk_fd(size_t i, bool second)
{
        return QEMU_FD_DISKS + 2 * (int)i + (second ? 1 : 0);
}
