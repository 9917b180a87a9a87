#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>

#include "base/failpoint.h"
#include "base/mem.h"
#include "base/rand.h"

int fd_write_all(int fd, const void *data, size_t len)
{
        const char *p = data;

        while (len) {
                ssize_t n = write(fd, p, len);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                p += n;
                len -= (size_t)n;
        }
        return 0;
}

int fd_read_all(int fd, void *data, size_t len)
{
        char *p = data;

        while (len) {
                ssize_t n = read(fd, p, len);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (n == 0)
                        return -EPIPE;
                p += n;
                len -= (size_t)n;
        }
        return 0;
}

int file_read(const char *path, size_t limit, struct buf *ret, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

        if (fd < 0)
                return error_errno(err, errno, "open %s", path);
        for (size_t total = 0;;) {
                ssize_t n = read(fd, buf_reserve(ret, 16384), 16384);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return error_errno(err, errno, "read %s", path);
                if (n == 0)
                        return 0;
                total += (size_t)n;
                if (total > limit)
                        return error_set(err, ERROR_LIMIT, "%s is larger than %zu bytes", path, limit);
                buf_grew(ret, (size_t)n);
        }
}

int dir_fsync(const char *path, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0)
                return error_errno(err, errno, "open %s", path);
        if (fsync(fd) < 0)
                return error_errno(err, errno, "fsync %s", path);
        return 0;
}

int file_fsync(const char *path, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

        if (fd < 0 || fsync(fd) < 0)
                return error_errno(err, errno, "fsync %s", path);
        return 0;
}

static int fsync_parent(const char *path, struct error *err)
{
        CLEANUP_FREE char *dir = xstrdup(path);
        char *slash = strrchr(dir, '/');

        if (!slash)
                return dir_fsync(".", err);
        if (slash == dir)
                slash++;
        *slash = '\0';
        return dir_fsync(dir, err);
}

int file_publish(const char *from, const char *to, struct error *err)
{
        CLEANUP_CLOSE int fd = open(from, O_RDONLY | O_CLOEXEC);
        int r;

        if (fd < 0)
                return error_errno(err, errno, "open %s", from);
        failpoint("fsync", to);
        if (fsync(fd) < 0)
                return error_errno(err, errno, "fsync %s", from);
        failpoint("rename", to);
        if (rename(from, to) < 0)
                return error_errno(err, errno, "rename %s to %s", from, to);
        failpoint("renamed", to);
        r = fsync_parent(to, err);
        if (r >= 0)
                failpoint("published", to);
        return r;
}

static int write_new(const char *path, const void *data, size_t len, mode_t mode)
{
        CLEANUP_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);

        if (fd < 0)
                return -errno;
        return fd_write_all(fd, data, len);
}

int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, struct error *err)
{
        CLEANUP_FREE char *tmp = NULL;
        char suffix[9];
        int r;

        random_id(suffix, 8);
        tmp = xasprintf("%s.%s.tmp", path, suffix);
        r = write_new(tmp, data, len, mode);
        if (r < 0)
                r = error_errno(err, r, "write %s", tmp);
        else
                r = file_publish(tmp, path, err);
        if (r < 0)
                unlink(tmp);
        return r;
}

int dir_make(const char *path, mode_t mode, struct error *err)
{
        CLEANUP_FREE char *copy = xstrdup(path);

        for (char *p = copy + 1;; p++) {
                char c = *p;

                if (c != '/' && c != '\0')
                        continue;
                *p = '\0';
                if (mkdir(copy, mode) < 0 && errno != EEXIST)
                        return error_errno(err, errno, "create directory %s", copy);
                *p = c;
                if (c == '\0')
                        break;
        }
        return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)st;
        (void)type;
        (void)ftw;
        return remove(path) < 0 && errno != ENOENT ? -1 : 0;
}

int tree_remove(const char *path, struct error *err)
{
        if (nftw(path, remove_one, 32, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) < 0 && errno != ENOENT)
                return error_errno(err, errno, "remove %s", path);
        return 0;
}

/* Copies bytes [from_at, end) between the two descriptors. */
static int copy_extent(int from, int to, off_t at, off_t end)
{
        while (at < end) {
                off_t in = at, out = at;
                ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(end - at), 0);

                if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) {
                        char block[65536];
                        size_t want = end - at < (off_t)sizeof(block) ? (size_t)(end - at) : sizeof(block);

                        n = pread(from, block, want, at);
                        if (n > 0)
                                n = pwrite(to, block, (size_t)n, at);
                }
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return 0;
                at += n;
        }
        return 0;
}

int fd_copy_sparse(int from, int to, struct error *err)
{
        struct stat st;
        off_t at = 0;

        if (fstat(from, &st) < 0)
                return error_errno(err, errno, "stat");
        if (ftruncate(to, st.st_size) < 0)
                return error_errno(err, errno, "set size to %lld", (long long)st.st_size);
        while (at < st.st_size) {
                off_t data = lseek(from, at, SEEK_DATA), hole;
                int r;

                if (data < 0) {
                        if (errno == ENXIO) /* only a hole is left */
                                break;
                        return error_errno(err, errno, "seek to data");
                }
                hole = lseek(from, data, SEEK_HOLE);
                if (hole < 0)
                        return error_errno(err, errno, "seek to hole");
                r = copy_extent(from, to, data, hole);
                if (r < 0)
                        return error_errno(err, r, "copy");
                at = hole;
        }
        return 0;
}

static _Thread_local uint64_t allocated;

static int count_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)path;
        (void)ftw;
        if (type != FTW_NS)
                allocated += (uint64_t)st->st_blocks * 512;
        return 0;
}

uint64_t tree_allocated_bytes(const char *path)
{
        allocated = 0;
        if (nftw(path, count_one, 32, FTW_PHYS | FTW_MOUNT) < 0)
                return 0;
        return allocated;
}

bool path_exists(const char *path)
{
        struct stat st;

        return lstat(path, &st) == 0;
}

char *path_join(const char *a, const char *b)
{
        return xasprintf("%s/%s", a, b);
}
