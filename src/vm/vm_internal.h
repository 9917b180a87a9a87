/* What the files of src/vm share about a handle. */
#pragma once

#include "vm/qemu.h"
#include "vm/shim_client.h"
#include "vm/vm.h"

struct vm {
        char *id, *dir;
        int dirfd;
        int exit_fd;
        pid_t qemu_pid, shim_pid;
};

/* True when the shim, and with it all that it owned, is gone within the time. */
bool vm_wait_end(const struct vm *vm, int timeout_ms);

/* Descriptors on their way to QEMU; owned here until sent. */
struct launch {
        struct shim_fd fds[2 * QEMU_DISKS_MAX + 4];
        size_t count;
        bool qcow2[QEMU_DISKS_MAX];
        size_t disks;
};
void launch_free(struct launch *l);
#define CLEANUP_LAUNCH CLEANUP(launch_free)
/* Takes `fd`. */
void launch_add(struct launch *l, int fd, int number);
/* Opens a disk of the chain and counts it. */
int launch_add_disk(struct launch *l, const char *path, bool writable, struct error *err);
int launch_add_modules(struct launch *l, const struct kit *kit, struct error *err);

/* Starts a VM from finished options; `extra` members are merged into the shim's configuration (may be NULL). */
int vm_launch(const char *id, const char *dir, const struct kit *kit, const struct qemu_options *o, const struct launch *l,
              int64_t expires_at_ns, json_t *extra, struct vm **ret, struct error *err);

/* A QMP command that is answered when `event` has come, with one of `status` (NULL-terminated, may be NULL) as
 * data.status; *ret_event (may be NULL) is the event's data. */
int vm_qmp_await(struct vm *vm, const char *command, const json_t *arguments, int fd, const char *event,
                 const char *const *status, unsigned timeout_s, json_t **ret_event, struct error *err);

/* Device state only (memory is shared or mapped), progress by MIGRATION events: both directions. */
int vm_migration_setup(struct vm *vm, struct error *err);

/* What ended the VM, by what its shim left behind: fills `err` (ERROR_UNAVAILABLE) and returns its errno. */
int vm_death(const struct vm *vm, struct error *err);

#define VM_WAKE_TIMEOUT_MS 60000
/* The agent's wake request: `request` (may be NULL) with new entropy and the time. */
json_t *vm_wake_arguments(const json_t *request);

/* What stands in paused.json. `agent` is of vm_pause_disk(): what the agent knew, or NULL. */
struct vm_paused {
        json_t *json;
        const json_t *agent;
        bool memory;
        bool empty_base; /* the memory's changes are against none, and not against the template's */
};
/* pause.c: is what was saved in the directory whole, and of this size? Release with vm_paused_free(), also after a failure. */
int vm_paused_read(const char *paused, unsigned memory_mib, struct vm_paused *ret, struct error *err);
void vm_paused_free(struct vm_paused *p);
#define CLEANUP_PAUSED CLEANUP(vm_paused_free)
/* Of a directory without memory: what is left of it. */
void vm_paused_remove_memory(const char *paused);
/* Replaces paused.json by that of a directory without memory. */
int vm_paused_write_disk(const char *paused, unsigned memory_mib, const json_t *agent, struct error *err);

/* A VM that has booted, and what it is restored from later, has no template's memory under it: a file in its directory says so. */
bool vm_base_is_empty(const char *dir);
int vm_note_empty_base(const char *dir, struct error *err);
/* A sealed memfd of zeros, which takes no memory, to be mapped as a template's is. The caller closes. */
int vm_empty_memory(unsigned memory_mib, struct error *err);

/* restore.c: disks, kit, memory of a fork on their way to QEMU. */
int vm_fork_collect(const struct vm_fork *f, int memory_fd, struct launch *l, struct error *err);
struct qemu_options vm_fork_options(const struct vm_fork *f, const struct launch *l);
/* reboot.c: vm_restore() of what has no memory. */
int vm_boot_paused(const struct vm_fork *f, const struct vm_paused *p, struct vm **ret, struct error *err);
/* Puts the changed memory into a QEMU that waits for its device state. */
int vm_paused_memory(struct vm *vm, const struct vm_fork *f, struct error *err);
