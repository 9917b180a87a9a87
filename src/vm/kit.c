/* Opening a guest kit.
 *
 * Theory of operation: a kit is complete exactly when its kit.json is there (it is written last), and closed: every
 * program in it runs with the kit's own loader and libraries. The loader's absolute path is in the programs' ELF
 * headers (see kit_qemu.c), so a kit that was moved as a whole is refused here with the mend instead of failing
 * in exec.
 */
#include "vm/kit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/kit_internal.h"

void kit_free(struct kit *k)
{
        if (!k)
                return;
        free(k->dir);
        free(k->version);
        free(k->arch);
        free(k->kernel_release);
        free(k->qemu_version);
        free(k->agent_sha256);
        free(k->vmlinuz);
        free(k->initramfs);
        free(k->modules);
        free(k->qemu);
        free(k->qemu_lib);
        free(k->qemu_data);
        free(k->virtiofsd);
        if (k->lock_fd >= 0)
                close(k->lock_fd);
        free(k);
}

static int incomplete(const struct kit *k, const char *what, struct error *err)
{
        return error_set(err, ERROR_UNAVAILABLE, "the guest kit %s is not usable: %s; run vmon kit", k->dir, what);
}

/* The collector takes the same lock exclusively: whoever has it knows that the parts are there, or finds them missing. */
static int hold(struct kit *k)
{
        CLEANUP_FREE char *path = path_join(k->dir, "kit.json");
        int r;

        k->lock_fd = open(path, O_RDONLY | O_CLOEXEC);
        if (k->lock_fd < 0)
                return -errno;
        do
                r = flock(k->lock_fd, LOCK_SH);
        while (r < 0 && errno == EINTR);
        return r < 0 ? -errno : 0;
}

static int read_description(const char *dir, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "kit.json");
        CLEANUP_BUF struct buf text = {};
        int r = file_read(path, KIT_JSON_MAX, &text, err);

        return r < 0 ? r : json_parse(text.data ? text.data : "", text.len, ret, err);
}

static int fill_description(struct kit *k, const json_t *j, const char *arch, struct error *err)
{
        if (json_int(j, "format", 0) != KIT_FORMAT)
                return incomplete(k, "kit.json is of another format", err);
        if (!streq(json_str(j, "arch"), arch))
                return incomplete(k, "kit.json is of another architecture", err);
        if (!json_str(j, "version") || !json_str(j, "kernel") || !json_str(j, "qemu") || !json_str(j, "agent_sha256"))
                return incomplete(k, "kit.json lacks a member", err);
        if (!streq(json_str(j, "path"), k->dir))
                return incomplete(k, "it was moved from where it was built", err);
        k->version = xstrdup(json_str(j, "version"));
        k->arch = xstrdup(arch);
        k->kernel_release = xstrdup(json_str(j, "kernel"));
        k->qemu_version = xstrdup(json_str(j, "qemu"));
        k->agent_sha256 = xstrdup(json_str(j, "agent_sha256"));
        return 0;
}

static int fill_paths(struct kit *k, struct error *err)
{
        k->vmlinuz = path_join(k->dir, "vmlinuz");
        k->initramfs = path_join(k->dir, "initramfs");
        k->modules = path_join(k->dir, "modules.img");
        k->qemu = xasprintf("%s/qemu/bin/qemu-system-%s", k->dir, k->arch);
        k->qemu_lib = path_join(k->dir, "qemu/lib");
        k->qemu_data = path_join(k->dir, "qemu/share/qemu");
        k->virtiofsd = path_join(k->dir, "qemu/bin/virtiofsd");
        for (char *const *p = (char *const[]){k->vmlinuz, k->initramfs, k->modules, k->qemu, k->qemu_lib, k->qemu_data,
                                              k->virtiofsd, NULL};
             *p; p++) {
                CLEANUP_FREE char *what = xasprintf("%s is missing", *p + strlen(k->dir) + 1);

                if (!path_exists(*p))
                        return incomplete(k, what, err);
        }
        return 0;
}

static bool version_valid(const char *version)
{
        return streq(version, "current") || str_is_hex(version, KIT_VERSION_LEN);
}

static int open_version(const char *kit_root, const struct kit_arch *a, const char *version, struct kit **ret, struct error *err)
{
        CLEANUP(cleanup_kit) struct kit *k = xcalloc(1, sizeof(*k));
        CLEANUP_FREE char *path = xasprintf("%s/%s/%s", kit_root, a->name, version ? version : "current");
        CLEANUP_JSON json_t *description = NULL;
        int r;

        k->lock_fd = -1;
        k->dir = realpath(path, NULL);
        if (!k->dir)
                return error_set(err, ERROR_UNAVAILABLE, "no guest kit %s at %s/%s; run vmon kit",
                                 version ? version : "prepared", kit_root, a->name);
        r = hold(k);
        if (r >= 0)
                r = read_description(k->dir, &description, err);
        if (r < 0)
                return incomplete(k, "kit.json is missing or damaged", err);
        r = fill_description(k, description, a->name, err);
        if (r >= 0)
                r = fill_paths(k, err);
        if (r < 0)
                return r;
        *ret = STEAL(k);
        return 0;
}

int kit_open(const char *kit_root, const char *arch, const char *version, struct kit **ret, struct error *err)
{
        const struct kit_arch *a;
        int r = kit_arch_find(arch, &a, err);

        if (r < 0)
                return r;
        if (version && !version_valid(version))
                return error_set(err, ERROR_INVALID, "\"%s\" is no kit version", version);
        r = open_version(kit_root, a, version, ret, err);
        /* `current` may have moved on, and the version before it gone, between reading the link and holding the version. */
        if (r < 0 && !version)
                r = open_version(kit_root, a, version, ret, err);
        return r;
}

static const char *const firmware_x86_64[] = {"bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin", "pvh.bin", NULL};
static const char *const firmware_none[] = {NULL};

static const struct kit_arch architectures[] = {
        {"x86_64", "amd64", "qemu-system-x86", "x86_64-linux-gnu-strip", "microvm,acpi=on", 62, firmware_x86_64},
        {"aarch64", "arm64", "qemu-system-arm", "aarch64-linux-gnu-strip", "virt", 183, firmware_none},
};

int kit_arch_find(const char *name, const struct kit_arch **ret, struct error *err)
{
        struct utsname u;

        if (!name) {
                uname(&u);
                name = u.machine;
        }
        for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++)
                if (streq(architectures[i].name, name)) {
                        *ret = &architectures[i];
                        return 0;
                }
        return error_set(err, ERROR_INVALID, "architecture \"%s\" is not supported: x86_64 and aarch64 are", name);
}
