#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

static char dir[] = "/tmp/vmon-test-file.XXXXXX";

static const char *at(const char *name)
{
        static char path[4096];

        snprintf(path, sizeof(path), "%s/%s", dir, name);
        return path;
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

static void publishes(void **state)
{
        CLEANUP_BUF struct buf b = {};
        struct error err;
        struct stat st;

        (void)state;
        assert_int_equal(file_write_atomic(at("f"), "one", 3, 0600, &err), 0);
        assert_int_equal(file_write_atomic(at("f"), "second", 6, 0600, &err), 0);
        assert_int_equal(file_read(at("f"), 100, &b, &err), 0);
        assert_string_equal(b.data, "second");
        assert_int_equal(stat(at("f"), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_true(file_read(at("f"), 5, &b, &err) < 0);
        assert_int_equal(err.kind, ERROR_LIMIT);
        assert_true(file_read(at("none"), 5, &b, &err) < 0);
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        assert_true(file_write_atomic(at("no/such/dir"), "x", 1, 0600, &err) < 0);
}

static void makes_and_removes_trees(void **state)
{
        struct error err;

        (void)state;
        assert_int_equal(dir_make(at("a/b/c"), 0755, &err), 0);
        assert_int_equal(dir_make(at("a/b/c"), 0755, &err), 0);
        assert_int_equal(file_write_atomic(at("a/b/f"), "x", 1, 0600, &err), 0);
        assert_int_equal(symlink("/etc", at("a/link")), 0);
        assert_int_equal(tree_remove(at("a"), &err), 0);
        assert_false(path_exists(at("a")));
        assert_true(path_exists("/etc/passwd"));
        assert_int_equal(tree_remove(at("a"), &err), 0);
        assert_int_equal(file_write_atomic(at("plain"), "x", 1, 0600, &err), 0);
        assert_true(dir_make(at("plain/x"), 0755, &err) < 0);
}

static void copies_sparsely(void **state)
{
        char block[4096], back[4096];
        struct error err;
        struct stat st;
        int from, to;

        (void)state;
        memset(block, 7, sizeof(block));
        from = open(at("from"), O_RDWR | O_CREAT, 0600);
        to = open(at("to"), O_RDWR | O_CREAT, 0600);
        assert_true(from >= 0 && to >= 0);
        assert_int_equal(ftruncate(from, 64 << 20), 0);
        assert_int_equal(pwrite(from, block, sizeof(block), 32 << 20), sizeof(block));
        assert_int_equal(fd_copy_sparse(from, to, &err), 0);
        assert_int_equal(fstat(to, &st), 0);
        assert_int_equal(st.st_size, 64 << 20);
        assert_true(st.st_blocks * 512 < 1 << 20);
        assert_int_equal(pread(to, back, sizeof(back), 32 << 20), sizeof(back));
        assert_memory_equal(block, back, sizeof(back));
        assert_true(tree_allocated_bytes(at("to")) >= 4096);
        close(from);
        close(to);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(publishes), cmocka_unit_test(makes_and_removes_trees),
                                           cmocka_unit_test(copies_sparsely)};

        return cmocka_run_group_tests(tests, setup, teardown);
}
