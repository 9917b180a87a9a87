/* The files are derived data, except for imported ones: a damaged one is as good as a missing one. */
#include "oci/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/manifest.h"
#include "oci/oci.h"

#define RECORD_MAX (1U << 20)

char *reference_text(const struct oci_reference *r)
{
        return xasprintf("%s/%s%s%s%s%s", r->registry, r->repository, r->tag ? ":" : "", r->tag ?: "",
                         r->digest ? "@" : "", r->digest ?: "");
}

void image_record_free(struct image_record *r)
{
        free(r->reference);
        free(r->digest);
        free(r->architecture);
        free(r->config_digest);
        for (char **b = r->blobs; b && *b; b++)
                free(*b);
        free(r->blobs);
        *r = (struct image_record){};
}

static char *record_path(const char *cache_dir, const char *reference)
{
        char digest[DIGEST_TEXT_MAX];

        digest_of(reference, strlen(reference), digest);
        return xasprintf("%s/images/%s", cache_dir, digest_hex(digest));
}

static char *to_text(const struct image_record *r)
{
        CLEANUP_JSON json_t *blobs = json_array(), *j = NULL;

        for (char **b = r->blobs; *b; b++)
                json_array_append_new(blobs, json_string(*b));
        j = json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:O, s:b}", "reference", r->reference, "digest", r->digest,
                      "architecture", r->architecture, "size", (json_int_t)r->size, "layers",
                      (json_int_t)r->layer_count, "config", r->config_digest, "blobs", blobs, "imported", r->imported);
        return json_text(j);
}

static bool unchanged(const char *path, const char *text)
{
        CLEANUP_BUF struct buf old = {};

        return file_read(path, RECORD_MAX, &old, NULL) == 0 && streq(buf_str(&old), text);
}

int image_records_lock(const char *cache_dir, bool exclusive)
{
        CLEANUP_FREE char *path = path_join(cache_dir, "images");
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0 || flock(fd, exclusive ? LOCK_EX : LOCK_SH) < 0)
                return -1;
        return STEAL_FD(fd);
}

int64_t image_record_used(const char *cache_dir, const char *reference)
{
        CLEANUP_FREE char *path = record_path(cache_dir, reference);
        struct stat st;

        return stat(path, &st) < 0 ? 0 : st.st_mtim.tv_sec;
}

int image_record_save(const char *cache_dir, const struct image_record *r, struct error *err)
{
        CLEANUP_FREE char *path = record_path(cache_dir, r->reference), *text = to_text(r);
        CLEANUP_CLOSE int lock = image_records_lock(cache_dir, false);

        if (unchanged(path, text)) {
                utimensat(AT_FDCWD, path, NULL, 0);
                return 0;
        }
        return file_write_atomic(path, text, strlen(text), 0600, err);
}

static bool from_json(const json_t *j, struct image_record *r)
{
        const json_t *blobs = json_object_get(j, "blobs");
        size_t n = json_array_size(blobs);

        r->reference = xstrdup_or_null(json_str(j, "reference"));
        r->digest = xstrdup_or_null(json_str(j, "digest"));
        r->architecture = xstrdup_or_null(json_str(j, "architecture"));
        r->config_digest = xstrdup_or_null(json_str(j, "config"));
        r->size = (uint64_t)json_int(j, "size", 0);
        r->layer_count = (size_t)json_int(j, "layers", 0);
        r->imported = json_bool(j, "imported", false);
        if (n > LAYERS_MAX + 8)
                return false;
        r->blobs = xcalloc(n + 1, sizeof(*r->blobs));
        for (size_t i = 0; i < n; i++) {
                const char *digest = json_string_value(json_array_get(blobs, i));

                if (!digest_valid(digest))
                        return false;
                r->blobs[i] = xstrdup(digest);
        }
        return r->reference && r->architecture && digest_valid(r->digest) && digest_valid(r->config_digest);
}

static int load_file(const char *path, struct image_record *ret, struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        struct image_record rec = {};
        int r = file_read(path, RECORD_MAX, &text, err);

        if (r < 0)
                return r;
        if (json_parse(buf_str(&text), text.len, &j, NULL) < 0 || !from_json(j, &rec)) {
                image_record_free(&rec);
                return error_set(err, ERROR_NOT_FOUND, "%s is damaged", path);
        }
        *ret = rec;
        return 0;
}

int image_record_load(const char *cache_dir, const char *reference, struct image_record *ret, struct error *err)
{
        CLEANUP_FREE char *path = record_path(cache_dir, reference);

        return load_file(path, ret, err);
}

int image_record_list(const char *cache_dir, struct image_record **ret, size_t *ret_count, struct error *err)
{
        CLEANUP_FREE char *dir = path_join(cache_dir, "images");
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        struct image_record *list = NULL;
        size_t n = 0;

        if (!d && errno != ENOENT)
                return error_errno(err, errno, "open %s", dir);
        for (struct dirent *e; d && (e = readdir(d));) {
                CLEANUP_FREE char *path = path_join(dir, e->d_name);
                struct image_record r;

                if (!str_is_hex(e->d_name, DIGEST_HEX) || load_file(path, &r, NULL) < 0)
                        continue;
                list = xreallocarray(list, n + 1, sizeof(*list));
                list[n++] = r;
        }
        *ret = list;
        *ret_count = n;
        return 0;
}

static bool names_blob(const struct image_record *list, size_t n, const char *digest)
{
        for (size_t i = 0; i < n; i++)
                for (char **b = list[i].blobs; *b; b++)
                        if (streq(*b, digest))
                                return true;
        return false;
}

static uint64_t remove_blobs(const char *cache_dir, const struct image_record *r, const struct image_record *others,
                             size_t n)
{
        uint64_t freed = 0;

        for (char **b = r->blobs; *b; b++) {
                CLEANUP_FREE char *path = blob_path(cache_dir, *b);
                struct stat st;

                if (!names_blob(others, n, *b) && stat(path, &st) == 0 && unlink(path) == 0)
                        freed += (uint64_t)st.st_size;
        }
        return freed;
}

int image_record_remove(const char *cache_dir, const char *reference, uint64_t *ret_freed, struct error *err)
{
        CLEANUP_FREE char *path = record_path(cache_dir, reference);
        struct image_record rec = {}, *others = NULL;
        size_t n = 0;
        int r = load_file(path, &rec, err);

        if (r < 0)
                return r;
        if (unlink(path) < 0)
                r = error_errno(err, errno, "remove %s", path);
        if (r == 0)
                r = image_record_list(cache_dir, &others, &n, err);
        if (r == 0)
                *ret_freed = remove_blobs(cache_dir, &rec, others, n);
        for (size_t i = 0; i < n; i++)
                image_record_free(&others[i]);
        free(others);
        image_record_free(&rec);
        return r;
}
