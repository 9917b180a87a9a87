/* disk.h against the real tools: e2fsck judges the ext4, qemu-img the overlays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/subprocess.h"
#include "vm/disk.h"

static char dir[] = "/tmp/vmon-test-disk-XXXXXX";

static char *in_dir(const char *name)
{
        return path_join(dir, name);
}

static int setup(void **state)
{
        (void)state;
        return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
        (void)state;
        return tree_remove(dir, NULL);
}

/* Runs a command and returns its output. */
static char *output(const char *const argv[])
{
        struct buf out = {};
        struct error err = {};

        if (subprocess_run(argv, &out, &err) < 0)
                fail_msg("%s", err.message);
        return buf_steal(&out);
}

static void test_ext4_is_clean_sparse_and_sized(void **state)
{
        CLEANUP_FREE char *path = in_dir("root.img");
        CLEANUP_FREE char *text = NULL;
        uint64_t size = 0;
        struct error err = {};
        (void)state;

        if (disk_create_ext4(path, 4096, &err) < 0)
                fail_msg("%s", err.message);
        assert_int_equal(disk_size(path, &size, NULL), 0);
        assert_int_equal(size, 4096ULL << 20);
        assert_true(tree_allocated_bytes(path) < 64ULL << 20);
        free(output((const char *const[]){"e2fsck", "-fn", path, NULL}));
        text = output((const char *const[]){"dumpe2fs", "-h", path, NULL});
        assert_non_null(strstr(text, "Reserved block count:     65536\n"));
        assert_non_null(strstr(text, "Block size:               4096\n"));
        assert_non_null(strstr(text, "Inode count:              1048576\n"));
        assert_null(strstr(text, "orphan_file"));
        assert_null(strstr(text, "metadata_csum_seed"));
}

static void test_ext4_refuses(void **state)
{
        CLEANUP_FREE char *path = in_dir("refused.img");
        struct error err = {};
        (void)state;

        assert_int_equal(disk_create_ext4(path, 0, &err), -EINVAL);
        assert_int_equal(disk_create_ext4(path, 1ULL << 40, &err), -EINVAL);
        assert_false(path_exists(path));
        assert_int_equal(file_write_atomic(path, "x", 1, 0600, NULL), 0);
        assert_int_equal(disk_create_ext4(path, 64, &err), -EEXIST); /* never overwrites */
        assert_int_equal(tree_allocated_bytes(path) > 0, 1);
}

static void test_overlay_is_valid(void **state)
{
        static const uint64_t sizes[] = {512, 1 << 20, 512ULL << 20, (512ULL << 20) + 512, 10ULL << 30, 4ULL << 40};
        (void)state;

        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                CLEANUP_FREE char *name = xasprintf("o%zu.qcow2", i);
                CLEANUP_FREE char *path = in_dir(name);
                CLEANUP_FREE char *text = NULL;
                CLEANUP_JSON json_t *info = NULL;
                uint64_t size = 0;

                assert_int_equal(disk_overlay_create(path, sizes[i], NULL), 0);
                assert_int_equal(disk_size(path, &size, NULL), 0);
                assert_int_equal(size, sizes[i]);
                assert_true(tree_allocated_bytes(path) <= 64 << 10);
                free(output((const char *const[]){"qemu-img", "check", "-q", "-f", "qcow2", path, NULL}));
                text = output((const char *const[]){"qemu-img", "info", "--output=json", "-f", "qcow2", path, NULL});
                assert_int_equal(json_parse(text, strlen(text), &info, NULL), 0);
                assert_int_equal(json_int(info, "virtual-size", 0), sizes[i]);
                assert_null(json_str(info, "backing-filename"));
        }
        assert_int_equal(disk_overlay_create("/nonexistent/x.qcow2", 512, NULL), -ENOENT);
        assert_int_equal(disk_overlay_create("/nonexistent/x.qcow2", 0, NULL), -EINVAL);
        assert_int_equal(disk_overlay_create("/nonexistent/x.qcow2", 513, NULL), -EINVAL);
}

static void io(const char *image, const char *command)
{
        free(output((const char *const[]){"qemu-io", "-f", "qcow2", "-c", command, image, NULL}));
}

static void test_flatten_merges_and_leaves_holes(void **state)
{
        CLEANUP_FREE char *base = in_dir("base.img"), *one = in_dir("one.qcow2"), *two = in_dir("two.qcow2");
        CLEANUP_FREE char *flat = in_dir("flat.img");
        const char *const chain[] = {base, one, two, NULL};
        CLEANUP_CLOSE int fd = -1;
        unsigned char block[4096];
        struct error err = {};
        (void)state;

        fd = open(base, O_RDWR | O_CREAT, 0600);
        memset(block, 0xaa, sizeof(block));
        assert_int_equal(pwrite(fd, block, sizeof(block), 0), sizeof(block));
        assert_int_equal(pwrite(fd, block, sizeof(block), 8 << 20), sizeof(block));
        assert_int_equal(ftruncate(fd, 64 << 20), 0);
        assert_int_equal(disk_overlay_create(one, 64 << 20, NULL), 0);
        assert_int_equal(disk_overlay_create(two, 64 << 20, NULL), 0);
        io(one, "write -P 0xbb 1M 64k");
        io(two, "write -P 0xcc 32M 64k");
        io(two, "write -P 0 2M 1M");
        if (disk_flatten(chain, flat, &err) < 0)
                fail_msg("%s", err.message);
        close(fd);
        fd = open(flat, O_RDONLY);
        assert_int_equal(pread(fd, block, sizeof(block), 8 << 20), sizeof(block));
        assert_true(block[0] == 0xaa && block[4095] == 0xaa);
        assert_int_equal(pread(fd, block, sizeof(block), 1 << 20), sizeof(block));
        assert_true(block[0] == 0xbb && block[4095] == 0xbb);
        assert_int_equal(pread(fd, block, sizeof(block), 32 << 20), sizeof(block));
        assert_true(block[0] == 0xcc && block[4095] == 0xcc);
        assert_int_equal(lseek(fd, 0, SEEK_END), 64 << 20);
        assert_true(tree_allocated_bytes(flat) < 1 << 20);
        assert_int_equal(disk_flatten(chain, flat, &err), -EBUSY);
}

static void test_flatten_cleans_up(void **state)
{
        CLEANUP_FREE char *bad = in_dir("bad.qcow2"), *flat = in_dir("never.img");
        const char *const chain[] = {bad, NULL};
        struct error err = {};
        (void)state;

        assert_int_equal(file_write_atomic(bad, "no qcow2 at all", 15, 0600, NULL), 0);
        assert_true(disk_flatten(chain, flat, &err) < 0);
        assert_false(path_exists(flat));
        assert_non_null(strstr(err.message, "never.img"));
        assert_true(disk_flatten(&chain[1], flat, &err) < 0);
        assert_int_equal(disk_size(bad, &(uint64_t){0}, &err), -EIO);
}

#define MERGE_BYTES (16ULL << 20)

/* Writes of whole and of part clusters, zeros with and without unmapping, at places that a fixed seed chooses. */
static void scribble(const char *format, const char *image, unsigned *seed)
{
        const char *argv[64] = {"qemu-io", "-f", format};
        char text[24][64];
        size_t n = 3;

        for (size_t i = 0; i < 24; i++) {
                unsigned pattern = 1 + (unsigned)rand_r(seed) % 250, kind = (unsigned)rand_r(seed) % 4;
                unsigned at = (unsigned)rand_r(seed) % (MERGE_BYTES / 4096 - 64) * 4096, len = (1 + (unsigned)rand_r(seed) % 64) * 4096;

                if (kind < 2)
                        snprintf(text[i], sizeof(text[i]), "write -P %u %u %u", pattern, at, len);
                else
                        snprintf(text[i], sizeof(text[i]), "write %s %u %u", kind == 3 ? "-z -u" : "-z", at, len);
                argv[n++] = "-c";
                argv[n++] = text[i];
        }
        argv[n++] = image;
        free(output(argv));
}

static char *flattened(const char *const *chain, const char *to)
{
        CLEANUP_BUF struct buf data = {};
        struct error err = {};

        unlink(to);
        if (disk_flatten(chain, to, &err) < 0 || file_read(to, 2 * MERGE_BYTES, &data, &err) < 0)
                fail_msg("%s", err.message);
        assert_int_equal(data.len, MERGE_BYTES);
        return buf_steal(&data);
}

static void expect_same(const char *const *one, const char *const *other)
{
        CLEANUP_FREE char *flat = in_dir("same.img"), *a = flattened(one, flat), *b = flattened(other, flat);

        assert_memory_equal(a, b, MERGE_BYTES);
}

static void merge_round(unsigned seed)
{
        CLEANUP_FREE char *bottom = in_dir("m-bottom.img"), *lower = in_dir("m-lower.qcow2"), *upper = in_dir("m-upper.qcow2");
        CLEANUP_FREE char *merged = in_dir("merged.qcow2"), *blind = in_dir("blind.qcow2"), *raw = in_dir("merged.img");
        const char *const three[] = {bottom, lower, upper, NULL}, *const none[] = {NULL}, *const below[] = {bottom, NULL};
        const char *const all[] = {bottom, lower, upper, merged, blind, raw};
        CLEANUP_FREE char *text = NULL;
        uint64_t hidden, saved;
        struct error err = {};

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
                unlink(all[i]);
        assert_int_equal(file_write_atomic(bottom, "", 0, 0600, NULL), 0);
        assert_int_equal(truncate(bottom, MERGE_BYTES), 0);
        assert_int_equal(disk_overlay_create(lower, MERGE_BYTES, NULL), 0);
        assert_int_equal(disk_overlay_create(upper, MERGE_BYTES, NULL), 0);
        scribble("raw", bottom, &seed);
        /* An overlay alone reads as zeros below, so a part of a cluster is filled with zeros: right enough for its content. */
        scribble("qcow2", lower, &seed);
        scribble("qcow2", upper, &seed);
        if (disk_merge(below, lower, upper, merged, &err) < 0 || disk_merge(none, lower, upper, blind, &err) < 0 ||
            disk_merge(none, bottom, lower, raw, &err) < 0)
                fail_msg("%s", err.message);
        /* The merged image saves what is hidden, and its own metadata and clusters that were kept for zeroes. */
        if (disk_overlap(lower, upper, &hidden, &err) < 0)
                fail_msg("%s", err.message);
        saved = tree_allocated_bytes(lower) + tree_allocated_bytes(upper) - tree_allocated_bytes(merged);
        assert_true(hidden > 0 && saved >= hidden);
        expect_same(three, (const char *const[]){bottom, merged, NULL});
        expect_same(three, (const char *const[]){bottom, blind, NULL});
        expect_same(three, (const char *const[]){raw, upper, NULL});
        expect_same(three, (const char *const[]){bottom, lower, merged, NULL}); /* a build that still holds the old link of the lower */
        free(output((const char *const[]){"qemu-img", "check", "-q", "-f", "qcow2", merged, NULL}));
        text = output((const char *const[]){"qemu-img", "info", "-f", "qcow2", merged, NULL});
        assert_null(strstr(text, "backing"));
        assert_int_equal(disk_merge(below, lower, upper, merged, &err), -EBUSY);
}

static void test_merge_says_what_both_said(void **state)
{
        (void)state;
        for (unsigned seed = 1; seed <= 6; seed++)
                merge_round(seed);
}

static void test_merge_cleans_up(void **state)
{
        CLEANUP_FREE char *bad = in_dir("m-bad.qcow2"), *lower = in_dir("m-lower2.qcow2"), *to = in_dir("unmerged.qcow2");
        CLEANUP_FREE char *top = in_dir("unmerged.qcow2.upper.qcow2");
        const char *const none[] = {NULL};
        struct error err = {};

        (void)state;
        assert_int_equal(disk_overlay_create(lower, MERGE_BYTES, NULL), 0);
        assert_int_equal(file_write_atomic(bad, "no qcow2 at all", 15, 0600, NULL), 0);
        assert_true(disk_merge(none, lower, bad, to, &err) < 0);
        assert_false(path_exists(to) || path_exists(top));
        assert_non_null(strstr(err.message, "m-bad.qcow2"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ext4_is_clean_sparse_and_sized), cmocka_unit_test(test_ext4_refuses),
                cmocka_unit_test(test_overlay_is_valid), cmocka_unit_test(test_flatten_merges_and_leaves_holes),
                cmocka_unit_test(test_flatten_cleans_up), cmocka_unit_test(test_merge_says_what_both_said),
                cmocka_unit_test(test_merge_cleans_up),
        };

        return cmocka_run_group_tests(tests, setup, teardown);
}
