/* Layers onto a directory: known-failures D5, item by item. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "agent/layer.h"
#include "base/buf.h"
#include "base/file.h"
#include "tarmaker.h"

struct fixture {
        char root[64];
        struct tarmaker tar;
        bool first;
};

static int setup(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));

        snprintf(f->root, sizeof(f->root), "/tmp/test-layer-XXXXXX");
        if (!mkdtemp(f->root))
                return -1;
        f->first = true;
        tar_begin(&f->tar);
        *state = f;
        return 0;
}

static int teardown(void **state)
{
        struct fixture *f = *state;

        tar_end(&f->tar);
        tree_remove(f->root, NULL);
        free(f);
        return 0;
}

/* Ends the tar under construction, applies it as the next layer and begins another. */
static int apply(struct fixture *f)
{
        struct layer_stats stats = {};
        struct error err = {};
        int r;

        tar_end(&f->tar);
        r = layer_apply_memory(f->tar.data, f->tar.len, f->root, f->first, &stats, &err);
        f->first = false;
        if (r < 0)
                print_message("%s\n", err.message);
        tar_begin(&f->tar);
        return r;
}

static struct stat look(struct fixture *f, const char *name)
{
        char path[4200];
        struct stat st = {};

        snprintf(path, sizeof(path), "%s/%s", f->root, name);
        if (lstat(path, &st) < 0)
                st.st_nlink = 0;
        return st;
}

static bool exists(struct fixture *f, const char *name)
{
        return look(f, name).st_nlink > 0;
}

static void assert_content(struct fixture *f, const char *name, const char *wanted)
{
        char path[4200];
        struct buf b = {};

        snprintf(path, sizeof(path), "%s/%s", f->root, name);
        assert_int_equal(file_read(path, 1 << 20, &b, NULL), 0);
        assert_string_equal(buf_str(&b), wanted);
        buf_free(&b);
}

static void test_opaque(void **state, bool marker_first)
{
        struct fixture *f = *state;

        tar_dir(&f->tar, "d", 0755);
        tar_file(&f->tar, "d/lower", 0644, "x");
        assert_int_equal(apply(f), 0);
        if (marker_first)
                tar_file(&f->tar, "d/.wh..wh..opq", 0644, "");
        tar_file(&f->tar, "d/upper", 0644, "y");
        if (!marker_first)
                tar_file(&f->tar, "d/.wh..wh..opq", 0644, "");
        assert_int_equal(apply(f), 0);
        assert_false(exists(f, "d/lower"));
        assert_content(f, "d/upper", "y");
        assert_false(exists(f, "d/.wh..wh..opq"));
}

static void test_opaque_before(void **state)
{
        test_opaque(state, true);
}

static void test_opaque_after(void **state)
{
        test_opaque(state, false);
}

static void test_opaque_behind_link(void **state)
{
        struct fixture *f = *state;

        tar_dir(&f->tar, "real", 0755);
        tar_file(&f->tar, "real/keep", 0644, "k");
        tar_symlink(&f->tar, "d", "real");
        assert_int_equal(apply(f), 0);
        tar_dir(&f->tar, "d", 0755);
        tar_file(&f->tar, "d/.wh..wh..opq", 0644, "");
        tar_file(&f->tar, "d/new", 0644, "n");
        assert_int_equal(apply(f), 0);
        assert_content(f, "real/keep", "k");
        assert_true(S_ISDIR(look(f, "d").st_mode));
        assert_content(f, "d/new", "n");
}

static void test_whiteout(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "a", 0644, "1");
        tar_file(&f->tar, "t/x/y", 0644, "2");
        tar_file(&f->tar, "again", 0644, "old");
        assert_int_equal(apply(f), 0);
        tar_file(&f->tar, ".wh.a", 0644, "");
        tar_file(&f->tar, "t/.wh.x", 0644, "");
        tar_file(&f->tar, "again", 0644, "new");
        tar_file(&f->tar, ".wh.again", 0644, "");
        tar_file(&f->tar, ".wh.missing", 0644, "");
        assert_int_equal(apply(f), 0);
        assert_false(exists(f, "a"));
        assert_false(exists(f, "t/x"));
        assert_true(exists(f, "t"));
        assert_content(f, "again", "new");
}

static void test_device_whiteout(void **state)
{
        struct fixture *f = *state;
        struct archive_entry *e = tar_entry("a", AE_IFCHR, 0);

        tar_end(&f->tar);
        tar_begin(&f->tar);
        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(apply(f), 0);
        archive_entry_set_rdev(e, 0);
        tar_put(&f->tar, e, NULL);
        assert_int_equal(apply(f), 0);
        assert_false(exists(f, "a"));
}

static void test_hard_links(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "bin/one", 0755, "code");
        tar_hardlink(&f->tar, "bin/two", "bin/one");
        tar_hardlink(&f->tar, "deep/er/three", "./bin/one");
        assert_int_equal(apply(f), 0);
        assert_int_equal(look(f, "deep/er/three").st_nlink, 3);
        assert_int_equal(look(f, "deep/er").st_mode & 07777, 0755);
        tar_file(&f->tar, "bin/one", 0755, "changed");
        assert_int_equal(apply(f), 0);
        assert_content(f, "bin/two", "code");
        assert_content(f, "bin/one", "changed");
        tar_hardlink(&f->tar, "none", "no/such");
        assert_true(apply(f) < 0);
}

static void test_hard_link_to_itself_through_link(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "usr/bin/x", 0755, "x");
        tar_symlink(&f->tar, "bin", "usr/bin");
        tar_hardlink(&f->tar, "bin/x", "usr/bin/x");
        assert_int_equal(apply(f), 0);
        assert_content(f, "usr/bin/x", "x");
}

static void test_replaced_types(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "a/b", 0644, "1");
        tar_file(&f->tar, "file", 0644, "1");
        tar_dir(&f->tar, "target", 0755);
        tar_symlink(&f->tar, "link", "target");
        assert_int_equal(apply(f), 0);
        tar_file(&f->tar, "a/b", 0644, "2");
        tar_file(&f->tar, "a", 0644, "now a file");
        tar_dir(&f->tar, "file", 0700);
        tar_file(&f->tar, "file/in", 0644, "3");
        tar_file(&f->tar, "link/through", 0644, "4");
        assert_int_equal(apply(f), 0);
        assert_content(f, "a", "now a file");
        assert_content(f, "target/through", "4");
        assert_content(f, "file/in", "3");
        assert_int_equal(look(f, "file").st_mode & 07777, 0700);
}

static void test_duplicates(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "a", 0644, "1");
        tar_dir(&f->tar, "d", 0755);
        tar_file(&f->tar, "d/x", 0644, "1");
        tar_file(&f->tar, "a", 0600, "2");
        tar_symlink(&f->tar, "d/x", "../a");
        assert_int_equal(apply(f), 0);
        assert_content(f, "a", "2");
        assert_true(S_ISLNK(look(f, "d/x").st_mode));
}

static void test_modes(void **state)
{
        struct fixture *f = *state;
        struct archive_entry *e = tar_entry("su", AE_IFREG, 04755);

        archive_entry_set_uid(e, 7);
        archive_entry_set_gid(e, 8);
        tar_put(&f->tar, e, "s");
        tar_file(&f->tar, "etc/gshadow", 0000, "1");
        tar_dir(&f->tar, "tmp", 01777);
        tar_file(&f->tar, "tmp/first", 0644, "1");
        assert_int_equal(apply(f), 0);
        assert_int_equal(look(f, "tmp").st_mtime, 1000000000);
        tar_file(&f->tar, "etc/gshadow", 0000, "2");
        tar_file(&f->tar, "tmp/in", 0644, "2");
        assert_int_equal(apply(f), 0);
        assert_int_equal(look(f, "su").st_mode & 07777, 04755);
        assert_int_equal(look(f, "su").st_uid, 7);
        assert_int_equal(look(f, "su").st_gid, 8);
        assert_int_equal(look(f, "tmp").st_mode & 07777, 01777);
        assert_content(f, "etc/gshadow", "2");
}

static void test_confinement(void **state)
{
        struct fixture *f = *state;

        unlink("/tmp/test-layer-escaped");
        tar_symlink(&f->tar, "x", "/");
        tar_file(&f->tar, "x/tmp/test-layer-escaped", 0644, "1");
        tar_symlink(&f->tar, "up", "../../../../..");
        tar_file(&f->tar, "up/tmp/test-layer-escaped2", 0644, "1");
        tar_symlink(&f->tar, "nix", "../../../../etc/environment");
        assert_int_equal(apply(f), 0);
        assert_int_not_equal(access("/tmp/test-layer-escaped", F_OK), 0);
        assert_true(exists(f, "tmp/test-layer-escaped"));
        assert_true(exists(f, "tmp/test-layer-escaped2"));
        tar_file(&f->tar, "../../tmp/test-layer-escaped", 0644, "1");
        assert_int_equal(apply(f), -EINVAL);
}

static void test_dangling_parent(void **state)
{
        struct fixture *f = *state;

        tar_symlink(&f->tar, "lib", "usr/lib");
        tar_file(&f->tar, "lib/modules/x", 0644, "1");
        tar_symlink(&f->tar, "loop", "loop");
        assert_int_equal(apply(f), 0);
        assert_content(f, "usr/lib/modules/x", "1");
        assert_true(S_ISLNK(look(f, "lib").st_mode));
        tar_file(&f->tar, "loop/x", 0644, "1");
        assert_true(apply(f) < 0);
}

static void test_xattrs_and_names(void **state)
{
        struct fixture *f = *state;
        struct archive_entry *e = tar_entry("f", AE_IFREG, 0644);
        char path[128], value[16] = "";

        archive_entry_xattr_add_entry(e, "user.test", "v", 1);
        tar_put(&f->tar, e, "x");
        tar_file(&f->tar, "имя/файл", 0644, "u");
        assert_int_equal(apply(f), 0);
        assert_content(f, "имя/файл", "u");
        snprintf(path, sizeof(path), "%s/f", f->root);
        /* tmpfs of old kernels has no user attributes */
        if (lgetxattr(path, "user.test", value, sizeof(value)) > 0)
                assert_string_equal(value, "v");
}

static void test_truncated(void **state)
{
        struct fixture *f = *state;
        struct layer_stats stats = {};

        tar_file(&f->tar, "a", 0644, "some content");
        tar_end(&f->tar);
        assert_true(layer_apply_memory(f->tar.data, 520, f->root, true, &stats, NULL) < 0);
        tar_begin(&f->tar);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(test_opaque_before), T(test_opaque_after), T(test_opaque_behind_link), T(test_whiteout),
                T(test_device_whiteout), T(test_hard_links), T(test_hard_link_to_itself_through_link),
                T(test_replaced_types), T(test_duplicates), T(test_modes), T(test_confinement),
                T(test_dangling_parent), T(test_xattrs_and_names), T(test_truncated),
        };

        if (geteuid() != 0) {
                print_message("skipped: owners and devices need root\n");
                return 77;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
