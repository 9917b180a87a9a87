/* The guest kit: kernel, initramfs with the agent, modules disk, and QEMU with its libraries and firmware,
 * as one closed, versioned directory kit/<arch>/<version>/ (design 5):
 *   kit.json      {"format":1,"version","arch","kernel","qemu","agent_sha256","backend_probe":…}
 *   vmlinuz  initramfs  modules.img
 *   qemu/         bin/qemu-system-<arch>, bin/virtiofsd, lib/…, share/… : run through `kit_qemu_argv`
 * `current` beside the versions is a symlink to the newest. A version stays while anything needs it.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

struct kit {
        char *dir;      /* absolute */
        char *version;  /* hex of a hash over all inputs */
        char *arch;     /* x86_64, aarch64 */
        char *kernel_release; /* "6.1.0-57-cloud-amd64" */
        char *qemu_version;
        char *agent_sha256;
        char *vmlinuz, *initramfs, *modules; /* paths */
        char *qemu;       /* path of the system emulator to execute */
        char *qemu_lib;   /* directory for LD_LIBRARY_PATH, or NULL when the host's QEMU is used */
        char *qemu_data;  /* directory for -L (firmware) */
        char *virtiofsd;  /* path */
        int lock_fd;      /* shared lock on kit.json: while it is held the version is not collected */
};

/* Opens a version, or the current one (version NULL). ERROR_UNAVAILABLE with the mend ("run vmon kit") when
 * there is none or a part is missing. The version stays on disk until kit_free(). */
int kit_open(const char *kit_root, const char *arch, const char *version, struct kit **ret, struct error *err);
void kit_free(struct kit *k);
static inline void cleanup_kit(struct kit **k)
{
        kit_free(*k);
}

/* Builds the kit for `arch` (NULL = this machine) from Debian's packages and the agent binary; a no-op when the
 * current one has the same inputs. Prints progress lines to `log` (may be NULL). */
int kit_build(const char *kit_root, const char *arch, const char *agent_path, void (*log)(const char *line),
              struct error *err);

/* Removes the versions of `arch` (NULL = this machine's) that are not current, not open in any process (kit_open()), and not
 * needed by a build (manifest.json) or a sandbox of a data directory that uses this kit root; also what crashes left. While
 * nobody is known to use the root, or somebody's directory cannot be read, everything stays. With `wait` false it does
 * nothing while a kit is being built. What is done is told to `log` (may be NULL). */
int kit_collect(const char *kit_root, const char *arch, bool wait, void (*log)(const char *line), struct error *err);

/* Notes in <kit_root>/users that the builds and sandboxes of `data_dir` use these kits. */
int kit_add_user(const char *kit_root, const char *data_dir, struct error *err);

/* "kvm" or "tcg". `wanted`: "auto", "kvm", "tcg". auto takes KVM only when the CPU has it and a probe boot of the
 * kit kernel answers; the verdict is cached per host boot in `cache_dir` (design 1). `ret_reason` (caller frees,
 * may be NULL) says why. */
int hypervisor_select(const struct kit *kit, const char *wanted, const char *cache_dir, const char **ret,
                      char **ret_reason, struct error *err);
