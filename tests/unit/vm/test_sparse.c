/* Zero pages become holes; everything else stays as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "vm/sparse.h"

#define PAGES 1000
#define PAGE 4096
#define EXTENT_TREE (64 << 10) /* many holes cost the file system some blocks of its own */

static int temporary(void)
{
        char path[] = "/tmp/vmon-test-sparse-XXXXXX";
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        unlink(path);
        return fd;
}

static uint64_t allocated(int fd)
{
        struct stat st;

        assert_int_equal(fsync(fd), 0); /* delayed allocation */
        assert_int_equal(fstat(fd, &st), 0);
        return (uint64_t)st.st_blocks * 512;
}

static void punch_and_compare(const char *data, size_t len, uint64_t zero_bytes)
{
        CLEANUP_CLOSE int fd = temporary();
        CLEANUP_FREE char *back = xmalloc(len);
        struct error err = {};
        uint64_t punched = 0, before;

        assert_int_equal(write(fd, data, len), len);
        before = allocated(fd);
        assert_int_equal(sparse_punch_zeros(fd, &punched, &err), 0);
        assert_int_equal(punched, zero_bytes);
        assert_true(before - allocated(fd) + EXTENT_TREE >= zero_bytes);
        assert_int_equal(pread(fd, back, len, 0), len);
        assert_memory_equal(data, back, len);
        assert_int_equal(sparse_punch_zeros(fd, &punched, &err), 0);
        assert_int_equal(punched, 0);
}

static void zero_pages_become_holes(void **state)
{
        CLEANUP_FREE char *data = xcalloc(PAGES, PAGE);
        uint64_t zeros = 0;

        (void)state;
        srandom(7);
        for (size_t i = 0; i < PAGES; i++)
                if (random() % 3)
                        zeros += PAGE;
                else
                        data[i * PAGE + (size_t)(random() % PAGE)] = 1;
        punch_and_compare(data, PAGES * (size_t)PAGE, zeros);
}

static void extremes(void **state)
{
        CLEANUP_FREE char *zeros = xcalloc(PAGES, PAGE), *ones = xmalloc(PAGES * (size_t)PAGE);

        (void)state;
        memset(ones, 1, PAGES * (size_t)PAGE);
        punch_and_compare(zeros, PAGES * (size_t)PAGE, PAGES * (uint64_t)PAGE);
        punch_and_compare(ones, PAGES * (size_t)PAGE, 0);
        punch_and_compare("x", 0, 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(zero_pages_become_holes), cmocka_unit_test(extremes)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
