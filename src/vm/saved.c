/* vm_saved_to_template(): the parent's files with what the fork changed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "vm/delta.h"
#include "vm/disk.h"
#include "vm/manifest.h"
#include "vm/vm_internal.h"

static int make_memory(const char *parent_dir, const char *saved, const char *build_dir, unsigned memory_mib, struct error *err)
{
        CLEANUP_FREE char *base = path_join(parent_dir, "memory"), *delta = path_join(saved, "memory-delta");
        CLEANUP_FREE char *path = path_join(build_dir, "memory");
        CLEANUP_PAUSED struct vm_paused p = {};
        int r = vm_paused_read(saved, memory_mib, &p, err);
        CLEANUP_CLOSE int from = r < 0 || p.empty_base ? -1 : open(base, O_RDONLY | O_CLOEXEC), changes = open(delta, O_RDONLY | O_CLOEXEC);
        CLEANUP_CLOSE int to = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

        if (r < 0)
                return r;
        if (p.empty_base && changes >= 0 && to >= 0)
                return ftruncate(to, (off_t)memory_mib << 20) < 0 ? error_errno(err, errno, "size %s", path) :
                                                                    memory_delta_apply(changes, (uint64_t)memory_mib << 20, to, err);
        if (from < 0 || changes < 0 || to < 0)
                return error_errno(err, errno, "make %s of %s and %s", path, base, delta);
        r = fd_copy_sparse(from, to, err);
        return r < 0 ? r : memory_delta_apply(changes, (uint64_t)memory_mib << 20, to, err);
}

static int make_rootfs(const char *parent_dir, const char *saved, const char *build_dir, struct error *err)
{
        CLEANUP_FREE char *base = path_join(parent_dir, "rootfs.img"), *overlay = path_join(saved, "overlay.qcow2");
        CLEANUP_FREE char *path = path_join(build_dir, "rootfs.img");
        const char *chain[] = {base, overlay, NULL};

        return disk_flatten(chain, path, err);
}

static int take_devices(const char *saved, const char *build_dir, struct error *err)
{
        CLEANUP_FREE char *from = path_join(saved, "device-state"), *to = path_join(build_dir, "device-state");

        return rename(from, to) < 0 ? error_errno(err, errno, "move %s", from) : 0;
}

int vm_saved_to_template(const char *parent_dir, const char *saved, const char *build_dir, struct error *err)
{
        struct vm_manifest m = {};
        int r = vm_manifest_read(parent_dir, &m, err);

        if (r < 0)
                return r;
        r = make_memory(parent_dir, saved, build_dir, m.memory_mib, err);
        if (r == 0)
                r = make_rootfs(parent_dir, saved, build_dir, err);
        if (r == 0)
                r = take_devices(saved, build_dir, err);
        if (r == 0)
                r = vm_manifest_write(build_dir, &m, err);
        vm_manifest_free(&m);
        return r < 0 ? error_wrap(err, r, "make a snapshot of %s", saved) : 0;
}
