/* vm_restore(): a fork of a template, on the fast path; or one that was paused (pause.c).
 *
 * The wake request is in the agent's socket before the guest runs its first instruction, so that the agent (alone unfrozen) finds
 * it at once. QEMU reads the device state from a private copy of a sealed memfd: migration moves the file offset, which forks
 * must not share.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "vm/agent_internal.h"
#include "vm/disk.h"
#include "vm/template_internal.h"
#include "vm/vm_internal.h"

#define ENTROPY_BYTES 64
#define RESTORE_TIMEOUT_S 60

static int add_fd_copy(struct launch *l, int fd, int number, struct error *err)
{
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

        if (copy < 0)
                return error_errno(err, errno, "duplicate a descriptor");
        launch_add(l, copy, number);
        return 0;
}

static int collect(const struct vm_fork *f, const char *overlay, struct launch *l, struct error *err)
{
        const struct vm_template *t = f->template_;
        CLEANUP_FREE char *rootfs = path_join(t->build_dir, "rootfs.img");
        int r;

        r = f->paused ? 0 : disk_overlay_create(overlay, vm_manifest_part(&t->manifest, "rootfs.img")->size, err);
        if (r == 0)
                r = launch_add_disk(l, rootfs, false, err);
        if (r == 0)
                r = launch_add_disk(l, overlay, true, err);
        if (r == 0)
                r = launch_add_modules(l, t->kit, err);
        if (r == 0)
                r = add_fd_copy(l, t->memory_fd, QEMU_FD_MEMORY, err);
        return r;
}

/* What keeps the kit from being collected while the sandbox is there (kit_collect.c). */
static int note_kit(const struct vm_fork *f, struct error *err)
{
        const struct kit *k = f->template_->kit;
        CLEANUP_FREE char *link = path_join(f->dir, "kit"), *target = xasprintf("%s/%s", k->arch, k->version);

        if (symlink(target, link) < 0 && errno != EEXIST)
                return error_errno(err, errno, "note the kit in %s", link);
        return 0;
}

static int start(const struct vm_fork *f, struct vm **ret, struct error *err)
{
        const struct vm_template *t = f->template_;
        const struct vm_manifest *m = &t->manifest;
        CLEANUP_FREE char *overlay = path_join(f->dir, "overlay.qcow2");
        CLEANUP_LAUNCH struct launch l = {};
        struct qemu_options o = {.id = f->id, .qemu = t->kit->qemu, .qemu_data = t->kit->qemu_data, .arch = m->architecture,
                                 .backend = m->backend, .cpu_model = m->cpu_model, .vcpus = m->vcpus,
                                 .memory_mib = m->memory_mib, .memory = QEMU_MEMORY_PRIVATE, .network = f->network,
                                 .top_writable = true, .incoming = true};
        CLEANUP_JSON json_t *extra = f->egress ? json_pack("{s:O}", "egress", f->egress) : NULL;
        int r = collect(f, overlay, &l, err);

        o.disk_qcow2 = l.qcow2;
        o.disks = l.disks;
        if (r >= 0)
                r = note_kit(f, err);
        if (r >= 0)
                r = vm_launch(f->id, f->dir, t->kit, &o, &l, f->expires_at_ns, extra, ret, err);
        if (r < 0 && !f->paused)
                unlink(overlay);
        return r;
}

json_t *vm_wake_arguments(const json_t *request)
{
        json_t *wake = request ? json_copy((json_t *)request) : json_object();
        unsigned char entropy[ENTROPY_BYTES], text[ENTROPY_BYTES * 4 / 3 + 8];

        random_bytes(entropy, sizeof entropy);
        EVP_EncodeBlock(text, entropy, sizeof entropy);
        json_object_set_new(wake, "entropy", json_string((const char *)text));
        json_object_set_new(wake, "time_ns", json_integer(clock_realtime_ns()));
        explicit_bzero(entropy, sizeof entropy);
        explicit_bzero(text, sizeof text);
        return wake;
}

/* Opened anew: an offset of its own. */
static int open_state(const struct vm_fork *f, struct error *err)
{
        CLEANUP_FREE char *path = f->paused ? path_join(f->paused, "device-state") :
                                              xasprintf("/proc/self/fd/%d", f->template_->device_state_fd);
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        return fd < 0 ? error_errno(err, errno, "open the device state") : fd;
}

static int load_state(struct vm *vm, const struct vm_fork *f, struct error *err)
{
        static const char *const completed[] = {"completed", NULL};
        CLEANUP_JSON json_t *name = json_pack("{s:s}", "fdname", "state"), *uri = json_pack("{s:s}", "uri", "fd:state");
        CLEANUP_CLOSE int fd = open_state(f, err);
        int r;

        if (fd < 0)
                return fd;
        r = vm_migration_setup(vm, err);
        if (r == 0 && f->paused)
                r = vm_paused_memory(vm, f, err);
        if (r == 0)
                r = vm_qmp(vm, "getfd", name, fd, NULL, err);
        if (r == 0)
                r = vm_qmp_await(vm, "migrate-incoming", uri, -1, "MIGRATION", completed, RESTORE_TIMEOUT_S, NULL, err);
        /* It arrives stopped. (A state that does not load ends QEMU.) */
        if (r == 0 && f->before_run)
                r = f->before_run(f->before_run_data, err);
        if (r == 0)
                r = vm_qmp(vm, "cont", NULL, -1, NULL, err);
        return r;
}

static int wake(struct vm *vm, const struct vm_fork *f, struct error *err)
{
        CLEANUP_JSON json_t *arguments = vm_wake_arguments(f->wake);
        struct agent *a;
        json_int_t id;
        int r = agent_open(vm, &a, err);

        if (r < 0)
                return r;
        r = agent_send(a, "wake", arguments, &id, err);
        if (r == 0)
                r = load_state(vm, f, err);
        if (r == 0)
                r = agent_wait(a, id, VM_WAKE_TIMEOUT_MS, NULL, NULL, NULL, err);
        agent_close(a);
        return r == -ETIMEDOUT ? -EAGAIN : r;
}

/* QEMU's last words say more than "has ended". */
static void add_reason(const char *dir, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "exit.json");
        CLEANUP_BUF struct buf b = {};
        CLEANUP_JSON json_t *j = NULL;
        const char *text;
        size_t len;

        if (!err || file_read(path, 65536, &b, NULL) < 0 || json_parse(buf_str(&b), b.len, &j, NULL) < 0)
                return;
        text = json_str(j, "qemu_errors");
        if (!text || !*text)
                return;
        len = strlen(err->message);
        snprintf(err->message + len, sizeof err->message - len, ": %.1000s", text);
}

int vm_restore(const struct vm_fork *f, struct vm **ret, struct error *err)
{
        struct vm *vm = NULL;
        int r = f->paused ? vm_paused_check(f, err) : 0;

        if (r == 0)
                r = start(f, &vm, err);
        if (r < 0)
                return error_wrap(err, r, "fork VM %s", f->id);
        r = wake(vm, f, err);
        if (r < 0) {
                vm_kill(vm, NULL);
                add_reason(f->dir, err);
                vm_close(vm);
                return error_wrap(err, r, "fork VM %s", f->id);
        }
        *ret = vm;
        return 0;
}
