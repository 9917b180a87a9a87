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
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "vm/agent_internal.h"
#include "vm/agent.h"
#include "vm/disk.h"
#include "vm/template_internal.h"
#include "vm/vm_internal.h"

#define ENTROPY_BYTES 64
#define RESTORE_TIMEOUT_S 60
#define REHEARSALS 2
#define TOKEN_LEN 32

static int add_fd_copy(struct launch *l, int fd, int number, struct error *err)
{
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

        if (copy < 0)
                return error_errno(err, errno, "duplicate a descriptor");
        launch_add(l, copy, number);
        return 0;
}

int vm_fork_collect(const struct vm_fork *f, int memory_fd, struct launch *l, struct error *err)
{
        const struct vm_template *t = f->template_;
        CLEANUP_FREE char *rootfs = path_join(t->build_dir, "rootfs.img"), *overlay = path_join(f->dir, "overlay.qcow2");
        int r;

        r = f->paused ? 0 : disk_overlay_create(overlay, vm_manifest_part(&t->manifest, "rootfs.img")->size, err);
        if (r == 0)
                r = launch_add_disk(l, rootfs, false, err);
        if (r == 0)
                r = launch_add_disk(l, overlay, true, err);
        if (r == 0)
                r = launch_add_modules(l, t->kit, err);
        if (r == 0)
                r = add_fd_copy(l, memory_fd, QEMU_FD_MEMORY, err);
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

struct qemu_options vm_fork_options(const struct vm_fork *f, const struct launch *l)
{
        const struct vm_template *t = f->template_;
        const struct vm_manifest *m = &t->manifest;

        return (struct qemu_options){.id = f->id, .qemu = t->kit->qemu, .qemu_data = t->kit->qemu_data, .arch = m->architecture,
                                     .backend = m->backend, .cpu_model = m->cpu_model, .vcpus = m->vcpus,
                                     .memory_mib = m->memory_mib, .memory = QEMU_MEMORY_PRIVATE, .network = f->network,
                                     .disk_qcow2 = l->qcow2, .disks = l->disks, .top_writable = true};
}

static int start(const struct vm_fork *f, bool empty_base, struct vm **ret, struct error *err)
{
        const struct vm_template *t = f->template_;
        CLEANUP_FREE char *overlay = path_join(f->dir, "overlay.qcow2");
        CLEANUP_CLOSE int empty = empty_base ? vm_empty_memory(t->manifest.memory_mib, err) : -1;
        CLEANUP_LAUNCH struct launch l = {};
        CLEANUP_JSON json_t *extra = f->egress ? json_pack("{s:O}", "egress", f->egress) : NULL;
        struct qemu_options o;
        int r = empty_base && empty < 0 ? empty : vm_fork_collect(f, empty_base ? empty : t->memory_fd, &l, err);

        o = vm_fork_options(f, &l);
        o.incoming = true;
        if (r >= 0)
                r = note_kit(f, err);
        if (r >= 0 && empty_base)
                r = vm_note_empty_base(f->dir, err);
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

/* Both requests are in the agent's socket before the guest runs; what was frozen stays so. */
static int write_back(struct vm *vm, const struct vm_fork *f, struct error *err)
{
        CLEANUP_JSON json_t *state = NULL;
        struct agent *a;
        json_int_t id;
        int r = agent_open(vm, &a, err);

        if (r < 0)
                return r;
        r = agent_send(a, "state", NULL, &id, err);
        if (r == 0)
                r = load_state(vm, f, err);
        /* Agents of before that operation refuse it, which changes nothing. */
        if (r == 0)
                agent_wait(a, id, VM_WAKE_TIMEOUT_MS, NULL, NULL, &state, NULL);
        if (r == 0)
                r = agent_request(a, "fs-freeze", NULL, VM_WAKE_TIMEOUT_MS / 1000, NULL, NULL, NULL, err);
        if (r == 0)
                r = vm_qmp(vm, "stop", NULL, -1, NULL, err);
        if (r == 0)
                r = vm_paused_write_disk(f->paused, f->template_->manifest.memory_mib, state, err);
        agent_close(a);
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

/* What a user's first command will do, done once or twice before: the first run of anything is slow in a clone (deferred kernel work,
 * pages to be copied, code that the emulation has not translated). Nothing of the user's runs: no start-up file is read. */
static int rehearse(struct vm *vm, const char *token, struct error *err)
{
        static const char *const argv[] = {"/bin/bash", "-c", "v=$(id -u)", NULL}, *const env[] = {"BASH_ENV=", NULL};
        struct agent_process p = {.argv = argv, .env = env, .access_token = token, .timeout_s = VM_WAKE_TIMEOUT_MS / 1000};
        struct agent_exit end;
        int r = 0;

        for (int i = 0; i < REHEARSALS && r == 0; i++)
                r = agent_run(vm, &p, &end, err);
        return r;
}

/* Agents of older templates do not know how: their first answers are awaited. */
static int warm_up(struct vm *vm, struct agent *a, json_int_t id, const char *token, bool reachable, struct error *err)
{
        struct error refused = {};
        int r = agent_wait(a, id, VM_WAKE_TIMEOUT_MS, NULL, NULL, NULL, &refused);

        if (r == 0)
                r = reachable ? rehearse(vm, token, err) : 0;
        else if (refused.kind != ERROR_INVALID)
                r = error_set(err, refused.kind, "%s", refused.message);
        else
                r = agent_request(a, "ping", NULL, VM_WAKE_TIMEOUT_MS / 1000, NULL, NULL, NULL, err);
        /* After the last answer there is still work to settle; the next one shows that it has. */
        return r < 0 ? r : agent_request(a, "ping", NULL, VM_WAKE_TIMEOUT_MS / 1000, NULL, NULL, NULL, err);
}

static int warm(struct vm *vm, const struct vm_fork *f, struct error *err)
{
        CLEANUP_JSON json_t *arguments = vm_wake_arguments(NULL);
        char token[TOKEN_LEN + 1];
        struct agent *a;
        json_int_t id;
        int r = agent_open(vm, &a, err);

        if (r < 0)
                return r;
        random_id(token, TOKEN_LEN);
        json_object_set_new(arguments, "access_token", json_string(token));
        r = agent_send(a, "warm", arguments, &id, err);
        if (r == 0)
                r = load_state(vm, f, err);
        if (r == 0)
                r = warm_up(vm, a, id, token, f->network == VM_NETWORK_NAT, err);
        if (r == 0)
                r = vm_qmp(vm, "stop", NULL, -1, NULL, err);
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

static int make(const struct vm_fork *f, int (*finish)(struct vm *vm, const struct vm_fork *f, struct error *err), struct vm **ret, struct error *err)
{
        CLEANUP_PAUSED struct vm_paused p = {};
        struct vm *vm = NULL;
        int r = f->paused ? vm_paused_read(f->paused, f->template_->manifest.memory_mib, &p, err) : 0;

        if (r == 0 && f->paused && !p.memory)
                return vm_boot_paused(f, &p, ret, err);
        if (r == 0)
                r = start(f, p.empty_base, &vm, err);
        if (r < 0)
                return error_wrap(err, r, "fork VM %s", f->id);
        r = finish(vm, f, err);
        if (r < 0) {
                vm_kill(vm, NULL);
                add_reason(f->dir, err);
                vm_close(vm);
                return error_wrap(err, r, "fork VM %s", f->id);
        }
        *ret = vm;
        return 0;
}

int vm_restore(const struct vm_fork *f, struct vm **ret, struct error *err)
{
        return make(f, wake, ret, err);
}

/* The memory is given up before the guest's kernel writes: from then on it does not fit the disk. */
static int give_up(void *data, struct error *err)
{
        const struct vm_fork *f = data;

        return vm_paused_write_disk(f->paused, f->template_->manifest.memory_mib, NULL, err);
}

int vm_drop_memory(const struct vm_fork *f, struct error *err)
{
        struct vm_fork once = {.id = f->id, .dir = f->dir, .template_ = f->template_, .network = VM_NETWORK_NONE, .paused = f->paused,
                               .before_run = give_up, .before_run_data = (void *)f};
        struct error failed = {};
        struct vm *vm = NULL;
        bool memory;
        int r;

        if (vm_paused_with_memory(f->paused, &memory, NULL) == 0 && !memory)
                return 0;
        r = make(&once, write_back, &vm, &failed);

        if (r == 0)
                r = vm_kill(vm, err);
        else if ((r = give_up((void *)f, err)) == 0)
                log_warn("VM %s: what its kernel had not written yet is lost (%s)", f->id, failed.message);
        vm_close(vm);
        if (r < 0)
                return error_wrap(err, r, "give up the memory of VM %s", f->id);
        vm_paused_remove_memory(f->paused);
        return 0;
}

int vm_restore_warm(const struct vm_fork *f, struct vm **ret, struct error *err)
{
        return make(f, warm, ret, err);
}

int vm_hand_over(struct vm *vm, const json_t *egress, const json_t *wake_request, struct error *err)
{
        int r = egress ? vm_set_egress(vm, egress, err) : 0;

        return r < 0 ? error_wrap(err, r, "hand over VM %s", vm->id) : vm_continue(vm, wake_request, err);
}
