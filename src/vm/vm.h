/* One virtual machine, seen from the driver: a vmon-shim process that owns QEMU, found again by its socket.
 *
 * Life of a VM: configured -> starting -> running -> (stopped ->) exited. vm_boot() and vm_restore() spawn the
 * shim, which makes the network namespace, drops QEMU to its own uid and answers on <dir>/shim.sock; the VM
 * outlives the caller's process. All calls block and belong on worker threads, except vm_connect_async().
 * A handle is used by one thread at a time unless noted.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "vm/kit.h"

/* Guest addresses, the same in every guest so that snapshots fit everywhere (design 6). */
#define VM_GUEST_ADDRESS "169.254.0.21"
#define VM_GUEST_GATEWAY "169.254.0.22"
#define VM_GUEST_PREFIX 30
#define VM_GUEST_MAC "02:fc:00:00:00:05"
#define VM_AGENT_PORT 49983

enum vm_network { VM_NETWORK_NAT = 0, VM_NETWORK_USER, VM_NETWORK_NONE };

/* One disk of the chain, bottom first. The top one is writable (qcow2, made by the caller with disk.h) unless
 * the chain has length 1 and is raw and writable. */
struct vm_config {
        const char *id;              /* [a-z0-9-], for messages and names */
        const char *dir;             /* existing directory for sockets, console, state; 0700 */
        const struct kit *kit;
        const char *backend;         /* "kvm" or "tcg" */
        const char *cpu_model;       /* --cpu-baseline, or NULL for the backend's default */
        unsigned vcpus;
        unsigned memory_mib;
        enum vm_network network;
        const char *const *disks;    /* paths, bottom first, NULL-terminated; *.qcow2 are qcow2, others raw */
        const char *share_dir;       /* shared read-only over virtio-fs with tag "share", or NULL */
        const char *memory_file;     /* RAM is this new file, shared (finalize); NULL = anonymous */
        const char *mode;            /* kernel command line vmon.mode: "unpack" or "root" (docs/agent-protocol.md) */
        const char *init;            /* vmon.init for mode root: "/sbin/init", or "agent"; may be NULL otherwise */
        int64_t expires_at_ns;       /* realtime; the shim kills the VM then; 0 = never */
};

struct vm;

int vm_boot(const struct vm_config *c, struct vm **ret, struct error *err);

/* A published template snapshot: builds/<buildID>/ with manifest.json, rootfs.img, memory, device-state. */
struct vm_template;
/* Opens and checks a snapshot: format, architecture, backend, CPU model, kit. ERROR_CONFLICT "recapture required"
 * for another format; ERROR_UNAVAILABLE naming the mismatch otherwise. Loads the memory once into a sealed memfd
 * (QEMU < 8.2) that all forks share copy-on-write. Thread-safe; keep it open while forks are wanted. */
int vm_template_open(const char *build_dir, const char *kit_root, const char *backend, struct vm_template **ret,
                     struct error *err);
void vm_template_close(struct vm_template *t);
const json_t *vm_template_manifest(const struct vm_template *t);

struct vm_fork {
        const char *id;
        const char *dir;          /* existing, 0700; the overlay is created in it */
        const struct vm_template *template_;
        enum vm_network network;
        int64_t expires_at_ns;
        const json_t *egress;     /* {"allow":[…],"deny":[…]}, as of struct net_egress; or NULL. Needs VM_NETWORK_NAT */
        const json_t *wake;       /* the agent's wake request without op/entropy/time (docs/agent-protocol.md);
                                     passed over a pipe, never argv */
        const char *paused;       /* a directory of vm_pause(): `dir` is that of the paused VM, and the fork goes on from there. Of vm_pause_disk():
                                     it is booted, and `wake` also gets what the agent knew (environment, default user and directory) */
        /* Called when the VM is complete and still stopped, or has booted; an error ends it. What it was made from is then as before (its disk as
         * after a power cut, if it booted). May be NULL. */
        int (*before_run)(void *data, struct error *err);
        void *before_run_data;
};
/* Forks a running copy: QEMU restored from the snapshot, continued, and the agent woken (secret, entropy, time,
 * identity) before anything else in the guest runs. Returns when the agent has answered. */
int vm_restore(const struct vm_fork *f, struct vm **ret, struct error *err);

/* A fork for later: restored, its agent alone has run and answered until it answers fast, and it stands still. `egress`, `wake` and `paused`
 * of `f` are not used: vm_hand_over() gives it its identity. */
int vm_restore_warm(const struct vm_fork *f, struct vm **ret, struct error *err);
/* Makes of such a fork what vm_restore() returns: egress rules (or NULL), then continued and woken. On failure it is to be killed. */
int vm_hand_over(struct vm *vm, const json_t *egress, const json_t *wake, struct error *err);

/* Stops a fork and saves what it changed in memory (delta.h) and its devices into the new directory `into`, which is published
 * complete and durable, as is the overlay; nothing of the guest has run since. 0: the VM stands still, to be killed or to be
 * continued. On failure it goes on, and nothing is left at `into`. *ret_pages (may be NULL): changed pages. `wake` is the
 * wake request for going on, as in struct vm_fork. */
int vm_pause(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, uint64_t *ret_pages, struct error *err);
/* The same without memory and devices: processes end, the file systems are complete (sandbox-api 9, memory: false). */
int vm_pause_disk(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, struct error *err);
/* Was memory saved in this directory of vm_pause() or vm_pause_disk()? */
int vm_paused_with_memory(const char *paused, bool *ret, struct error *err);
/* Makes of f->paused what vm_pause_disk() leaves: the guest's kernel runs once more, without its processes, to write what it held back. 0 also
 * when that was not possible (memory that is damaged or does not answer: then the disk is as after a power cut, with a warning in the log).
 * `wake`, `egress`, `network` and `before_run` of `f` are not used. */
int vm_drop_memory(const struct vm_fork *f, struct error *err);
/* The same for a fork that goes on at once: `into` also gets a copy of its overlay, "overlay.qcow2". Durable as far as vm_pause()'s. */
int vm_save(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, uint64_t *ret_pages, struct error *err);
/* Makes of a directory of vm_save() and the template `parent_dir` that its VM was forked from a template of its own in the existing
 * directory `build_dir`: rootfs.img, memory, device-state, and manifest.json last. `saved` is used up. */
int vm_saved_to_template(const char *parent_dir, const char *saved, const char *build_dir, struct error *err);
/* Lets a VM go on that vm_pause() has stopped, or that a caller which died had: continued and woken. */
int vm_continue(struct vm *vm, const json_t *wake, struct error *err);
/* Does it run? ERROR_NOT_FOUND when it has ended. */
int vm_is_running(struct vm *vm, bool *ret, struct error *err);

/* Finds a VM again by its directory; ERROR_NOT_FOUND when its shim is gone. */
int vm_adopt(const char *dir, struct vm **ret, struct error *err);

/* A connected TCP socket to a guest port (dialled by the shim inside the namespace). -ECONNREFUSED when nothing
 * listens. Thread-safe. */
int vm_connect(struct vm *vm, int port, int *ret_fd, struct error *err);

/* A connection to the agent's virtio-serial channel (docs/agent-protocol.md). One at a time. */
int vm_agent_channel(struct vm *vm, int *ret_fd, struct error *err);

/* Runs a QMP command through the shim; `fd` (or -1) is attached for getfd/add-fd. `ret` may be NULL. */
int vm_qmp(struct vm *vm, const char *command, const json_t *arguments, int fd, json_t **ret, struct error *err);

/* Replaces what the guest may reach (struct vm_fork.egress; NULL = no rules). */
int vm_set_egress(struct vm *vm, const json_t *egress, struct error *err);

int vm_set_expiry(struct vm *vm, int64_t expires_at_ns, struct error *err);

/* The last bytes of the guest console (at most 64 KiB); the caller frees. */
char *vm_console(struct vm *vm);

/* A descriptor that becomes readable (EOF) when the shim and its VM are gone: poll it to learn of the end.
 * Owned by the handle. */
int vm_exit_fd(const struct vm *vm);
pid_t vm_pid(const struct vm *vm); /* of QEMU */
const char *vm_dir(const struct vm *vm);

/* Why the VM has ended: 1 with one line in *ret (the caller frees), *ret_full when the host had no room for its disk or memory;
 * 0 when it has not ended within the time. */
int vm_end_reason(struct vm *vm, int timeout_ms, char **ret, bool *ret_full);

/* Kills QEMU and the shim and waits until both are gone and their namespace is released. Idempotent. */
int vm_kill(struct vm *vm, struct error *err);
/* Forgets the handle; the VM lives on. NULL is fine. */
void vm_close(struct vm *vm);

/* The whole finalize capture (design 6): agent prepares (freeze, sync), QMP stop, device state written to
 * <build_dir>/device-state, VM killed. `memory` is the file given as memory_file. Disk flattening is disk.h's. */
int vm_capture(struct vm *vm, const char *build_dir, struct error *err);

/* Freezes the running build VM's disk as it is: agent fsfreeze, blockdev-snapshot onto the prepared overlay
 * `next` (qcow2 made by disk_overlay_create), agent fsthaw. What was the top of the chain is from then on an
 * immutable layer. */
int vm_disk_layer(struct vm *vm, const char *next, struct error *err);
