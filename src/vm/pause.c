/* vm_pause() and what vm_restore() needs to go on from it (design 6).
 *
 * A fork's memory is a private mapping, so a migration would save all of it. Instead: the agent freezes the guest, QEMU stops and
 * writes its devices with xen-save-devices-state, and the changed pages are read out of its mapping. The overlay stays where it
 * is: stopping QEMU has written what it held back, and nothing writes to it any more.
 *
 *     <into>/device-state   <into>/memory-delta   <into>/paused.json   sizes and digests of the two
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/agent_internal.h"
#include "vm/delta.h"
#include "vm/digest.h"
#include "vm/template_internal.h"
#include "vm/vm_internal.h"

#define PAUSED_FORMAT 1
#define PAUSED_MAX_BYTES (1u << 20) /* of which the guest's environment is nearly all */
#define AGENT_TIMEOUT_S 30
/* fdset of the device state; the disks' are below. */
#define STATE_SET 999

static const char *const parts[] = {"device-state", "memory-delta"};

static int create(const char *path, struct error *err)
{
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

        return fd < 0 ? error_errno(err, errno, "create %s", path) : fd;
}

static int open_part(const char *dir, const char *name, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        return fd < 0 ? error_errno(err, errno, "open %s", path) : fd;
}

static int save_devices(struct vm *vm, const char *dir, struct error *err)
{
        CLEANUP_FREE char *file = xasprintf("/dev/fdset/%d", STATE_SET);
        CLEANUP_JSON json_t *set = json_pack("{s:i}", "fdset-id", STATE_SET);
        CLEANUP_JSON json_t *save = json_pack("{s:s, s:b}", "filename", file, "live", 0);
        CLEANUP_FREE char *path = path_join(dir, "device-state");
        CLEANUP_CLOSE int fd = create(path, err);
        int r;

        if (fd < 0)
                return fd;
        r = vm_qmp(vm, "add-fd", set, fd, NULL, err);
        if (r < 0)
                return r;
        r = vm_qmp(vm, "xen-save-devices-state", save, -1, NULL, err);
        vm_qmp(vm, "remove-fd", set, -1, NULL, NULL);
        return r < 0 ? r : file_fsync(path, err);
}

static int save_memory(struct vm *vm, unsigned memory_mib, const char *dir, uint64_t *ret_pages, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "memory-delta");
        CLEANUP_CLOSE int fd = create(path, err);
        int r;

        if (fd < 0)
                return fd;
        r = memory_delta_save(vm->qemu_pid, (uint64_t)memory_mib << 20, fd, ret_pages, err);
        return r < 0 ? r : file_fsync(path, err);
}

/* Takes `j`. */
static int write_paused(const char *dir, json_t *j, unsigned memory_mib, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "paused.json"), *text = NULL;

        json_object_set_new(j, "format", json_integer(PAUSED_FORMAT));
        json_object_set_new(j, "memory_mib", json_integer(memory_mib));
        text = json_dumps(j, JSON_INDENT(1) | JSON_SORT_KEYS);
        json_decref(j);
        return file_write_atomic(path, text, strlen(text), 0600, err);
}

int vm_paused_write_disk(const char *paused, unsigned memory_mib, const json_t *agent, struct error *err)
{
        return write_paused(paused, json_pack("{s:b, s:O?}", "memory", 0, "agent", agent), memory_mib, err);
}

void vm_paused_remove_memory(const char *paused)
{
        for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
                CLEANUP_FREE char *path = path_join(paused, parts[i]);

                unlink(path);
        }
}

static int describe(const char *dir, unsigned memory_mib, bool empty_base, struct error *err)
{
        CLEANUP_JSON json_t *j = empty_base ? json_pack("{s:s}", "base", "none") : json_object();

        for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
                CLEANUP_CLOSE int fd = open_part(dir, parts[i], err);
                char hex[DIGEST_HEX_LEN + 1];
                uint64_t size;
                int r;

                if (fd < 0)
                        return fd;
                r = digest_file(fd, &size, hex);
                if (r < 0)
                        return error_errno(err, r, "read %s/%s", dir, parts[i]);
                json_object_set_new(j, parts[i], json_pack("{s:I, s:s}", "size", (json_int_t)size, "digest", hex));
        }
        return write_paused(dir, json_incref(j), memory_mib, err);
}

/* Complete, though the guest's flushes may not have reached the disk: that is for the caller of its copy to see to. */
static int copy_overlay(const char *overlay, const char *dir, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "overlay.qcow2");
        CLEANUP_CLOSE int from = open(overlay, O_RDONLY | O_CLOEXEC), to = -1;
        int r;

        if (from < 0)
                return error_errno(err, errno, "open %s", overlay);
        to = create(path, err);
        if (to < 0)
                return to;
        r = fd_copy_sparse(from, to, err);
        return r < 0 ? r : file_fsync(path, err);
}

static int save(struct vm *vm, unsigned memory_mib, const char *dir, bool goes_on, uint64_t *ret_pages, struct error *err)
{
        CLEANUP_FREE char *overlay = path_join(vm->dir, "overlay.qcow2");
        int r = vm_qmp(vm, "stop", NULL, -1, NULL, err);

        if (r == 0)
                r = save_devices(vm, dir, err);
        if (r == 0)
                r = save_memory(vm, memory_mib, dir, ret_pages, err);
        if (r == 0)
                r = goes_on ? copy_overlay(overlay, dir, err) : file_fsync(overlay, err);
        return r < 0 ? r : describe(dir, memory_mib, vm_base_is_empty(vm->dir), err);
}

int vm_continue(struct vm *vm, const json_t *wake, struct error *err)
{
        CLEANUP_JSON json_t *arguments = vm_wake_arguments(wake);
        struct agent *a;
        json_int_t id;
        int r = agent_open(vm, &a, err);

        if (r < 0)
                return error_wrap(err, r, "continue VM %s", vm->id);
        /* Asked before it runs, so that the guest finds the time before anything else does. */
        r = agent_send(a, "wake", arguments, &id, err);
        if (r == 0)
                r = vm_qmp(vm, "cont", NULL, -1, NULL, err);
        if (r == 0)
                r = agent_wait(a, id, VM_WAKE_TIMEOUT_MS, NULL, NULL, NULL, err);
        agent_close(a);
        return r < 0 ? error_wrap(err, r, "continue VM %s", vm->id) : 0;
}

int vm_is_running(struct vm *vm, bool *ret, struct error *err)
{
        CLEANUP_JSON json_t *status = NULL;
        int r = vm_qmp(vm, "query-status", NULL, -1, &status, err);

        if (r == 0)
                *ret = json_bool(status, "running", false);
        return r;
}

static int freeze_and_save(struct vm *vm, unsigned memory_mib, const char *into, bool goes_on, uint64_t *ret_pages, struct error *err)
{
        CLEANUP_FREE char *part = xasprintf("%s.tmp", into);
        struct agent *a = NULL;
        int r = tree_remove(part, err);

        if (r == 0)
                r = dir_make(part, 0700, err);
        if (r == 0)
                r = agent_connect(vm, NULL, AGENT_TIMEOUT_S, NULL, NULL, &a, err);
        if (r < 0)
                return r;
        r = agent_request(a, "freeze", NULL, AGENT_TIMEOUT_S, NULL, NULL, NULL, err);
        /* The channel stays open meanwhile: the saved guest sees no disconnect in its first moment. */
        if (r == 0)
                r = save(vm, memory_mib, part, goes_on, ret_pages, err);
        if (r == 0)
                r = file_publish(part, into, err);
        agent_close(a);
        if (r < 0)
                tree_remove(part, NULL);
        return r;
}

int vm_pause(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, uint64_t *ret_pages, struct error *err)
{
        int r = freeze_and_save(vm, memory_mib, into, false, ret_pages, err);

        if (r == 0)
                return 0;
        vm_continue(vm, wake, NULL);
        return error_wrap(err, r, "pause VM %s", vm->id);
}

int vm_save(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, uint64_t *ret_pages, struct error *err)
{
        int r = freeze_and_save(vm, memory_mib, into, true, ret_pages, err);
        /* In any case it goes on; if it cannot, what was saved is worth nothing to the caller. */
        int continued = vm_continue(vm, wake, r == 0 ? err : NULL);

        if (r == 0 && continued < 0)
                tree_remove(into, NULL);
        r = r < 0 ? r : continued;
        return r < 0 ? error_wrap(err, r, "save VM %s", vm->id) : 0;
}

static int check_part(const char *dir, const char *name, const json_t *said, struct error *err)
{
        CLEANUP_CLOSE int fd = open_part(dir, name, err);
        char hex[DIGEST_HEX_LEN + 1] = "";
        uint64_t size = 0;
        int r;

        if (fd < 0)
                return fd;
        r = digest_file(fd, &size, hex);
        if (r < 0)
                return error_errno(err, r, "read %s/%s", dir, name);
        if (size != (uint64_t)json_int(said, "size", -1) || !streq(hex, json_str(said, "digest") ?: ""))
                return error_set(err, ERROR_INTERNAL, "%s/%s is damaged: the sandbox cannot go on from it; connect with memory false to boot it from its disk, or kill it", dir, name);
        return 0;
}

void vm_paused_free(struct vm_paused *p)
{
        json_decref(p->json);
        *p = (struct vm_paused){};
}

static int read_paused(const char *dir, struct vm_paused *ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "paused.json");
        CLEANUP_BUF struct buf b = {};
        int r = file_read(path, PAUSED_MAX_BYTES, &b, err);

        *ret = (struct vm_paused){};
        if (r < 0)
                return r;
        if (json_parse(buf_str(&b), b.len, &ret->json, NULL) < 0 || json_int(ret->json, "format", 0) != PAUSED_FORMAT)
                return error_set(err, ERROR_INTERNAL, "%s is damaged, or of another version", path);
        ret->memory = json_bool(ret->json, "memory", true);
        ret->empty_base = streq(json_str(ret->json, "base"), "none");
        ret->agent = json_object_get(ret->json, "agent");
        return 0;
}

int vm_paused_with_memory(const char *paused, bool *ret, struct error *err)
{
        CLEANUP_PAUSED struct vm_paused p = {};
        int r = read_paused(paused, &p, err);

        *ret = p.memory;
        return r;
}

int vm_paused_read(const char *paused, unsigned memory_mib, struct vm_paused *ret, struct error *err)
{
        int r = read_paused(paused, ret, err);

        if (r == 0 && json_int(ret->json, "memory_mib", 0) != (json_int_t)memory_mib)
                r = error_set(err, ERROR_INTERNAL, "%s is damaged, or of another template", paused);
        for (size_t i = 0; i < sizeof(parts) / sizeof(*parts) && r == 0 && ret->memory; i++)
                r = check_part(paused, parts[i], json_object_get(ret->json, parts[i]), err);
        return r;
}

int vm_paused_memory(struct vm *vm, const struct vm_fork *f, struct error *err)
{
        CLEANUP_CLOSE int fd = open_part(f->paused, "memory-delta", err);

        return fd < 0 ? fd : memory_delta_load(fd, (uint64_t)f->template_->manifest.memory_mib << 20, vm->qemu_pid, err);
}
