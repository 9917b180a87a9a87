/* builds/<buildID>/manifest.json, format 4: what a snapshot is made of and what it needs to be loaded. It is written last:
 * a directory without it is no snapshot.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "vm/kit.h"

#define MANIFEST_FORMAT 4
#define MANIFEST_MAX_BYTES (256u << 10)

struct manifest_part {
        char *name;      /* file in the build directory: "rootfs.img", "memory", "device-state" */
        uint64_t size;
        char digest[65]; /* vm/digest.h */
};

struct vm_manifest {
        int format;
        char *architecture, *backend, *cpu_model;
        char *qemu_version, *kit_version;
        uint64_t tsc_khz; /* 0 = none */
        unsigned vcpus, memory_mib;
        char **devices;   /* in slot order, NULL-terminated (qemu.h) */
        struct manifest_part *parts;
        size_t part_count;
};

/* Fills in what follows from how the captured VM was started (the values of struct vm_config) and from this host; no
 * parts yet. cpu_model NULL = the backend's default. Release with vm_manifest_free(). */
void vm_manifest_describe(struct vm_manifest *m, const struct kit *kit, const char *backend, const char *cpu_model,
                          unsigned vcpus, unsigned memory_mib);

/* Hashes rootfs.img, memory and device-state in `build_dir` into the manifest's parts and publishes manifest.json. The parts
 * must be complete and are fsynced here. Parts that the manifest had (it was read from elsewhere) are forgotten. */
int vm_manifest_write(const char *build_dir, struct vm_manifest *m, struct error *err);

/* ERROR_CONFLICT "recapture required" for another format; ERROR_INVALID for what is no manifest. */
int vm_manifest_parse(const char *text, size_t len, struct vm_manifest *ret, struct error *err);
int vm_manifest_read(const char *build_dir, struct vm_manifest *ret, struct error *err);
json_t *vm_manifest_json(const struct vm_manifest *m);

/* The parts are there with their sizes (always cheap); with `hashes` their content is read and compared too. */
int vm_manifest_verify(const char *build_dir, const struct vm_manifest *m, bool hashes, struct error *err);

/* Compares the content of `fd` with part `name`. */
int vm_manifest_verify_fd(const struct vm_manifest *m, const char *name, int fd, struct error *err);

/* Can this host load it? ERROR_UNAVAILABLE naming what differs. */
int vm_manifest_compatible(const struct vm_manifest *m, const char *architecture, const char *backend, uint64_t tsc,
                           struct error *err);

const struct manifest_part *vm_manifest_part(const struct vm_manifest *m, const char *name);
void vm_manifest_free(struct vm_manifest *m);
