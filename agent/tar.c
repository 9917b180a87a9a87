/* Theory of operation: file data goes from libarchive's block straight to pwrite(), so that holes of sparse
 * entries stay holes. The order is owner, then mode, then extended attributes: chown(2) clears setuid bits and
 * security.capability.
 */
#include "tar.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/str.h"

struct archive *archive_new(void)
{
        struct archive *a = archive_read_new();

        if (!a)
                abort();
        archive_read_support_format_tar(a);
        archive_read_support_filter_gzip(a);
        archive_read_support_filter_zstd(a);
        return a;
}

static int archive_failure(struct archive *a, struct error *err, const char *what)
{
        const char *text = archive_error_string(a);

        return error_set(err, ERROR_INVALID, "%s: %s", what, text ? text : "unknown failure");
}

int archive_open_path(struct archive *a, const char *path, struct error *err)
{
        if (archive_read_open_filename(a, path, ARCHIVE_BLOCK) != ARCHIVE_OK)
                return archive_failure(a, err, "open the archive");
        return 0;
}

int archive_next(struct archive *a, struct archive_entry **ret, struct error *err)
{
        int r = archive_read_next_header(a, ret);

        if (r == ARCHIVE_EOF)
                return 0;
        if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
                return archive_failure(a, err, "read the archive");
        return 1;
}

static int write_block(int fd, const void *data, size_t len, int64_t offset)
{
        const char *p = data;

        while (len > 0) {
                ssize_t n = pwrite(fd, p, len, offset);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                p += n;
                offset += n;
                len -= (size_t)n;
        }
        return 0;
}

static int write_data(struct archive *a, struct archive_entry *e, int fd, entry_progress progress, void *data,
                      struct error *err)
{
        int64_t size = archive_entry_size(e), end = 0, offset;
        const void *block;
        size_t len;
        int r;

        while ((r = archive_read_data_block(a, &block, &len, &offset)) == ARCHIVE_OK) {
                if (len == 0)
                        continue;
                r = write_block(fd, block, len, offset);
                if (r < 0)
                        return error_errno(err, r, "write");
                end = offset + (int64_t)len;
                if (progress)
                        progress(len, data);
        }
        if (r != ARCHIVE_EOF)
                return archive_failure(a, err, "read the content");
        if (end < size && ftruncate(fd, size) < 0)
                return error_errno(err, errno, "set the size");
        return 0;
}

/* The address under which path-based calls reach dir_fd/name without following it. */
static void proc_path(char *out, size_t size, int dir_fd, const char *name)
{
        snprintf(out, size, "/proc/self/fd/%d/%s", dir_fd, name);
}

static int set_xattrs(struct archive_entry *e, int fd, const char *link_path, struct error *err)
{
        const char *name;
        const void *value;
        size_t len;
        unsigned count = 0;

        archive_entry_xattr_reset(e);
        while (archive_entry_xattr_next(e, &name, &value, &len) == ARCHIVE_OK) {
                int r;

                if (++count > ENTRY_XATTRS_MAX || len > ENTRY_XATTR_BYTES_MAX)
                        return error_set(err, ERROR_INVALID, "more than %d extended attributes or one above %d bytes",
                                         ENTRY_XATTRS_MAX, ENTRY_XATTR_BYTES_MAX);
                r = fd >= 0 ? fsetxattr(fd, name, value, len, 0) : lsetxattr(link_path, name, value, len, 0);
                /* An attribute of a name space that this file system or kernel lacks (security.selinux without
                 * SELinux, user.* on a symlink) cannot matter to anyone in the guest. */
                if (r < 0 && errno != EOPNOTSUPP && errno != EPERM)
                        return error_errno(err, errno, "set the attribute %s", name);
        }
        return 0;
}

static int set_owner_and_mode(struct archive_entry *e, int fd, struct error *err)
{
        if (fchown(fd, (uid_t)archive_entry_uid(e), (gid_t)archive_entry_gid(e)) < 0)
                return error_errno(err, errno, "set the owner");
        if (fchmod(fd, archive_entry_perm(e)) < 0)
                return error_errno(err, errno, "set the mode");
        return 0;
}

static void mtime_of(struct archive_entry *e, struct timespec times[2])
{
        times[0].tv_nsec = UTIME_OMIT;
        times[1].tv_nsec = UTIME_OMIT;
        if (archive_entry_mtime_is_set(e))
                times[1] = (struct timespec){ archive_entry_mtime(e), archive_entry_mtime_nsec(e) };
}

static int create_file(struct archive *a, struct archive_entry *e, int dir_fd, const char *name,
                       entry_progress progress, void *data, struct error *err)
{
        CLEANUP_CLOSE int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        struct timespec times[2];
        int r;

        if (fd < 0)
                return error_errno(err, errno, "create");
        r = write_data(a, e, fd, progress, data, err);
        if (r >= 0)
                r = set_owner_and_mode(e, fd, err);
        if (r >= 0)
                r = set_xattrs(e, fd, NULL, err);
        if (r < 0)
                return r;
        mtime_of(e, times);
        futimens(fd, times);
        return 0;
}

int entry_apply_directory(struct archive_entry *e, int fd, struct error *err)
{
        int r = set_owner_and_mode(e, fd, err);

        return r < 0 ? r : set_xattrs(e, fd, NULL, err);
}

static int create_directory(struct archive_entry *e, int dir_fd, const char *name, struct error *err)
{
        CLEANUP_CLOSE int fd = -1;

        if (mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST)
                return error_errno(err, errno, "create the directory");
        fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return error_errno(err, errno, "open the directory");
        return entry_apply_directory(e, fd, err);
}

static int create_other(struct archive_entry *e, int dir_fd, const char *name, struct error *err)
{
        mode_t type = archive_entry_filetype(e);
        char path[PATH_MAX + 64];
        struct timespec times[2];

        if (type == AE_IFLNK) {
                const char *target = archive_entry_symlink(e);

                if (!target || !*target)
                        return error_set(err, ERROR_INVALID, "symbolic link without a target");
                if (symlinkat(target, dir_fd, name) < 0)
                        return error_errno(err, errno, "create the link");
        } else if (mknodat(dir_fd, name, type | 0600, archive_entry_rdev(e)) < 0)
                return error_errno(err, errno, "create the device");
        if (fchownat(dir_fd, name, (uid_t)archive_entry_uid(e), (gid_t)archive_entry_gid(e), AT_SYMLINK_NOFOLLOW) < 0)
                return error_errno(err, errno, "set the owner");
        if (type != AE_IFLNK && fchmodat(dir_fd, name, archive_entry_perm(e), 0) < 0)
                return error_errno(err, errno, "set the mode");
        proc_path(path, sizeof(path), dir_fd, name);
        mtime_of(e, times);
        utimensat(dir_fd, name, times, AT_SYMLINK_NOFOLLOW);
        return set_xattrs(e, -1, path, err);
}

int entry_create(struct archive *a, struct archive_entry *e, int dir_fd, const char *name, bool devices,
                 entry_progress progress, void *data, struct error *err)
{
        switch (archive_entry_filetype(e)) {
        case AE_IFREG:
                return create_file(a, e, dir_fd, name, progress, data, err);
        case AE_IFDIR:
                return create_directory(e, dir_fd, name, err);
        case AE_IFLNK:
                return create_other(e, dir_fd, name, err);
        case AE_IFIFO:
        case AE_IFCHR:
        case AE_IFBLK:
        case AE_IFSOCK:
                if (devices)
                        return create_other(e, dir_fd, name, err);
                return error_set(err, ERROR_INVALID, "devices, pipes and sockets are not allowed");
        default:
                return error_set(err, ERROR_INVALID, "unknown type of entry");
        }
}
