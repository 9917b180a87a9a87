/* Files named after the sha256 of their content. A blob is written elsewhere, verified, fsynced and renamed into place,
 * so that presence means completeness; small ones (manifests, configs) are hashed again on every read, layers when
 * their content turns out wrong. Downloads collect in partial/<hex>, where an interrupted one is found again.
 */
#include "oci/blob.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/digest.h"

int blob_cache_prepare(const char *cache_dir, struct error *err)
{
        static const char *const subdirs[] = { "blobs/sha256", "partial", "images" };

        for (size_t i = 0; i < sizeof(subdirs) / sizeof(*subdirs); i++) {
                CLEANUP_FREE char *path = path_join(cache_dir, subdirs[i]);
                int r = dir_make(path, 0700, err);

                if (r < 0)
                        return error_wrap(err, r, "image cache");
        }
        return 0;
}

char *blob_path(const char *cache_dir, const char *digest)
{
        return xasprintf("%s/blobs/sha256/%s", cache_dir, digest_hex(digest));
}

char *blob_partial_path(const char *cache_dir, const char *digest)
{
        return xasprintf("%s/partial/%s", cache_dir, digest_hex(digest));
}

bool blob_present(const char *cache_dir, const char *digest, uint64_t size)
{
        CLEANUP_FREE char *path = blob_path(cache_dir, digest);
        struct stat st;

        if (lstat(path, &st) < 0)
                return false;
        if (S_ISREG(st.st_mode) && (uint64_t)st.st_size == size)
                return true;
        unlink(path);
        return false;
}

int blob_read(const char *cache_dir, const char *digest, size_t limit, struct buf *ret, struct error *err)
{
        CLEANUP_FREE char *path = blob_path(cache_dir, digest);
        CLEANUP_BUF struct buf content = {};
        char actual[DIGEST_TEXT_MAX];
        int r = file_read(path, limit, &content, err);

        if (r < 0)
                return r;
        digest_of(content.data, content.len, actual);
        if (!streq(actual, digest)) {
                unlink(path);
                return error_set(err, ERROR_NOT_FOUND, "the cached blob %s was damaged and has been removed", digest);
        }
        buf_add(ret, buf_str(&content), content.len);
        return 0;
}

int blob_store(const char *cache_dir, const char *digest, const void *data, size_t len, struct error *err)
{
        CLEANUP_FREE char *path = blob_path(cache_dir, digest);
        char actual[DIGEST_TEXT_MAX];

        digest_of(data, len, actual);
        if (!streq(actual, digest))
                return error_set(err, ERROR_INVALID, "sha256 mismatch: expected %s, got %s", digest, actual);
        return file_write_atomic(path, data, len, 0600, err);
}

static int hash_fd(int fd, char out[DIGEST_TEXT_MAX])
{
        struct digest_state d = {};
        CLEANUP_FREE char *block = xmalloc(1 << 17);
        ssize_t n;

        digest_start(&d);
        while ((n = read(fd, block, 1 << 17)) != 0) {
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        break;
                digest_add(&d, block, (size_t)n);
        }
        digest_final(&d, out);
        digest_free(&d);
        return n < 0 ? -errno : 0;
}

int blob_verify(const char *cache_dir, const char *digest, struct error *err)
{
        CLEANUP_FREE char *path = blob_path(cache_dir, digest);
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        char actual[DIGEST_TEXT_MAX];
        int r;

        if (fd < 0)
                return error_errno(err, errno, "open %s", path);
        r = hash_fd(fd, actual);
        if (r < 0)
                return error_errno(err, r, "read %s", path);
        if (streq(actual, digest))
                return 0;
        unlink(path);
        error_set(err, ERROR_INVALID, "the cached blob %s was damaged and has been removed", digest);
        return -EBADMSG;
}
