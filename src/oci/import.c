/* An OCI layout is a blob store itself: its index.json names manifests, and everything reachable from the one for our
 * platform is copied, verified, into the cache. An archive is unpacked beside the cache first. A `docker save` archive
 * (manifest.json) of Docker 25 and later is an OCI layout too; older ones get a manifest made for their plain layers.
 */
#include "oci/import.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "base/subprocess.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/manifest.h"
#include "oci/record.h"

#define REF_NAME "org.opencontainers.image.ref.name"
#define CONTAINERD_NAME "io.containerd.image.name"
#define INDEX_DEPTH_MAX 2
#define COPY_BLOCK (1U << 18)

struct import {
        const struct oci_options *options;
        const char *dir;          /* the layout */
        const char *architecture;
        struct error *err;
        struct image_record record;
        size_t blob_count, blob_room;
};

static void add_blob(struct import *m, const char *digest)
{
        if (m->blob_count + 2 > m->blob_room) {
                m->blob_room = m->blob_room * 2 + 16;
                m->record.blobs = xreallocarray(m->record.blobs, m->blob_room, sizeof(char *));
        }
        m->record.blobs[m->blob_count++] = xstrdup(digest);
        m->record.blobs[m->blob_count] = NULL;
}

/* Copies while hashing; `digest` is told. */
static int copy_hashed(int from, int to, char digest[DIGEST_TEXT_MAX])
{
        CLEANUP_FREE char *block = xmalloc(COPY_BLOCK);
        struct digest_state d = {};
        int r = 0;

        digest_start(&d);
        while (r == 0) {
                ssize_t n = read(from, block, COPY_BLOCK);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0) {
                        r = n < 0 ? -errno : 0;
                        break;
                }
                digest_add(&d, block, (size_t)n);
                r = fd_write_all(to, block, (size_t)n);
        }
        digest_final(&d, digest);
        digest_free(&d);
        return r;
}

/* Publishes the file as a blob. `digest` is what it must be, or "" to be told. */
static int take_file(struct import *m, const char *path, char digest[DIGEST_TEXT_MAX])
{
        CLEANUP_CLOSE int from = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), to = -1;
        CLEANUP_FREE char *tmp = NULL, *final = NULL;
        char id[13], actual[DIGEST_TEXT_MAX];
        struct stat st;
        int r;

        if (from < 0 || fstat(from, &st) < 0)
                return error_errno(m->err, errno, "open %s", path);
        if (!S_ISREG(st.st_mode))
                return error_set(m->err, ERROR_INVALID, "%s is no regular file", path);
        random_id(id, 12);
        tmp = xasprintf("%s/partial/import-%s", m->options->cache_dir, id);
        to = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (to < 0)
                return error_errno(m->err, errno, "create %s", tmp);
        r = copy_hashed(from, to, actual);
        if (r < 0)
                r = error_errno(m->err, r, "copy %s", path);
        else if (*digest && !streq(actual, digest))
                r = error_set(m->err, ERROR_INVALID, "%s: sha256 mismatch: expected %s, got %s", path, digest, actual);
        if (r == 0) {
                strcpy(digest, actual);
                final = blob_path(m->options->cache_dir, digest);
                r = file_publish(tmp, final, m->err);
        }
        if (r < 0)
                unlink(tmp);
        return r;
}

static int take_blob(struct import *m, const char *digest, uint64_t size)
{
        CLEANUP_FREE char *path = xasprintf("%s/blobs/sha256/%s", m->dir, digest_hex(digest));
        char expected[DIGEST_TEXT_MAX];

        add_blob(m, digest);
        if (blob_present(m->options->cache_dir, digest, size))
                return 0;
        snprintf(expected, sizeof(expected), "%s", digest);
        return take_file(m, path, expected);
}

static int take_image(struct import *m, const struct manifest *man, const char *digest)
{
        int r = take_blob(m, man->config.digest, man->config.size);

        for (size_t i = 0; r == 0 && i < man->count; i++) {
                r = take_blob(m, man->items[i].digest, man->items[i].size);
                m->record.size += man->items[i].size;
        }
        m->record.layer_count = man->count;
        m->record.digest = xstrdup(digest);
        m->record.config_digest = xstrdup(man->config.digest);
        return r;
}

static int take_manifest(struct import *m, const struct descriptor *d, unsigned depth)
{
        __attribute__((cleanup(manifest_free))) struct manifest man = {};
        CLEANUP_BUF struct buf body = {};
        size_t chosen = 0;
        int r = take_blob(m, d->digest, d->size);

        if (r == 0)
                r = blob_read(m->options->cache_dir, d->digest, MANIFEST_MAX, &body, m->err);
        if (r == 0)
                r = manifest_parse(buf_str(&body), body.len, d->media_type, &man, m->err);
        if (r < 0)
                return r;
        if (man.kind == MANIFEST_IMAGE)
                return take_image(m, &man, d->digest);
        if (depth >= INDEX_DEPTH_MAX)
                return error_set(m->err, ERROR_INVALID, "the index is nested too deeply");
        r = index_choose(&man, m->architecture, &chosen, m->err);
        return r < 0 ? r : take_manifest(m, &man.items[chosen], depth + 1);
}

/* The name that entry `i` of index.json carries, NULL when it has none that is a full reference. */
static const char *own_name(const json_t *index, size_t i)
{
        const json_t *notes = json_object_get(json_array_get(json_object_get(index, "manifests"), i), "annotations");
        const char *name = json_str(notes, CONTAINERD_NAME) ?: json_str(notes, REF_NAME);

        return name && strpbrk(name, "/:") ? name : NULL;
}

static int take_layout(struct import *m, char **name)
{
        __attribute__((cleanup(manifest_free))) struct manifest index = {};
        CLEANUP_FREE char *path = path_join(m->dir, "index.json");
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        size_t chosen = 0;
        int r = file_read(path, MANIFEST_MAX, &text, m->err);

        if (r == 0)
                r = manifest_parse(buf_str(&text), text.len, NULL, &index, m->err);
        if (r < 0)
                return r;
        if (index.kind != MANIFEST_INDEX)
                return error_set(m->err, ERROR_INVALID, "%s is no index", path);
        if (index.count != 1)
                r = index_choose(&index, m->architecture, &chosen, m->err);
        if (r == 0)
                r = take_manifest(m, &index.items[chosen], 0);
        if (r == 0 && !*name && json_parse(buf_str(&text), text.len, &j, NULL) == 0)
                *name = xstrdup_or_null(own_name(j, chosen));
        return r;
}

/* A path inside the archive must stay inside: no root, no "..", and no link on the way is followed by our O_NOFOLLOW
 * check on the last part; tar has refused links that lead out. */
static bool inside(const char *path)
{
        return path && *path && *path != '/' && !strstr(path, "..");
}

static json_t *descriptor_json(const char *type, const char *digest, uint64_t size)
{
        return json_pack("{s:s, s:s, s:I}", "mediaType", type, "digest", digest, "size", (json_int_t)size);
}

static int take_member(struct import *m, const char *name, const char *type, json_t **ret)
{
        CLEANUP_FREE char *path = NULL, *real = NULL, *root = NULL;
        char digest[DIGEST_TEXT_MAX] = "";
        struct stat st;
        int r;

        if (!inside(name))
                return error_set(m->err, ERROR_INVALID, "manifest.json names a file outside of the archive");
        path = path_join(m->dir, name);
        real = realpath(path, NULL);
        root = realpath(m->dir, NULL);
        if (!real || !root || !str_starts(real, root) || stat(real, &st) < 0)
                return error_set(m->err, ERROR_INVALID, "manifest.json names %s, which the archive lacks", name);
        r = take_file(m, real, digest);
        if (r < 0)
                return r;
        add_blob(m, digest);
        *ret = descriptor_json(type, digest, (uint64_t)st.st_size);
        return 0;
}

/* manifest.json of an old `docker save`: makes the manifest that it lacks. */
static int make_manifest(struct import *m, const json_t *entry, struct buf *ret)
{
        CLEANUP_JSON json_t *config = NULL, *layers = json_array(), *doc = NULL;
        CLEANUP_FREE char *text = NULL;
        const json_t *names = json_object_get(entry, "Layers");
        int r = take_member(m, json_str(entry, "Config"), "application/vnd.docker.container.image.v1+json", &config);

        if (json_array_size(names) > LAYERS_MAX)
                return error_set(m->err, ERROR_LIMIT, "the image has more than %d layers", LAYERS_MAX);
        for (size_t i = 0; r == 0 && i < json_array_size(names); i++) {
                json_t *d = NULL;

                r = take_member(m, json_string_value(json_array_get(names, i)),
                                "application/vnd.docker.image.rootfs.diff.tar", &d);
                json_array_append_new(layers, d);
        }
        if (r < 0)
                return r;
        doc = json_pack("{s:i, s:s, s:O, s:O}", "schemaVersion", 2, "mediaType",
                        "application/vnd.docker.distribution.manifest.v2+json", "config", config, "layers", layers);
        text = json_text(doc);
        buf_adds(ret, text);
        return 0;
}

static int take_docker(struct import *m, char **name)
{
        __attribute__((cleanup(manifest_free))) struct manifest man = {};
        CLEANUP_FREE char *path = path_join(m->dir, "manifest.json");
        CLEANUP_BUF struct buf text = {}, made = {};
        CLEANUP_JSON json_t *j = NULL;
        char digest[DIGEST_TEXT_MAX];
        const json_t *entry;
        int r = file_read(path, MANIFEST_MAX, &text, m->err);

        if (r == 0)
                r = json_parse(buf_str(&text), text.len, &j, m->err);
        if (r < 0)
                return r;
        if (json_array_size(j) != 1)
                return error_set(m->err, ERROR_INVALID, "the archive holds %zu images; save one at a time", json_array_size(j));
        entry = json_array_get(j, 0);
        r = make_manifest(m, entry, &made);
        if (r < 0)
                return r;
        digest_of(buf_str(&made), made.len, digest);
        r = blob_store(m->options->cache_dir, digest, buf_str(&made), made.len, m->err);
        if (r == 0)
                r = manifest_parse(buf_str(&made), made.len, NULL, &man, m->err);
        if (r < 0)
                return r;
        add_blob(m, digest);
        if (!*name)
                *name = xstrdup_or_null(json_string_value(json_array_get(json_object_get(entry, "RepoTags"), 0)));
        return take_image(m, &man, digest);
}

static int take_dir(struct import *m, char **name)
{
        CLEANUP_FREE char *index = path_join(m->dir, "index.json"), *docker = path_join(m->dir, "manifest.json");

        if (path_exists(index))
                return take_layout(m, name);
        if (path_exists(docker))
                return take_docker(m, name);
        return error_set(m->err, ERROR_INVALID, "this is neither an OCI layout (index.json) nor a docker save archive "
                                                "(manifest.json)");
}

static int finish(struct import *m, const char *name, const char *machine, struct oci_image *ret)
{
        __attribute__((cleanup(oci_reference_free))) struct oci_reference ref = {};
        int r;

        if (!name)
                return error_set(m->err, ERROR_INVALID, "the image carries no name; give one with --name REF");
        r = oci_reference_parse(name, &ref, m->err);
        if (r < 0)
                return r;
        m->record.reference = reference_text(&ref);
        m->record.architecture = xstrdup(m->architecture);
        m->record.imported = true;
        r = image_record_save(m->options->cache_dir, &m->record, m->err);
        return r < 0 ? r : oci_resolve(m->options, name, machine, NULL, NULL, ret, m->err);
}

/* Unpacks an archive beside the cache; tar itself refuses absolute names and "..". */
static int unpack(const char *cache_dir, const char *path, char **ret_dir, struct error *err)
{
        char id[13];
        CLEANUP_FREE char *dir = (random_id(id, 12), xasprintf("%s/partial/import-%s", cache_dir, id));
        const char *argv[] = {"tar", "--extract", "--no-same-owner", "--no-same-permissions", "--file", path, "--directory", dir, NULL};
        int r;

        if (mkdir(dir, 0700) < 0)
                return error_errno(err, errno, "create %s", dir);
        r = subprocess_run(argv, NULL, err);
        if (r < 0) {
                tree_remove(dir, NULL);
                return r;
        }
        *ret_dir = STEAL(dir);
        return 0;
}

int oci_import(const struct oci_options *o, const char *path, const char *name, const char *machine,
               struct oci_image *ret, struct error *err)
{
        struct error own = {};
        struct import m = { .options = o, .architecture = oci_architecture(machine), .err = &own };
        CLEANUP_FREE char *unpacked = NULL, *own_ref = xstrdup_or_null(name);
        struct stat st;
        int r = blob_cache_prepare(o->cache_dir, &own);

        if (r == 0 && stat(path, &st) < 0)
                r = error_errno(&own, errno, "open %s", path);
        else if (r == 0 && !S_ISDIR(st.st_mode))
                r = unpack(o->cache_dir, path, &unpacked, &own);
        m.dir = unpacked ?: path;
        if (r == 0)
                r = take_dir(&m, &own_ref);
        if (r == 0)
                r = finish(&m, own_ref, machine, ret);
        if (unpacked)
                tree_remove(unpacked, NULL);
        image_record_free(&m.record);
        if (r == 0)
                return 0;
        if (err)
                *err = own;
        return error_wrap(err, error_kind_to_errno(own.kind), "import %s", path);
}
