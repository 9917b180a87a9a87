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

/* pause.c: is what was saved in f->paused whole, and for this template? */
int vm_paused_check(const struct vm_fork *f, struct error *err);
/* Puts the changed memory into a QEMU that waits for its device state. */
int vm_paused_memory(struct vm *vm, const struct vm_fork *f, struct error *err);
