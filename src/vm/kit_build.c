/* Building a guest kit.
 *
 * Theory of operation: the version is a hash over every input, so that an unchanged machine has nothing to do. A new
 * kit is written in a temporary directory beside its place, synced and renamed; then its QEMU is started once from
 * the final place; only then kit.json makes it a kit, and `current` is switched by renaming a symlink. A crash
 * before kit.json leaves a directory that the next run removes; versions in use are never touched. One builder at a
 * time (a lock on the architecture's directory).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/kit.h"
#include "vm/kit_internal.h"

#define AGENT_MAX (128UL << 20)

static void sha256_hex(const void *data, size_t len, char out[65])
{
        unsigned char digest[32];

        if (EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL) != 1)
                abort();
        hex_encode(digest, sizeof(digest), out);
}

void kit_sha256_text(const char *text, char out[65])
{
        sha256_hex(text, strlen(text), out);
}

int kit_sha256_file(const char *path, char out[65], struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        int r = file_read(path, AGENT_MAX, &text, err);

        if (r >= 0)
                sha256_hex(buf_str(&text), text.len, out);
        return r;
}

void kit_version(const struct kit_inputs *in, char *out)
{
        CLEANUP_BUF struct buf text = {};
        char hex[65];

        /* Every field ends with a byte that no field holds: no two input sets have the same text. */
        buf_addf(&text, "%d%c%s%c%s%c%s%c%s%c%s%c%s%c", KIT_FORMAT, 0, in->arch, 0, in->agent_sha256, 0,
                 in->kernel_package, 0, in->kernel_version, 0, in->qemu_version, 0, in->qemu_files, 0);
        sha256_hex(text.data, text.len, hex);
        memcpy(out, hex, KIT_VERSION_LEN);
        out[KIT_VERSION_LEN] = '\0';
}

struct job {
        const struct kit_arch *arch;
        const char *agent_path;
        void (*log)(const char *line);
        char agent_sha256[65], version[KIT_VERSION_LEN + 1];
        char *package, *kernel_version, *qemu_version;
        struct kit_files files;
        char *base;  /* <kit_root>/<arch>, absolute */
        char *final; /* <base>/<version> */
        char *temp;
};

static void job_free(struct job *j)
{
        if (j->temp)
                tree_remove(j->temp, NULL);
        free(j->package);
        free(j->kernel_version);
        free(j->qemu_version);
        kit_files_free(&j->files);
        free(j->base);
        free(j->final);
        free(j->temp);
}

static void say(const struct job *j, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct job *j, const char *format, ...)
{
        CLEANUP_BUF struct buf line = {};
        va_list ap;

        if (!j->log)
                return;
        va_start(ap, format);
        buf_vaddf(&line, format, ap);
        va_end(ap);
        j->log(buf_str(&line));
}

static int gather(struct job *j, struct error *err)
{
        CLEANUP_FREE char *described = NULL;
        int r = kit_sha256_file(j->agent_path, j->agent_sha256, err);

        if (r < 0)
                return error_wrap(err, r, "the guest agent (build it, or give --agent)");
        r = kit_kernel_find(j->arch, &j->package, &j->kernel_version, err);
        if (r >= 0)
                r = kit_qemu_find(j->arch, &j->files, err);
        if (r >= 0)
                r = kit_qemu_version(j->arch, &j->qemu_version, err);
        if (r < 0)
                return r;
        described = kit_files_describe(&j->files);
        kit_version(&(struct kit_inputs){.arch = j->arch->name,
                                         .agent_sha256 = j->agent_sha256,
                                         .kernel_package = j->package,
                                         .kernel_version = j->kernel_version,
                                         .qemu_version = j->qemu_version,
                                         .qemu_files = described},
                    j->version);
        j->final = path_join(j->base, j->version);
        return 0;
}

/* Makes <kit_root>/<arch> and locks it; the lock ends with the descriptor. */
static int prepare_base(struct job *j, const char *kit_root, int *ret_lock, struct error *err)
{
        CLEANUP_FREE char *path = path_join(kit_root, j->arch->name), *lock_path = NULL;
        CLEANUP_CLOSE int lock = -1;
        int r = dir_make(path, 0755, err);

        if (r < 0)
                return r;
        j->base = realpath(path, NULL);
        if (!j->base)
                return error_errno(err, errno, "resolve %s", path);
        lock_path = path_join(j->base, ".lock");
        lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (lock < 0 || flock(lock, LOCK_EX) < 0)
                return error_errno(err, errno, "lock %s", lock_path);
        *ret_lock = STEAL_FD(lock);
        return 0;
}

/* All files of the new kit to disk at once. */
static int sync_tree(const char *dir, struct error *err)
{
        CLEANUP_CLOSE int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0 || syncfs(fd) < 0)
                return error_errno(err, errno, "sync %s", dir);
        return 0;
}

static int write_parts(struct job *j, char **ret_release, struct error *err)
{
        int r;

        j->temp = xasprintf("%s.tmp", j->final);
        r = tree_remove(j->temp, err);
        if (r >= 0)
                r = dir_make(j->temp, 0755, err);
        if (r >= 0)
                r = kit_guest_build(j->arch, j->package, j->kernel_version, j->agent_path, j->temp, j->log, ret_release,
                                    err);
        if (r < 0)
                return r;
        say(j, "copying QEMU %s with %zu files", j->qemu_version, j->files.n);
        r = kit_qemu_copy(&j->files, j->temp, j->final, err);
        if (r >= 0)
                r = sync_tree(j->temp, err);
        if (r >= 0)
                r = tree_remove(j->final, err); /* of a crash, or damaged; what runs from it keeps its open files */
        return r < 0 ? r : file_publish(j->temp, j->final, err);
}

static int add_part(json_t *parts, const char *dir, const char *name, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, name);
        char hex[65];
        int r = kit_sha256_file(path, hex, err);

        if (r >= 0)
                json_object_set_new(parts, name, json_string(hex));
        return r;
}

/* What `vmon kit` compares before it says that a kit is up to date. The programs are those that were made to use the
 * kit's loader. */
static int hash_parts(const struct job *j, json_t **ret, struct error *err)
{
        CLEANUP_JSON json_t *parts = json_object();
        int r = add_part(parts, j->final, "vmlinuz", err);

        if (r >= 0)
                r = add_part(parts, j->final, "initramfs", err);
        if (r >= 0)
                r = add_part(parts, j->final, "modules.img", err);
        for (size_t i = 0; r >= 0 && i < j->files.n; i++) {
                CLEANUP_FREE char *name = path_join("qemu", j->files.items[i].to);

                r = add_part(parts, j->final, name, err);
        }
        if (r >= 0)
                *ret = STEAL(parts);
        return r;
}

/* Is every part what it was when the kit was made? */
static bool intact(const struct job *j, const struct kit *k)
{
        CLEANUP_FREE char *path = path_join(k->dir, "kit.json");
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *d = NULL;
        const char *name;
        json_t *hash;
        char hex[65];

        if (file_read(path, KIT_JSON_MAX, &text, NULL) < 0 || json_parse(buf_str(&text), text.len, &d, NULL) < 0)
                return false;
        json_object_foreach(json_object_get(d, "parts"), name, hash) {
                CLEANUP_FREE char *part = path_join(k->dir, name);

                if (kit_sha256_file(part, hex, NULL) < 0 || !streq(hex, json_string_value(hash))) {
                        say(j, "%s of kit %s is damaged", name, j->version);
                        return false;
                }
        }
        return json_object_size(json_object_get(d, "parts")) > 0;
}

static int write_description(const struct job *j, const char *release, json_t *parts, struct error *err)
{
        CLEANUP_JSON json_t *d = json_pack("{s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:O}", "format", KIT_FORMAT, "version",
                                           j->version, "arch", j->arch->name, "kernel", release, "kernel_package",
                                           j->package, "kernel_package_version", j->kernel_version, "qemu",
                                           j->qemu_version, "agent_sha256", j->agent_sha256, "path", j->final, "parts", parts);
        CLEANUP_FREE char *text = json_text(d), *path = path_join(j->final, "kit.json");

        return file_write_atomic(path, text, strlen(text), 0644, err);
}

/* Makes <base>/current point to the version, at one instant. */
static int switch_current(const struct job *j, struct error *err)
{
        CLEANUP_FREE char *temp = path_join(j->base, ".current.tmp"), *link = path_join(j->base, "current");

        unlink(temp);
        if (symlink(j->version, temp) < 0 || rename(temp, link) < 0)
                return error_errno(err, errno, "switch %s", link);
        return dir_fsync(j->base, err);
}

static int build(struct job *j, struct error *err)
{
        CLEANUP_FREE char *release = NULL;
        CLEANUP_JSON json_t *parts = NULL;
        int r = write_parts(j, &release, err);

        if (r < 0)
                return r;
        say(j, "trying it");
        r = kit_qemu_try(j->arch, j->final, err);
        if (r >= 0)
                r = hash_parts(j, &parts, err);
        if (r >= 0)
                r = write_description(j, release, parts, err);
        if (r < 0)
                tree_remove(j->final, NULL);
        return r;
}

static int build_or_reuse(struct job *j, const char *kit_root, struct error *err)
{
        CLEANUP_CLOSE int lock = -1;
        CLEANUP(cleanup_kit) struct kit *have = NULL;
        int r = prepare_base(j, kit_root, &lock, err);

        if (r >= 0)
                r = gather(j, err);
        if (r < 0)
                return r;
        if (kit_open(kit_root, j->arch->name, j->version, &have, NULL) >= 0 && intact(j, have)) {
                say(j, "kit %s is up to date: %s", j->version, j->final);
                return switch_current(j, err);
        }
        say(j, "building kit %s from %s %s", j->version, j->package, j->kernel_version);
        r = build(j, err);
        if (r >= 0)
                r = switch_current(j, err);
        if (r >= 0)
                say(j, "kit %s is ready: %s", j->version, j->final);
        return r;
}

int kit_build(const char *kit_root, const char *arch, const char *agent_path, void (*log)(const char *line),
              struct error *err)
{
        CLEANUP(job_free) struct job j = {.agent_path = agent_path, .log = log};
        int r = kit_arch_find(arch, &j.arch, err);

        if (r >= 0)
                r = build_or_reuse(&j, kit_root, err);
        return r < 0 ? error_wrap(err, r, "prepare the guest kit") : 0;
}
