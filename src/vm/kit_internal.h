/* The parts of kit_build(), for kit_*.c and their tests only. */
#pragma once

#include <stddef.h>

#include "base/error.h"

/* Raised whenever the layout or content of a kit changes for the same inputs. */
#define KIT_FORMAT 1 /* of kit.json; part of the version hash */
#define KIT_VERSION_LEN 16
#define KIT_JSON_MAX 65536

/* One supported guest architecture. */
struct kit_arch {
        const char *name;         /* x86_64 */
        const char *debian;       /* amd64 */
        const char *qemu_package; /* qemu-system-x86 */
        const char *strip;        /* for cross kits */
        const char *machine;      /* of QEMU, for the trial start */
        unsigned short elf_machine;
        const char *const *firmware; /* names below QEMU's data directories, NULL-terminated */
};
/* NULL = this machine's. ERROR_INVALID naming the supported ones. */
int kit_arch_find(const char *name, const struct kit_arch **ret, struct error *err);

/* Everything that the content of a kit depends on. */
struct kit_inputs {
        const char *arch;
        const char *agent_sha256;
        const char *kernel_package, *kernel_version;
        const char *qemu_version; /* of the package, or "QEMU emulator version …" where there is none */
        const char *qemu_files;   /* one line a file: name, size */
};
/* KIT_VERSION_LEN hex digits and NUL into `out`. Any change of any input changes it. */
void kit_version(const struct kit_inputs *in, char *out);

/* The kernel package to use by Debian's metapackage. Both results are the caller's. */
int kit_kernel_find(const struct kit_arch *arch, char **ret_package, char **ret_version, struct error *err);
/* Pure parts of it: the concrete package in the output of `apt-cache depends`, the candidate in `apt-cache policy`;
 * NULL when there is none. Caller frees. */
char *kit_parse_depends(const char *text);
char *kit_parse_candidate(const char *text);

/* Downloads and unpacks the kernel and writes vmlinuz, initramfs and modules.img below `to`; `ret_release` is the
 * caller's. */
int kit_guest_build(const struct kit_arch *arch, const char *package, const char *version, const char *agent_path,
                    const char *to, void (*log)(const char *line), char **ret_release, struct error *err);

/* Host files that make up QEMU: what to copy where below <kit>/qemu. */
struct kit_file {
        char *from;
        char *to; /* relative: bin/…, lib/…, share/qemu/… */
};
struct kit_files {
        struct kit_file *items;
        size_t n;
        char *loader; /* relative path of the dynamic loader */
};
int kit_qemu_find(const struct kit_arch *arch, struct kit_files *ret, struct error *err);
void kit_files_free(struct kit_files *f);
/* The version for kit_inputs; the caller frees. */
int kit_qemu_version(const struct kit_arch *arch, char **ret, struct error *err);
/* One line a file: name below the kit and size. */
char *kit_files_describe(const struct kit_files *f);
/* Copies them to <to>/qemu and makes the programs use the loader at <final>/qemu/<loader>. */
int kit_qemu_copy(const struct kit_files *f, const char *to, const char *final, struct error *err);
/* Starts the copied QEMU and virtiofsd once; an error says what the closed copy lacks. */
int kit_qemu_try(const struct kit_arch *arch, const char *dir, struct error *err);

/* Adds the shared objects in the output of ldd: lib/<soname> each, and the loader. A "not found" line is
 * ERROR_UNAVAILABLE. */
int kit_parse_ldd(const char *text, struct kit_files *ret, struct error *err);
/* Points the PT_INTERP of the 64-bit ELF program at `path` to `interpreter` (absolute, shorter than PATH_MAX). */
int kit_set_interpreter(const char *path, const char *interpreter, struct error *err);

void kit_sha256_text(const char *text, char out[65]);
int kit_sha256_file(const char *path, char out[65], struct error *err);
