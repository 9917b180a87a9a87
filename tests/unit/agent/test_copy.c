/* COPY steps: template-api 11.5 and known-failures D1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/copy.h"
#include "base/file.h"
#include "tarmaker.h"

struct fixture {
        char dir[64], archive[128];
        struct tarmaker tar;
        struct error err;
};

static int setup(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));

        snprintf(f->dir, sizeof(f->dir), "/tmp/test-copy-XXXXXX");
        if (!mkdtemp(f->dir))
                return -1;
        snprintf(f->archive, sizeof(f->archive), "%s/context.tar", f->dir);
        tar_begin(&f->tar);
        *state = f;
        return 0;
}

static int teardown(void **state)
{
        struct fixture *f = *state;

        tar_end(&f->tar);
        tree_remove(f->dir, NULL);
        free(f);
        return 0;
}

static char *at(struct fixture *f, const char *name)
{
        static char path[4][4400];
        static unsigned turn;

        turn = (turn + 1) % 4;
        snprintf(path[turn], sizeof(path[turn]), "%s/%s", f->dir, name);
        return path[turn];
}

static int copy_as(struct fixture *f, const char *source, const char *target, const char *owner, const char *mode)
{
        struct copy_request c = { f->archive, source, at(f, target), owner, mode };
        struct copy_result result;
        FILE *out;
        int r;

        tar_end(&f->tar);
        out = fopen(f->archive, "w");
        fwrite(f->tar.data, 1, f->tar.len, out);
        fclose(out);
        r = copy_from_archive(&c, &result, &f->err);
        tar_begin(&f->tar);
        return r;
}

static int copy(struct fixture *f, const char *source, const char *target)
{
        return copy_as(f, source, target, "root:root", "");
}

static struct stat look(struct fixture *f, const char *name)
{
        struct stat st = {};

        if (lstat(at(f, name), &st) < 0)
                st.st_mode = 0;
        return st;
}

static void put(struct fixture *f, const char *name, const char *text)
{
        assert_int_equal(file_write_atomic(at(f, name), text, strlen(text), 0644, NULL), 0);
}

static void assert_content(struct fixture *f, const char *name, const char *wanted)
{
        struct buf b = {};

        assert_int_equal(file_read(at(f, name), 1 << 20, &b, NULL), 0);
        assert_string_equal(buf_str(&b), wanted);
        buf_free(&b);
}

static void test_file_targets(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "a.txt", 0640, "a");
        assert_int_equal(copy(f, "a.txt", "new/"), 0);
        assert_content(f, "new/a.txt", "a");
        assert_int_equal(look(f, "new/a.txt").st_mode & 07777, 0640);
        tar_file(&f->tar, "a.txt", 0640, "b");
        assert_int_equal(copy(f, "a.txt", "new"), 0);
        assert_content(f, "new/a.txt", "b");
        tar_file(&f->tar, "a.txt", 0640, "c");
        assert_int_equal(copy(f, "a.txt", "deep/er/b.txt"), 0);
        assert_content(f, "deep/er/b.txt", "c");
        assert_int_equal(look(f, "deep/er").st_mode & 07777, 0755);
}

static void test_directory_merges(void **state)
{
        struct fixture *f = *state;

        mkdir(at(f, "app"), 01777);
        chmod(at(f, "app"), 01777);
        mkdir(at(f, "app/sub"), 0700);
        put(f, "app/keep", "kept");
        put(f, "app/sub/old", "old");
        tar_file(&f->tar, "src/.env", 0600, "dot");
        tar_file(&f->tar, "src/sub/old", 0644, "new");
        tar_dir(&f->tar, "src/empty", 0750);
        assert_int_equal(copy(f, "src/", "app"), 0);
        assert_content(f, "app/keep", "kept");
        assert_content(f, "app/.env", "dot");
        assert_content(f, "app/sub/old", "new");
        assert_int_equal(look(f, "app/empty").st_mode & 07777, 0750);
        assert_int_equal(look(f, "app").st_mode & 07777, 01777);
        assert_int_equal(look(f, "app/sub").st_mode & 07777, 0700);
}

static void test_links_of_the_target(void **state)
{
        struct fixture *f = *state;

        mkdir(at(f, "usr"), 0755);
        assert_int_equal(symlink("usr", at(f, "lib")), 0);
        put(f, "pointed", "untouched");
        assert_int_equal(symlink("pointed", at(f, "link")), 0);
        tar_file(&f->tar, "r/lib/x", 0644, "x");
        tar_file(&f->tar, "r/link", 0644, "replaced");
        assert_int_equal(copy(f, "r", ""), 0);
        assert_content(f, "usr/x", "x");
        assert_true(S_ISLNK(look(f, "lib").st_mode));
        assert_content(f, "pointed", "untouched");
        assert_true(S_ISREG(look(f, "link").st_mode));
}

static void test_owner_and_mode_spare_links(void **state)
{
        struct fixture *f = *state;

        put(f, "victim", "v");
        tar_symlink(&f->tar, "d/link", at(f, "victim"));
        tar_file(&f->tar, "d/in/file", 0644, "x");
        assert_int_equal(copy_as(f, "d", "out", "7:8", "0601"), 0);
        assert_int_equal(look(f, "victim").st_mode & 07777, 0644);
        assert_int_equal(look(f, "victim").st_uid, 0);
        assert_int_equal(look(f, "out/link").st_uid, 7);
        assert_int_equal(look(f, "out/in/file").st_uid, 7);
        assert_int_equal(look(f, "out/in/file").st_gid, 8);
        assert_int_equal(look(f, "out/in/file").st_mode & 07777, 0601);
        assert_int_equal(look(f, "out/in").st_mode & 07777, 0601);
        assert_int_equal(look(f, "out/in").st_uid, 7);
}

static void test_globs(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "src/one.py", 0644, "1");
        assert_int_equal(copy(f, "src/*.py", "lib/"), 0);
        assert_content(f, "lib/one.py", "1");
        tar_file(&f->tar, "x.txt", 0644, "2");
        tar_hardlink(&f->tar, "y.txt", "x.txt");
        assert_int_equal(copy(f, "*.txt", "all"), 0);
        assert_content(f, "all/y.txt", "2");
        assert_int_equal(look(f, "all/x.txt").st_nlink, 2);
}

static void test_refused(void **state)
{
        static const char *const bad[] = { "../evil", "/etc/evil", "a/../../evil", "a/../b" };
        struct fixture *f = *state;

        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                tar_file(&f->tar, "ok", 0644, "1");
                tar_file(&f->tar, bad[i], 0644, "1");
                assert_int_equal(copy(f, ".", "out"), -EINVAL);
                assert_int_equal(look(f, "out").st_mode, 0);
        }
        tar_symlink(&f->tar, "x", "/tmp");
        tar_file(&f->tar, "x/test-copy-escaped", 0644, "1");
        assert_true(copy(f, ".", "out") < 0);
        assert_int_not_equal(access("/tmp/test-copy-escaped", F_OK), 0);
        tar_put(&f->tar, tar_entry("dev", AE_IFCHR, 0600), NULL);
        assert_int_equal(copy(f, ".", "out"), -EINVAL);
        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(copy(f, "missing", "out"), -EINVAL);
        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(copy_as(f, "a", "out", "nobody-such:root", ""), -EINVAL);
        assert_non_null(strstr(f->err.message, "nobody-such"));
        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(copy_as(f, "a", "out", "root:root", "9z"), -EINVAL);
}

static void test_conflicts_are_errors(void **state)
{
        struct fixture *f = *state;

        mkdir(at(f, "out"), 0755);
        put(f, "out/sub", "a file");
        tar_file(&f->tar, "s/sub/x", 0644, "1");
        assert_true(copy(f, "s", "out") < 0);
        mkdir(at(f, "out/dir"), 0755);
        tar_file(&f->tar, "s/dir", 0644, "1");
        assert_true(copy(f, "s", "out") < 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(test_file_targets), T(test_directory_merges), T(test_links_of_the_target),
                T(test_owner_and_mode_spare_links), T(test_globs), T(test_refused), T(test_conflicts_are_errors),
        };

        if (geteuid() != 0) {
                print_message("skipped: owners need root\n");
                return 77;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
