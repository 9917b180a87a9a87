/* See manifest.h. Hashing reads data extents only and feeds zeros for the holes, so that the digest is that of the plain file. */
#include "vm/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/digest.h"
#include "vm/qemu.h"
#include "vm/tsc.h"

static const char *const part_names[] = {"rootfs.img", "memory", "device-state"};
#define PART_COUNT (sizeof part_names / sizeof *part_names)
#define DEVICES_MAX 32
/* A guest's clock follows a counter that runs this much off without noticing. */
#define TSC_TOLERANCE_PPM 500

void vm_manifest_describe(struct vm_manifest *m, const struct kit *kit, const char *backend, const char *cpu_model,
                          unsigned vcpus, unsigned memory_mib)
{
        const char *const *devices = qemu_devices(false);
        size_t n = 0;

        while (devices[n])
                n++;
        *m = (struct vm_manifest){.format = MANIFEST_FORMAT, .architecture = xstrdup(kit->arch), .backend = xstrdup(backend),
                                  .cpu_model = xstrdup(cpu_model ?: qemu_default_cpu(kit->arch, backend)),
                                  .qemu_version = xstrdup(kit->qemu_version), .kit_version = xstrdup(kit->version),
                                  .tsc_khz = tsc_khz(), .vcpus = vcpus, .memory_mib = memory_mib,
                                  .devices = xcalloc(n + 1, sizeof(char *))};
        for (size_t i = 0; i < n; i++)
                m->devices[i] = xstrdup(devices[i]);
}

static void free_parts(struct vm_manifest *m)
{
        for (size_t i = 0; i < m->part_count; i++)
                free(m->parts[i].name);
        free(m->parts);
        m->parts = NULL;
        m->part_count = 0;
}

void vm_manifest_free(struct vm_manifest *m)
{
        free(m->architecture);
        free(m->backend);
        free(m->cpu_model);
        free(m->qemu_version);
        free(m->kit_version);
        for (char **d = m->devices; d && *d; d++)
                free(*d);
        free(m->devices);
        free_parts(m);
        *m = (struct vm_manifest){};
}

const struct manifest_part *vm_manifest_part(const struct vm_manifest *m, const char *name)
{
        for (size_t i = 0; i < m->part_count; i++)
                if (streq(m->parts[i].name, name))
                        return &m->parts[i];
        return NULL;
}

static int measure_part(const char *build_dir, const char *name, struct manifest_part *ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(build_dir, name);
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        int r;

        if (fd < 0)
                return error_errno(err, errno, "open %s", path);
        if (fsync(fd) < 0)
                return error_errno(err, errno, "make %s durable", path);
        r = digest_file(fd, &ret->size, ret->digest);
        if (r < 0)
                return error_errno(err, r, "hash %s", path);
        ret->name = xstrdup(name);
        return 0;
}

json_t *vm_manifest_json(const struct vm_manifest *m)
{
        json_t *devices = json_array(), *parts = json_array();

        for (char **d = m->devices; d && *d; d++)
                json_array_append_new(devices, json_string(*d));
        for (size_t i = 0; i < m->part_count; i++)
                json_array_append_new(parts, json_pack("{s:s, s:I, s:s}", "name", m->parts[i].name, "size",
                                                       (json_int_t)m->parts[i].size, "digest", m->parts[i].digest));
        return json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:o, s:o}", "format", m->format, "architecture",
                         m->architecture, "backend", m->backend, "cpu_model", m->cpu_model, "qemu_version", m->qemu_version,
                         "kit_version", m->kit_version, "tsc_khz", (json_int_t)m->tsc_khz, "vcpus", (int)m->vcpus,
                         "memory_mib", (int)m->memory_mib, "devices", devices, "parts", parts);
}

int vm_manifest_write(const char *build_dir, struct vm_manifest *m, struct error *err)
{
        CLEANUP_FREE char *path = path_join(build_dir, "manifest.json"), *text = NULL;
        CLEANUP_JSON json_t *j = NULL;
        int r;

        free_parts(m);
        m->parts = xcalloc(PART_COUNT, sizeof *m->parts);
        for (size_t i = 0; i < PART_COUNT; i++) {
                r = measure_part(build_dir, part_names[i], &m->parts[i], err);
                if (r < 0)
                        return error_wrap(err, r, "write snapshot manifest");
                m->part_count++;
        }
        j = vm_manifest_json(m);
        text = json_dumps(j, JSON_INDENT(2));
        if (!text)
                return error_set(err, ERROR_INTERNAL, "write snapshot manifest: a value is not valid UTF-8");
        return file_write_atomic(path, text, strlen(text), 0644, err);
}

static int bad(struct error *err, const char *what)
{
        return error_set(err, ERROR_INVALID, "the snapshot's manifest.json is damaged (%s): rebuild the template", what);
}

static int parse_devices(const json_t *j, struct vm_manifest *m, struct error *err)
{
        size_t n = json_array_size(j), i;
        const json_t *one;

        if (!n || n > DEVICES_MAX)
                return bad(err, "devices");
        m->devices = xcalloc(n + 1, sizeof(char *));
        json_array_foreach(j, i, one) {
                if (!json_is_string(one))
                        return bad(err, "devices");
                m->devices[i] = xstrdup(json_string_value(one));
        }
        return 0;
}

static int parse_parts(const json_t *j, struct vm_manifest *m, struct error *err)
{
        const json_t *one;
        size_t i;

        if (json_array_size(j) != PART_COUNT)
                return bad(err, "parts");
        m->parts = xcalloc(PART_COUNT, sizeof *m->parts);
        json_array_foreach(j, i, one) {
                const char *name = json_str(one, "name"), *digest = json_str(one, "digest");
                json_int_t size = json_int(one, "size", -1);

                if (i >= PART_COUNT || !streq(name, part_names[i]) || size < 0 || !digest || !str_is_hex(digest, 64))
                        return bad(err, "parts");
                m->parts[i].name = xstrdup(name);
                m->parts[i].size = (uint64_t)size;
                strcpy(m->parts[i].digest, digest);
                m->part_count++;
        }
        return 0;
}

static int parse_values(const json_t *j, struct vm_manifest *m, struct error *err)
{
        const struct {
                const char *name;
                char **to;
        } strings[] = {{"architecture", &m->architecture}, {"backend", &m->backend}, {"cpu_model", &m->cpu_model},
                       {"qemu_version", &m->qemu_version}, {"kit_version", &m->kit_version}};
        json_int_t vcpus = json_int(j, "vcpus", 0), memory = json_int(j, "memory_mib", 0), tsc = json_int(j, "tsc_khz", -1);

        for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
                if (!json_str(j, strings[i].name))
                        return bad(err, strings[i].name);
                *strings[i].to = xstrdup(json_str(j, strings[i].name));
        }
        if (vcpus < 1 || vcpus > 64 || memory < 1 || memory > 1048576 || tsc < 0)
                return bad(err, "vcpus, memory_mib or tsc_khz");
        m->vcpus = (unsigned)vcpus;
        m->memory_mib = (unsigned)memory;
        m->tsc_khz = (uint64_t)tsc;
        /* The kit's version names a directory. */
        if (!*m->kit_version || strchr(m->kit_version, '/') || m->kit_version[0] == '.')
                return bad(err, "kit_version");
        return 0;
}

int vm_manifest_parse(const char *text, size_t len, struct vm_manifest *ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        struct vm_manifest m = {};
        int r = json_parse(text, len, &j, NULL);

        if (r < 0 || !json_is_object(j))
                return bad(err, "no JSON object");
        m.format = (int)json_int(j, "format", 0);
        if (m.format != MANIFEST_FORMAT)
                return error_set(err, ERROR_CONFLICT, "recapture required: the snapshot has format %d, this version reads %d",
                                 m.format, MANIFEST_FORMAT);
        if ((r = parse_values(j, &m, err)) < 0 || (r = parse_devices(json_object_get(j, "devices"), &m, err)) < 0 ||
            (r = parse_parts(json_object_get(j, "parts"), &m, err)) < 0) {
                vm_manifest_free(&m);
                return r;
        }
        *ret = m;
        return 0;
}

int vm_manifest_read(const char *build_dir, struct vm_manifest *ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(build_dir, "manifest.json");
        CLEANUP_BUF struct buf b = {};
        int r = file_read(path, MANIFEST_MAX_BYTES, &b, err);

        return r < 0 ? r : vm_manifest_parse(buf_str(&b), b.len, ret, err);
}

static int verify_hash(const struct manifest_part *part, int fd, struct error *err)
{
        uint64_t size = 0;
        char hex[65] = "";
        int r = digest_file(fd, &size, hex);

        if (r < 0)
                return error_errno(err, r, "hash %s", part->name);
        if (size != part->size || !streq(hex, part->digest))
                return error_set(err, ERROR_UNAVAILABLE, "%s is damaged (digest %s instead of %s): rebuild the template",
                                 part->name, hex, part->digest);
        return 0;
}

int vm_manifest_verify_fd(const struct vm_manifest *m, const char *name, int fd, struct error *err)
{
        const struct manifest_part *part = vm_manifest_part(m, name);

        return part ? verify_hash(part, fd, err) : bad(err, "parts");
}

static int verify_part(const char *build_dir, const struct manifest_part *part, bool hashes, struct error *err)
{
        CLEANUP_FREE char *path = path_join(build_dir, part->name);
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "open %s", path);
        if ((uint64_t)st.st_size != part->size)
                return error_set(err, ERROR_UNAVAILABLE, "%s has %lld bytes instead of %llu: rebuild the template", path,
                                 (long long)st.st_size, (unsigned long long)part->size);
        return hashes ? verify_hash(part, fd, err) : 0;
}

int vm_manifest_verify(const char *build_dir, const struct vm_manifest *m, bool hashes, struct error *err)
{
        for (size_t i = 0; i < m->part_count; i++) {
                int r = verify_part(build_dir, &m->parts[i], hashes, err);

                if (r < 0)
                        return r;
        }
        return 0;
}

int vm_manifest_compatible(const struct vm_manifest *m, const char *architecture, const char *backend, uint64_t tsc,
                           struct error *err)
{
        uint64_t difference = m->tsc_khz > tsc ? m->tsc_khz - tsc : tsc - m->tsc_khz;

        if (!streq(m->architecture, architecture))
                return error_set(err, ERROR_UNAVAILABLE, "the snapshot is for %s, this host is %s", m->architecture, architecture);
        if (!streq(m->backend, backend))
                return error_set(err, ERROR_UNAVAILABLE, "the snapshot was taken under %s, this node runs %s", m->backend, backend);
        if (m->tsc_khz && difference * 1000000 / m->tsc_khz > TSC_TOLERANCE_PPM)
                return error_set(err, ERROR_UNAVAILABLE, "the snapshot's clock runs at %llu kHz, this host's at %llu kHz",
                                 (unsigned long long)m->tsc_khz, (unsigned long long)tsc);
        return 0;
}
