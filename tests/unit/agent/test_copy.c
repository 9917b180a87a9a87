/* COPY steps: template-api 11.5 and known-failures D1. */
#include "copy_fixture.h"

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

/* 205, 209, D1.17: what is there already keeps owner, mode and the rest of its content. */
static void test_existing_targets(void **state)
{
        struct fixture *f = *state;

        mkdir(at(f, "etc"), 0755);
        mkdir(at(f, "tmp"), 0755);
        chmod(at(f, "tmp"), 01777);
        assert_int_equal(chown(at(f, "tmp"), 3, 4), 0);
        mkdir(at(f, "locked"), 0555);
        put(f, "etc/a.txt", "old");
        chmod(at(f, "etc/a.txt"), 0000);
        tar_file(&f->tar, "a.txt", 0644, "new");
        assert_int_equal(copy_as(f, "a.txt", "etc", "7:8", ""), 0);
        assert_content(f, "etc/a.txt", "new");
        assert_int_equal(look(f, "etc/a.txt").st_mode & 07777, 0644);
        tar_file(&f->tar, "a.txt", 0644, "foo");
        assert_int_equal(copy_as(f, "a.txt", "tmp/foo", "7:8", "0600"), 0);
        assert_int_equal(look(f, "tmp").st_mode & 07777, 01777);
        assert_int_equal(look(f, "tmp").st_uid, 3);
        assert_int_equal(look(f, "tmp").st_gid, 4);
        tar_file(&f->tar, "d/a.txt", 0644, "in");
        tar_dir(&f->tar, "d", 0700);
        assert_int_equal(copy_as(f, "d", "locked", "7:8", "0700"), 0);
        assert_content(f, "locked/a.txt", "in");
        assert_int_equal(look(f, "locked").st_mode & 07777, 0555);
        assert_int_equal(look(f, "locked").st_uid, 0);
        assert_int_equal(look(f, "locked/a.txt").st_uid, 7);
}

/* 204: parents that had to be made belong to root, what is copied to the owner. */
static void test_made_parents_belong_to_root(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(copy_as(f, "a", "p/q/b", "7:8", "0600"), 0);
        assert_int_equal(look(f, "p/q").st_uid, 0);
        assert_int_equal(look(f, "p/q").st_mode & 07777, 0755);
        assert_int_equal(look(f, "p/q/b").st_uid, 7);
        tar_file(&f->tar, "s/sub/a", 0644, "1"); /* no entries of s and s/sub */
        assert_int_equal(copy_as(f, "s", "m/n", "7:8", ""), 0);
        assert_int_equal(look(f, "m").st_uid, 0);
        assert_int_equal(look(f, "m/n").st_uid, 7);
        assert_int_equal(look(f, "m/n/sub").st_uid, 7);
        assert_int_equal(look(f, "m/n/sub").st_mode & 07777, 0755);
}

/* D1.14, D1.16: components that are links are written through and stay. */
static void test_linked_components(void **state)
{
        struct fixture *f = *state;

        mkdir(at(f, "origin"), 0755);
        mkdir(at(f, "usr"), 0755);
        mkdir(at(f, "usr/bin"), 0755);
        assert_int_equal(symlink("origin", at(f, "link")), 0);
        assert_int_equal(symlink("usr/bin", at(f, "bin")), 0);
        tar_file(&f->tar, "d/x", 0644, "1");
        assert_int_equal(copy(f, "d", "link/d1/d2/"), 0);
        assert_content(f, "origin/d1/d2/x", "1");
        tar_file(&f->tar, "d/x", 0644, "2");
        assert_int_equal(copy(f, "d", "link"), 0);
        assert_content(f, "origin/x", "2");
        tar_dir(&f->tar, "rootfs/bin", 0700);
        tar_file(&f->tar, "rootfs/bin/foo.sh", 0755, "3");
        assert_int_equal(copy(f, "rootfs/", ""), 0);
        assert_content(f, "usr/bin/foo.sh", "3");
        tar_file(&f->tar, "a", 0644, "4");
        assert_int_equal(copy(f, "a", "bin"), 0);
        assert_content(f, "usr/bin/a", "4");
        assert_true(S_ISLNK(look(f, "link").st_mode) && S_ISLNK(look(f, "bin").st_mode));
        assert_int_equal(look(f, "usr/bin").st_mode & 07777, 0755);
}

/* 210, D1.4: a link as target is replaced and what it pointed at stays. */
static void test_link_as_target(void **state)
{
        struct fixture *f = *state;

        put(f, "passwd", "original");
        assert_int_equal(symlink("passwd", at(f, "to-file")), 0);
        assert_int_equal(symlink("nowhere", at(f, "dangling")), 0);
        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(copy_as(f, "a", "to-file", "7:8", "0600"), 0);
        tar_file(&f->tar, "a", 0644, "2");
        assert_int_equal(copy(f, "a", "dangling"), 0);
        assert_content(f, "passwd", "original");
        assert_int_equal(look(f, "passwd").st_mode & 07777, 0644);
        assert_content(f, "to-file", "1");
        assert_content(f, "dangling", "2");
        assert_int_equal(access(at(f, "nowhere"), F_OK), -1);
        tar_symlink(&f->tar, "l", "passwd");
        assert_int_equal(copy_as(f, "l", "new/", "7:8", "0600"), 0);
        assert_true(S_ISLNK(look(f, "new/l").st_mode));
        assert_int_equal(look(f, "new/l").st_uid, 7);
}

/* Targets that name a directory without a trailing slash, and the archive's root as source. */
static void test_dots(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(copy(f, "./a", "one/."), 0);
        assert_content(f, "one/a", "1");
        tar_dir(&f->tar, "./", 0700);
        tar_file(&f->tar, ".hidden", 0644, "2");
        tar_file(&f->tar, "sub/.gitignore", 0644, "3");
        assert_int_equal(copy(f, ".", "two/."), 0);
        assert_content(f, "two/.hidden", "2");
        assert_content(f, "two/sub/.gitignore", "3");
        tar_dir(&f->tar, ".", 0755);
        tar_file(&f->tar, "x", 0644, "4");
        assert_int_equal(copy(f, "./", "one/../three//"), 0);
        assert_content(f, "three/x", "4");
}

/* Source mapping of 11.5: the directory before the first component with a glob character. */
static void test_sources_are_mapped(void **state)
{
        static const struct {
                const char *source, *mapped;
        } cases[] = {
                {"a", "a"}, {"a/", "a"}, {"./a//b/", "a/b"}, {".", ""}, {"*", ""}, {"*.txt", ""}, {"src/*.py", "src"},
                {"src/**/x", "src"}, {"a/b?/c", "a"}, {"a/{b,c}", "a"}, {"a/[bc]/d", "a"}, {"ab*/c", ""},
        };
        char out[4096];

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                assert_int_equal(copy_map_source(cases[i].source, out), 0);
                assert_string_equal(out, cases[i].mapped);
        }
        assert_true(copy_map_source("../a", out) < 0);
}

/* A target on another file system is copied to, with all that a rename would keep, and said to be there. */
static void test_other_file_systems(void **state)
{
        struct fixture *f = *state;
        char dir[] = "/dev/shm/test-copy-XXXXXX", path[64];
        struct stat st, root;

        if (stat("/", &root) < 0 || stat("/dev/shm", &st) < 0 || st.st_dev == root.st_dev)
                skip();
        assert_non_null(mkdtemp(dir));
        tar_file(&f->tar, "d/a", 04750, "content");
        tar_symlink(&f->tar, "d/l", "a");
        tar_dir(&f->tar, "d/sub", 0711);
        assert_int_equal(copy_as(f, "d", dir, "7:8", ""), 0);
        assert_true(f->result.elsewhere);
        snprintf(path, sizeof(path), "%s/a", dir);
        assert_int_equal(lstat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 04750);
        assert_int_equal(st.st_uid, 7);
        assert_int_equal(st.st_size, 7);
        assert_int_equal(st.st_mtime, 1000000000);
        snprintf(path, sizeof(path), "%s/l", dir);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISLNK(st.st_mode));
        assert_int_equal(st.st_uid, 7);
        tree_remove(dir, NULL);
        tar_file(&f->tar, "a", 0644, "1");
        assert_int_equal(copy(f, "a", "here"), 0);
        assert_false(f->result.elsewhere);
}

/* Where nothing can be written: one line that names the place. */
static void test_no_way_to_write(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "a", 0644, "1");
        assert_true(copy(f, "a", "/proc/vmon/a") < 0);
        assert_non_null(strstr(f->err.message, "/proc/vmon"));
        assert_null(strchr(f->err.message, '\n'));
        put(f, "file", "x");
        tar_file(&f->tar, "a", 0644, "1");
        assert_true(copy(f, "a", "file/a") < 0);
        assert_non_null(strstr(f->err.message, "file"));
        tar_file(&f->tar, "a", 0644, "1");
        assert_true(copy_as(f, "a", "out", "root:no-such-group", "") < 0);
        assert_non_null(strstr(f->err.message, "group 'no-such-group' does not exist"));
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

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(test_file_targets), T(test_directory_merges), T(test_links_of_the_target),
                T(test_owner_and_mode_spare_links), T(test_globs), T(test_refused), T(test_conflicts_are_errors),
                T(test_existing_targets), T(test_made_parents_belong_to_root), T(test_linked_components),
                T(test_link_as_target), T(test_other_file_systems), T(test_no_way_to_write), T(test_dots), T(test_sources_are_mapped),
        };

        if (geteuid() != 0) {
                print_message("skipped: owners need root\n");
                return 77;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
