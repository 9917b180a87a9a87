#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/bare.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"

static char root[64];

static int setup(void **state)
{
        (void)state;
        snprintf(root, sizeof(root), "/tmp/test-bare-XXXXXX");
        return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
        (void)state;
        return tree_remove(root, NULL);
}

static void assert_file(const char *name, const char *expected)
{
        CLEANUP_FREE char *path = path_join(root, name);
        CLEANUP_BUF struct buf text = {};

        assert_int_equal(file_read(path, 1 << 16, &text, NULL), 0);
        assert_string_equal(buf_str(&text), expected);
}

static void put(const char *name, const char *text)
{
        CLEANUP_FREE char *path = path_join(root, name), *etc = path_join(root, "etc");

        mkdir(etc, 0755);
        assert_int_equal(file_write_atomic(path, text, strlen(text), 0644, NULL), 0);
}

static void assert_mode(const char *name, mode_t mode)
{
        CLEANUP_FREE char *path = path_join(root, name);
        struct stat st;

        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, mode);
}

static void test_empty(void **state)
{
        struct error err;

        (void)state;
        for (int again = 0; again < 2; again++) {
                assert_int_equal(bare_set_up(root, &(struct bare_ids){"t1", "b1"}, &err), 0);
                assert_file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n");
                assert_file("etc/group", "root:x:0:\nuser:x:1000:\n");
                assert_file(".e2b", "ENV_ID=t1\nTEMPLATE_ID=t1\nBUILD_ID=b1\n");
        }
        assert_mode("tmp", 01777);
        assert_mode("code", 0777);
        assert_mode("usr/local", 0777);
}

static void test_accounts_only(void **state)
{
        CLEANUP_FREE char *mark = path_join(root, ".e2b");
        struct error err;

        (void)state;
        assert_int_equal(bare_set_up(root, &(struct bare_ids){}, &err), 0);
        assert_false(path_exists(mark));
}

/* Numbers that the image uses, a last line without an end, a user of the image's own. */
static void test_existing(void **state)
{
        struct error err;

        (void)state;
        put("etc/passwd", "app:x:1000:1000::/app:/app\nusers:x:7:7::/:/x");
        put("etc/group", "app:x:1001:");
        assert_int_equal(bare_set_up(root, &(struct bare_ids){}, &err), 0);
        assert_file("etc/passwd", "app:x:1000:1000::/app:/app\nusers:x:7:7::/:/x\nroot:x:0:0:root:/root:/bin/sh\n"
                                  "user:x:1002:1002::/home/user:/bin/sh\n");
        assert_file("etc/group", "app:x:1001:\nroot:x:0:\nuser:x:1002:\n");
        put("etc/passwd", "root:x:0:0::/:/\nuser:x:50:60::/srv:/app\n");
        put("etc/group", "root:x:0:\nuser:x:60:\n");
        assert_int_equal(bare_set_up(root, &(struct bare_ids){}, &err), 0);
        assert_file("etc/passwd", "root:x:0:0::/:/\nuser:x:50:60::/srv:/app\n");
        assert_file("etc/group", "root:x:0:\nuser:x:60:\n");
}

static void test_too_large(void **state)
{
        CLEANUP_FREE char *big = calloc(1, (1 << 20) + 2);
        struct error err;

        (void)state;
        memset(big, 'x', (1 << 20) + 1);
        put("etc/passwd", big);
        assert_true(bare_set_up(root, &(struct bare_ids){}, &err) < 0);
        assert_int_equal(err.kind, ERROR_LIMIT);
}

static void test_shell(void **state)
{
        CLEANUP_FREE char *bin = path_join(root, "bin"), *sh = path_join(root, "bin/sh");

        (void)state;
        assert_false(bare_has_shell(root));
        mkdir(bin, 0755);
        assert_int_equal(file_write_atomic(sh, "x", 1, 0644, NULL), 0);
        assert_false(bare_has_shell(root));
        chmod(sh, 0755);
        assert_true(bare_has_shell(root));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_empty, setup, teardown),
                cmocka_unit_test_setup_teardown(test_accounts_only, setup, teardown),
                cmocka_unit_test_setup_teardown(test_existing, setup, teardown),
                cmocka_unit_test_setup_teardown(test_too_large, setup, teardown),
                cmocka_unit_test_setup_teardown(test_shell, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
