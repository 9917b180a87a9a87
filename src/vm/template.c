/* An open template: its memory and device state in sealed memfds that every fork maps copy-on-write.
 *
 * QEMU 7.2 opens mem-path for writing even for a private mapping, and a VMM that can write the file could change every later
 * sandbox. The seals make that impossible: opening succeeds, every write, truncation and shared writable mapping fails.
 * Loading copies data extents only and checks the SHA-256 on the way, so that a fork never runs on damaged memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/template_internal.h"
#include "vm/tsc.h"
#include "vm/vm.h"

static int load_sealed(const char *build_dir, const char *name, int *ret_fd, struct error *err)
{
        CLEANUP_FREE char *path = path_join(build_dir, name);
        CLEANUP_CLOSE int from = open(path, O_RDONLY | O_CLOEXEC);
        CLEANUP_CLOSE int to = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        int r;

        if (from < 0)
                return error_errno(err, errno, "open %s", path);
        if (to < 0)
                return error_errno(err, errno, "load %s: memfd_create", path);
        r = fd_copy_sparse(from, to, err);
        if (r < 0)
                return error_wrap(err, r, "load %s", path);
        if (fcntl(to, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return error_errno(err, errno, "load %s: seal", path);
        *ret_fd = STEAL_FD(to);
        return 0;
}

static int load(struct vm_template *t, struct error *err)
{
        int r = load_sealed(t->build_dir, "memory", &t->memory_fd, err);

        if (r == 0)
                r = load_sealed(t->build_dir, "device-state", &t->device_state_fd, err);
        /* What was loaded, and not the file, is what forks run on. */
        if (r == 0)
                r = vm_manifest_verify_fd(&t->manifest, "memory", t->memory_fd, err);
        if (r == 0)
                r = vm_manifest_verify_fd(&t->manifest, "device-state", t->device_state_fd, err);
        return r;
}

static int open_checked(struct vm_template *t, const char *kit_root, const char *backend, struct error *err)
{
        struct utsname u;
        int r = vm_manifest_read(t->build_dir, &t->manifest, err);

        if (r < 0)
                return r;
        t->manifest_json = vm_manifest_json(&t->manifest);
        uname(&u);
        r = vm_manifest_compatible(&t->manifest, u.machine, backend, tsc_khz(), err);
        if (r == 0)
                r = vm_manifest_verify(t->build_dir, &t->manifest, false, err);
        if (r == 0)
                r = kit_open(kit_root, t->manifest.architecture, t->manifest.kit_version, &t->kit, err);
        if (r == 0 && !streq(t->kit->qemu_version, t->manifest.qemu_version))
                r = error_set(err, ERROR_UNAVAILABLE, "the snapshot was taken by QEMU %s, the kit has %s", t->manifest.qemu_version,
                              t->kit->qemu_version);
        return r < 0 ? r : load(t, err);
}

int vm_template_open(const char *build_dir, const char *kit_root, const char *backend, struct vm_template **ret,
                     struct error *err)
{
        struct vm_template *t = xcalloc(1, sizeof *t);
        int r;

        t->build_dir = xstrdup(build_dir);
        t->memory_fd = t->device_state_fd = -1;
        r = open_checked(t, kit_root, backend, err);
        if (r < 0) {
                vm_template_close(t);
                return error_wrap(err, r, "open snapshot %s", build_dir);
        }
        *ret = t;
        return 0;
}

void vm_template_close(struct vm_template *t)
{
        if (!t)
                return;
        if (t->memory_fd >= 0)
                close(t->memory_fd);
        if (t->device_state_fd >= 0)
                close(t->device_state_fd);
        kit_free(t->kit);
        json_decref(t->manifest_json);
        vm_manifest_free(&t->manifest);
        free(t->build_dir);
        free(t);
}

const json_t *vm_template_manifest(const struct vm_template *t)
{
        return t->manifest_json;
}
