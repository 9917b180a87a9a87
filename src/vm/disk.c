/* Disk images.
 *
 * Theory of operation: a template's disk is a raw sparse file, everything above it are qcow2 overlays that name
 * no backing file: the chain is given on the command line of whoever opens it, so that directories can move and
 * a guest-written header can never make the host open a file of the guest's choosing. For the same reason images
 * are opened with explicit drivers only; nothing is probed.
 *
 * An empty qcow2 is four kinds of clusters whose content follows from the size alone, so it is written here
 * directly: starting qemu-img for it would cost more than a fork may.
 */
#include "vm/disk.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/subprocess.h"

#define MIB (1024ULL * 1024)
#define DISK_MIB_MIN 16ULL
#define DISK_MIB_MAX (4ULL * 1024 * 1024) /* 4 TiB: the L1 table of an overlay then still is one cluster */
#define RESERVED_MIB 256ULL

/* Known to e2fsck 1.45 (no orphan_file, no metadata_csum_seed), so that old distros can check their own root. */
#define EXT4_FEATURES                                                                                   \
        "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super," \
        "large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

/* The root's reserve: 256 MiB, but never more than a quarter of a small disk. */
static int ext4_reserve(const char *path, uint64_t size_mib, struct error *err)
{
        uint64_t mib = size_mib / 4 < RESERVED_MIB ? size_mib / 4 : RESERVED_MIB;
        CLEANUP_FREE char *blocks = xasprintf("%llu", mib * MIB / 4096);
        const char *const argv[] = {"tune2fs", "-r", blocks, path, NULL};

        return subprocess_run(argv, NULL, err);
}

static int create_sized(const char *path, uint64_t size, int *ret_fd, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

        if (fd < 0)
                return error_errno(err, errno, "create %s", path);
        if (ftruncate(fd, (off_t)size) < 0) {
                int r = error_errno(err, errno, "size %s", path);

                unlink(path);
                return r;
        }
        *ret_fd = STEAL_FD(fd);
        return 0;
}

/* mke2fs zeroes by ZERO_RANGE, which allocates; what has no data becomes a hole again. */
static int punch_unwritten(int fd)
{
        off_t end = lseek(fd, 0, SEEK_END), hole = 0;

        for (off_t data; hole < end; hole = data) {
                hole = lseek(fd, hole, SEEK_HOLE);
                if (hole < 0 || hole >= end)
                        break;
                data = lseek(fd, hole, SEEK_DATA);
                if (data < 0)
                        data = end;
                if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole, data - hole) < 0)
                        return -errno;
        }
        return 0;
}

int disk_create_ext4(const char *path, uint64_t size_mib, struct error *err)
{
        /* The inode tables are zeroed now, as unwritten extents that are then punched out, instead of lazily in
         * the guest, which would fill the file later. */
        const char *const argv[] = {"mke2fs", "-q",    "-F",   "-t",           "ext4", "-O",
                                    EXT4_FEATURES,     "-b",   "4096",         "-I",   "256",
                                    "-i",     "4096",  "-m",   "0",            "-E",   "discard,lazy_itable_init=0",
                                    path,     NULL};
        CLEANUP_CLOSE int fd = -1;
        int r;

        if (size_mib < DISK_MIB_MIN || size_mib > DISK_MIB_MAX)
                return error_set(err, ERROR_INVALID, "disk size %" PRIu64 " MiB is outside %llu to %llu MiB", size_mib,
                                 DISK_MIB_MIN, DISK_MIB_MAX);
        r = create_sized(path, size_mib * MIB, &fd, err);
        if (r < 0)
                return r;
        r = subprocess_run(argv, NULL, err);
        if (r >= 0)
                r = ext4_reserve(path, size_mib, err);
        if (r >= 0) {
                r = punch_unwritten(fd);
                /* A file system without holes still has a right image, only a larger one. */
                if (r < 0 && r != -EOPNOTSUPP)
                        r = error_errno(err, r, "punch holes");
                else
                        r = 0;
        }
        if (r < 0) {
                unlink(path);
                return error_wrap(err, r, "make an empty file system in %s", path);
        }
        return 0;
}

/* The qcow2 format, version 3 (QEMU's docs/interop/qcow2.txt); numbers are big-endian. */
#define CLUSTER_BITS 16
#define CLUSTER (1ULL << CLUSTER_BITS)
#define BYTES_PER_L2 (CLUSTER / 8 * CLUSTER) /* 512 MiB mapped by one L1 entry */

struct qcow2_header {
        uint32_t magic, version;
        uint64_t backing_offset;
        uint32_t backing_len, cluster_bits;
        uint64_t size;
        uint32_t crypt, l1_entries;
        uint64_t l1_offset, refcount_offset;
        uint32_t refcount_clusters, snapshots;
        uint64_t snapshots_offset, incompatible, compatible, autoclear;
        uint32_t refcount_order, header_len;
        uint8_t compression, padding[7];
        uint32_t extension_type, extension_len; /* end of header extensions: zeroes */
};

/* Clusters: 0 header, 1 refcount table, 2 refcount block, 3 L1 table (all zero: nothing is mapped). */
static void qcow2_fill(uint64_t size, struct qcow2_header *h)
{
        *h = (struct qcow2_header){
                .magic = htobe32(0x514649fb),
                .version = htobe32(3),
                .cluster_bits = htobe32(CLUSTER_BITS),
                .size = htobe64(size),
                .l1_entries = htobe32((uint32_t)((size + BYTES_PER_L2 - 1) / BYTES_PER_L2)),
                .l1_offset = htobe64(3 * CLUSTER),
                .refcount_offset = htobe64(CLUSTER),
                .refcount_clusters = htobe32(1),
                .refcount_order = htobe32(4),
                .header_len = htobe32(offsetof(struct qcow2_header, extension_type)),
        };
}

static int qcow2_write(int fd, const struct qcow2_header *h)
{
        const uint64_t table = htobe64(2 * CLUSTER);
        const uint16_t counts[4] = {htobe16(1), htobe16(1), htobe16(1), htobe16(1)};

        if (pwrite(fd, h, sizeof(*h), 0) != (ssize_t)sizeof(*h) ||
            pwrite(fd, &table, sizeof(table), CLUSTER) != (ssize_t)sizeof(table) ||
            pwrite(fd, counts, sizeof(counts), 2 * CLUSTER) != (ssize_t)sizeof(counts))
                return -(errno ? errno : EIO);
        return 0;
}

int disk_overlay_create(const char *path, uint64_t size, struct error *err)
{
        struct qcow2_header h;
        CLEANUP_CLOSE int fd = -1;
        int r;

        if (size == 0 || size % 512 || size > DISK_MIB_MAX * MIB)
                return error_set(err, ERROR_INVALID, "overlay size %" PRIu64 " is no multiple of 512 up to %llu MiB",
                                 size, DISK_MIB_MAX);
        r = create_sized(path, 4 * CLUSTER, &fd, err);
        if (r < 0)
                return r;
        qcow2_fill(size, &h);
        errno = 0;
        r = qcow2_write(fd, &h);
        if (r < 0) {
                unlink(path);
                return error_errno(err, r, "write %s", path);
        }
        return 0;
}

int disk_size(const char *path, uint64_t *ret, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct qcow2_header h;
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "open disk %s", path);
        if (!str_ends(path, ".qcow2")) {
                *ret = (uint64_t)st.st_size;
                return 0;
        }
        if (pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h) || be32toh(h.magic) != 0x514649fb)
                return error_set(err, ERROR_INTERNAL, "%s is no qcow2 image", path);
        *ret = be64toh(h.size);
        return 0;
}

/* One image as a block device description with an explicit driver, on top of `backing` (consumed). */
static json_t *chain_node(const char *path, json_t *backing)
{
        json_t *node = json_pack("{s:s,s:{s:s,s:s}}", "driver", str_ends(path, ".qcow2") ? "qcow2" : "raw", "file",
                                 "driver", "file", "filename", path);

        if (backing)
                json_object_set_new(node, "backing", backing);
        return node;
}

static json_t *chain_json(const char *const *chain)
{
        json_t *node = NULL;

        for (; *chain; chain++)
                node = chain_node(*chain, node);
        return node;
}

int disk_flatten(const char *const *chain, const char *to, struct error *err)
{
        CLEANUP_JSON json_t *node = chain_json(chain);
        CLEANUP_FREE char *text = NULL, *source = NULL;
        int r;

        if (!node)
                return error_set(err, ERROR_INVALID, "flatten %s: the chain is empty or a path is not UTF-8", to);
        if (path_exists(to))
                return error_set(err, ERROR_CONFLICT, "flatten %s: the file exists", to);
        text = json_text(node);
        source = xasprintf("json:%s", text);
        r = subprocess_run((const char *const[]){"qemu-img", "convert", "-O", "raw", "-S", "4k", source, to, NULL},
                           NULL, err);
        if (r >= 0)
                r = file_fsync(to, err);
        if (r < 0) {
                unlink(to);
                return error_wrap(err, r, "flatten the disk into %s", to);
        }
        return 0;
}

/* What an image alone says: an array of extents in rising order without gaps. */
static int map_image(const char *path, json_t **ret, struct error *err)
{
        const char *const argv[] = {"qemu-img", "map", "--output=json", "-f", str_ends(path, ".qcow2") ? "qcow2" : "raw", path, NULL};
        CLEANUP_BUF struct buf text = {};
        int r = subprocess_run(argv, &text, err);

        if (r >= 0)
                r = json_parse(text.data, text.len, ret, err);
        if (r >= 0 && !json_is_array(*ret)) {
                json_decref(*ret);
                *ret = NULL;
                r = error_set(err, ERROR_INTERNAL, "qemu-img map answered no array for %s", path);
        }
        return r;
}

static uint64_t extent_end(const json_t *extent)
{
        return (uint64_t)json_int(extent, "start", 0) + (uint64_t)json_int(extent, "length", 0);
}

static uint64_t common(const json_t *a, const json_t *b)
{
        uint64_t a_start = (uint64_t)json_int(a, "start", 0), b_start = (uint64_t)json_int(b, "start", 0);
        uint64_t start = a_start > b_start ? a_start : b_start, end = extent_end(a) < extent_end(b) ? extent_end(a) : extent_end(b);

        return end > start ? end - start : 0;
}

/* Zeroes that `upper` says hide data too: the merged image has a hole there. */
static uint64_t overlap(const json_t *lower, const json_t *upper)
{
        uint64_t sum = 0;
        size_t i = 0, j = 0;

        while (i < json_array_size(lower) && j < json_array_size(upper)) {
                const json_t *a = json_array_get(lower, i), *b = json_array_get(upper, j);

                if (json_bool(a, "data", false) && json_bool(b, "present", false))
                        sum += common(a, b);
                if (extent_end(a) < extent_end(b))
                        i++;
                else
                        j++;
        }
        return sum;
}

int disk_overlap(const char *lower, const char *upper, uint64_t *ret, struct error *err)
{
        CLEANUP_JSON json_t *below = NULL, *above = NULL;
        int r = map_image(lower, &below, err);

        if (r >= 0)
                r = map_image(upper, &above, err);
        if (r < 0)
                return error_wrap(err, r, "compare %s with %s", upper, lower);
        *ret = overlap(below, above);
        return 0;
}

static int copy_image(const char *from, const char *to, struct error *err)
{
        CLEANUP_CLOSE int source = open(from, O_RDONLY | O_CLOEXEC), target = -1;

        if (source < 0)
                return error_errno(err, errno, "open %s", from);
        target = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (target < 0)
                return error_errno(err, errno, "create %s", to);
        return fd_copy_sparse(source, target, err);
}

/* Both are copies: qemu-img opens what it commits for writing. */
static int commit(const char *const *below, const char *lower, const char *upper, struct error *err)
{
        CLEANUP_JSON json_t *node = chain_node(upper, chain_node(lower, chain_json(below)));
        CLEANUP_FREE char *text = NULL, *source = NULL;

        if (!node)
                return error_set(err, ERROR_INVALID, "a path of the chain is not UTF-8");
        text = json_text(node);
        source = xasprintf("json:%s", text);
        return subprocess_run((const char *const[]){"qemu-img", "commit", "-q", "-d", source, NULL}, NULL, err);
}

int disk_merge(const char *const *below, const char *lower, const char *upper, const char *to, struct error *err)
{
        CLEANUP_FREE char *top = xasprintf("%s.upper.qcow2", to);
        int r;

        if (path_exists(to))
                return error_set(err, ERROR_CONFLICT, "merge into %s: the file exists", to);
        r = copy_image(lower, to, err);
        if (r >= 0)
                r = copy_image(upper, top, err);
        if (r >= 0)
                r = commit(below, to, top, err);
        if (r >= 0)
                r = file_fsync(to, err);
        unlink(top);
        if (r < 0) {
                unlink(to);
                return error_wrap(err, r, "merge %s into %s", upper, lower);
        }
        return 0;
}
