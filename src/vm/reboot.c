/* Pausing without the memory, and booting from what that leaves (sandbox-api 9, 11: memory false).
 *
 * What is saved is the disk alone, with its file systems written back and frozen, and what the agent knew. Booting is the finalize VM's way up
 * (build/finalize.c): the kit's kernel, the root file system, its init. Memory is mapped privately from a file of zeros, as a fork's is from its
 * template's: so a VM that has booted is paused, saved and forked like any other, only that its changes are against nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/agent_internal.h"
#include "vm/template_internal.h"
#include "vm/tsc.h"
#include "vm/vm_internal.h"

#define EMPTY_BASE "memory-base-none"
#define BUILD_JSON_MAX (64u << 10)
#define FREEZE_TIMEOUT_S 30
#define WRITE_BACK_TIMEOUT_S 120
/* Emulated and on a busy host; it takes 3 to 10 s otherwise. */
#define BOOT_TIMEOUT_S 180

bool vm_base_is_empty(const char *dir)
{
        CLEANUP_FREE char *path = path_join(dir, EMPTY_BASE);

        return path_exists(path);
}

int vm_note_empty_base(const char *dir, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, EMPTY_BASE);

        return file_write_atomic(path, "", 0, 0600, err);
}

int vm_empty_memory(unsigned memory_mib, struct error *err)
{
        CLEANUP_CLOSE int fd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (fd < 0 || ftruncate(fd, (off_t)memory_mib << 20) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return error_errno(err, errno, "make an empty memory");
        return STEAL_FD(fd);
}

/* Everything of the guest that stays is on its disk when this returns, and nothing writes to that any more. */
static int settle(struct vm *vm, struct agent *a, json_t **ret_state, struct error *err)
{
        CLEANUP_FREE char *overlay = path_join(vm->dir, "overlay.qcow2");
        struct error unknown;
        int r = agent_request(a, "freeze", NULL, FREEZE_TIMEOUT_S, NULL, NULL, NULL, err);

        if (r < 0)
                return r;
        /* Agents of before that operation refuse it. */
        if (agent_request(a, "state", NULL, FREEZE_TIMEOUT_S, NULL, NULL, ret_state, &unknown) < 0)
                *ret_state = NULL;
        r = agent_request(a, "fs-freeze", NULL, WRITE_BACK_TIMEOUT_S, NULL, NULL, NULL, err);
        if (r == 0)
                r = vm_qmp(vm, "stop", NULL, -1, NULL, err);
        return r < 0 ? r : file_fsync(overlay, err);
}

static int save_disk(struct vm *vm, unsigned memory_mib, const char *into, struct error *err)
{
        CLEANUP_FREE char *part = xasprintf("%s.tmp", into);
        CLEANUP_JSON json_t *state = NULL;
        struct agent *a = NULL;
        int r = tree_remove(part, err);

        if (r == 0)
                r = dir_make(part, 0700, err);
        if (r == 0)
                r = agent_connect(vm, NULL, FREEZE_TIMEOUT_S, NULL, NULL, &a, err);
        if (r < 0)
                return r;
        r = settle(vm, a, &state, err);
        agent_close(a);
        if (r == 0)
                r = vm_paused_write_disk(part, memory_mib, state, err);
        if (r == 0)
                r = file_publish(part, into, err);
        if (r < 0)
                tree_remove(part, NULL);
        return r;
}

/* In reverse, as far as it had come. */
static void go_on(struct vm *vm, const json_t *wake)
{
        struct agent *a = NULL;

        vm_qmp(vm, "cont", NULL, -1, NULL, NULL);
        if (agent_connect(vm, NULL, FREEZE_TIMEOUT_S, NULL, NULL, &a, NULL) == 0) {
                agent_request(a, "fs-thaw", NULL, FREEZE_TIMEOUT_S, NULL, NULL, NULL, NULL);
                agent_close(a);
        }
        vm_continue(vm, wake, NULL);
}

int vm_pause_disk(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, struct error *err)
{
        int r = save_disk(vm, memory_mib, into, err);

        if (r == 0)
                return 0;
        go_on(vm, wake);
        return error_wrap(err, r, "pause VM %s without its memory", vm->id);
}

/* What boots the template's root file system: "/sbin/init" or "agent". */
static int read_init(const struct vm_template *t, char **ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(t->build_dir, "build.json");
        CLEANUP_BUF struct buf b = {};
        CLEANUP_JSON json_t *j = NULL;
        int r = file_read(path, BUILD_JSON_MAX, &b, err);

        if (r == 0)
                r = json_parse(buf_str(&b), b.len, &j, err);
        if (r == 0 && !json_str(j, "init"))
                r = error_set(err, ERROR_INTERNAL, "%s does not say what boots it", path);
        if (r == 0)
                *ret = xstrdup(json_str(j, "init"));
        return r;
}

static int start(const struct vm_fork *f, const char *init, struct vm **ret, struct error *err)
{
        const struct vm_template *t = f->template_;
        CLEANUP_CLOSE int memory = vm_empty_memory(t->manifest.memory_mib, err);
        CLEANUP_JSON json_t *extra = f->egress ? json_pack("{s:O}", "egress", f->egress) : NULL;
        CLEANUP_LAUNCH struct launch l = {};
        struct qemu_options o;
        int r = memory < 0 ? memory : vm_fork_collect(f, memory, &l, err);

        o = vm_fork_options(f, &l);
        o.kernel = t->kit->vmlinuz;
        o.initrd = t->kit->initramfs;
        o.mode = "root";
        o.init = init;
        o.tsc_khz = tsc_khz();
        if (r >= 0)
                r = vm_note_empty_base(f->dir, err);
        return r < 0 ? r : vm_launch(f->id, f->dir, t->kit, &o, &l, f->expires_at_ns, extra, ret, err);
}

static int introduce(struct agent *a, const struct vm_fork *f, const struct vm_paused *p, struct error *err)
{
        CLEANUP_JSON json_t *wake = vm_wake_arguments(f->wake);

        if (p->agent)
                json_object_update(wake, (json_t *)p->agent);
        return agent_request(a, "wake", wake, VM_WAKE_TIMEOUT_MS / 1000, NULL, NULL, NULL, err);
}

static int bring_up(struct vm *vm, const struct vm_fork *f, const struct vm_paused *p, const char *init, struct error *err)
{
        struct agent *a = NULL;
        int r = agent_connect(vm, streq(init, "agent") ? "init" : "service", BOOT_TIMEOUT_S, NULL, NULL, &a, err);

        if (r < 0)
                return r;
        if (f->before_run)
                r = f->before_run(f->before_run_data, err);
        if (r == 0)
                r = introduce(a, f, p, err);
        agent_close(a);
        return r;
}

int vm_boot_paused(const struct vm_fork *f, const struct vm_paused *p, struct vm **ret, struct error *err)
{
        CLEANUP_FREE char *init = NULL;
        struct vm *vm = NULL;
        int r = read_init(f->template_, &init, err);

        if (r == 0)
                r = start(f, init, &vm, err);
        if (r == 0)
                r = bring_up(vm, f, p, init, err);
        if (r == 0) {
                *ret = vm;
                return 0;
        }
        if (vm)
                vm_kill(vm, NULL);
        vm_close(vm);
        return error_wrap(err, r, "boot VM %s from its disk", f->id);
}
