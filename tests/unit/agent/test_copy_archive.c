/* The archives of COPY steps: what SDKs make, what is cut or damaged, and what is meant to do harm (template-api 6.3, 212-214,
 * known-failures D1 8, 13, 20). */
#include "copy_fixture.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <zlib.h>

#include "agent/context-archive.h"

/* Packs `len` bytes of f->tar.data in place; the number of packed bytes. */
static size_t gzip(struct fixture *f, size_t len)
{
        z_stream z = {.next_in = (unsigned char *)f->tar.data, .avail_in = (unsigned)len};
        unsigned char *out = malloc(len + 4096);

        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_out = out;
        z.avail_out = (unsigned)len + 4096;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        memcpy(f->tar.data, out, z.total_out);
        free(out);
        deflateEnd(&z);
        return z.total_out;
}

static size_t two_files(struct fixture *f)
{
        tar_file(&f->tar, "d/a", 0644, "first");
        tar_file(&f->tar, "d/b", 0644, "second");
        return finish_tar(f);
}

static void test_213_plain_and_packed(void **state)
{
        struct fixture *f = *state;
        size_t len = two_files(f);

        write_archive(f, len);
        assert_int_equal(copy(f, "d", "plain"), 0);
        assert_content(f, "plain/b", "second");
        len = two_files(f);
        write_archive(f, gzip(f, len));
        assert_int_equal(copy(f, "d", "packed"), 0);
        assert_content(f, "packed/b", "second");
}

/* Every cut, wherever it falls, and nothing at the target. */
static void test_D1_20_cut_archives(void **state)
{
        struct fixture *f = *state;

        for (int packed = 0; packed < 2; packed++) {
                size_t len = two_files(f);

                if (packed)
                        len = gzip(f, len);
                for (size_t cut = 1; cut < len; cut += cut < 40 ? 1 : 97) {
                        write_archive(f, len - cut);
                        f->tar.a = NULL;
                        struct copy_request c = {f->archive, "d", at(f, "out"), "root:root", ""};
                        struct copy_result result;

                        /* The records behind the end mark may be missing: some writers make none. */
                        if (!packed && copy_from_archive(&c, &result, &f->err) >= 0) {
                                assert_int_equal((len - cut) % 512, 0);
                                assert_content(f, "out/b", "second");
                                tree_remove(at(f, "out"), NULL);
                                continue;
                        }
                        if (packed)
                                assert_int_equal(copy_from_archive(&c, &result, &f->err), -EINVAL);
                        assert_int_equal(look(f, "out").st_mode, 0);
                }
                write_archive(f, 0);
                struct copy_request c = {f->archive, "d", at(f, "out"), "root:root", ""};
                struct copy_result result;

                assert_int_equal(copy_from_archive(&c, &result, &f->err), -EINVAL);
                assert_non_null(strstr(f->err.message, "empty"));
                tar_begin(&f->tar);
        }
}

static void test_damaged_archives(void **state)
{
        struct fixture *f = *state;
        size_t len = two_files(f);

        len = gzip(f, len);
        f->tar.data[len - 6] ^= 1; /* the checksum */
        write_archive(f, len);
        assert_int_equal(copy(f, "d", "out"), -EINVAL);
        assert_non_null(strstr(f->err.message, "incorrect data check"));
        len = two_files(f);
        memset(f->tar.data, 'x', len);
        write_archive(f, len);
        assert_int_equal(copy(f, "d", "out"), -EINVAL);
        len = two_files(f);
        f->tar.data[len - 1] = 'x';
        write_archive(f, len);
        assert_int_equal(copy(f, "d", "out"), -EINVAL);
        assert_int_equal(look(f, "out").st_mode, 0);
}

static void test_padding_is_bounded(void **state)
{
        struct fixture *f = *state;
        size_t len = two_files(f);
        gzFile out = gzopen(f->archive, "wb");
        char zeros[4096] = {};

        gzwrite(out, f->tar.data, (unsigned)len);
        for (int i = 0; i < 3 * CONTEXT_PADDING_MAX / (int)sizeof(zeros); i++)
                gzwrite(out, zeros, sizeof(zeros));
        gzclose(out);
        assert_int_equal(copy(f, "d", "out"), -EINVAL);
        assert_non_null(strstr(f->err.message, "behind its end mark"));
}

static void test_names(void **state)
{
        struct fixture *f = *state;
        char name[320] = "d/";

        memset(name + 2, 'n', 250); /* over ustar's 100: a PAX header */
        tar_file(&f->tar, name, 0644, "long");
        tar_file(&f->tar, "d/na\xc3\xafve \xe6\xbc\xa2.txt", 0644, "unicode");
        tar_file(&f->tar, "d/new\nline", 0644, "newline");
        tar_symlink(&f->tar, "d/link", "na\xc3\xafve \xe6\xbc\xa2.txt");
        assert_int_equal(copy(f, "d", "out"), 0);
        memcpy(name, "out/", 4);
        memset(name + 4, 'n', 250);
        assert_content(f, name, "long");
        assert_content(f, "out/na\xc3\xafve \xe6\xbc\xa2.txt", "unicode");
        assert_content(f, "out/link", "unicode");
        assert_content(f, "out/new\nline", "newline");
}

static void test_212_kinds(void **state)
{
        struct fixture *f = *state;

        tar_dir(&f->tar, "d/empty", 0711);
        tar_file(&f->tar, "d/.env", 0600, "dot");
        tar_file(&f->tar, "d/one", 0755, "shared");
        tar_hardlink(&f->tar, "d/two", "d/one");
        tar_hardlink(&f->tar, "d/three", "d/one");
        tar_symlink(&f->tar, "d/up", "../../../../etc/environment");
        tar_file(&f->tar, "d/suid", 04755, "s");
        assert_int_equal(copy_as(f, "d", "out", "7:8", ""), 0);
        assert_int_equal(look(f, "out/empty").st_mode & 07777, 0711);
        assert_int_equal(look(f, "out/.env").st_mode & 07777, 0600);
        assert_int_equal(look(f, "out/one").st_nlink, 3);
        assert_int_equal(look(f, "out/one").st_ino, look(f, "out/three").st_ino);
        assert_int_equal(look(f, "out/two").st_uid, 7);
        assert_int_equal(look(f, "out/suid").st_mode & 07777, 04755);
        char target[64] = "";
        assert_int_equal(readlink(at(f, "out/up"), target, sizeof(target)), strlen("../../../../etc/environment"));
        assert_string_equal(target, "../../../../etc/environment");
}

static void test_later_entries_win(void **state)
{
        struct fixture *f = *state;

        tar_file(&f->tar, "d/a", 0644, "old");
        tar_file(&f->tar, "d/b", 0644, "linked");
        tar_file(&f->tar, "d/a", 0600, "new");
        tar_file(&f->tar, "d/c", 0644, "replaced by a link");
        tar_hardlink(&f->tar, "d/c", "d/b");
        tar_hardlink(&f->tar, "d/b", "d/b");
        assert_int_equal(copy(f, "d", "out"), 0);
        assert_content(f, "out/a", "new");
        assert_content(f, "out/b", "linked");
        assert_content(f, "out/c", "linked");
        assert_int_equal(look(f, "out/c").st_nlink, 2);
}

/* One hostile entry behind a good one; nothing reaches the target or leaves the stage. */
static void test_214_hostile_entries(void **state)
{
        static const struct {
                const char *name, *hardlink, *why;
                mode_t type;
        } cases[] = {
                {"../evil", NULL, "'..'", AE_IFREG},
                {"/etc/evil", NULL, "absolute", AE_IFREG},
                {"d/../../../etc/cron.d/x", NULL, "'..'", AE_IFREG},
                {"d/..", NULL, "'..'", AE_IFDIR},
                {"..", NULL, "'..'", AE_IFDIR},
                {"d/h", "/etc/passwd", "leaves the archive", AE_IFREG},
                {"d/h", "../../etc/passwd", "leaves the archive", AE_IFREG},
                {"d/h", "d/missing", "No such file", AE_IFREG},
                {"d/dev", NULL, "not allowed", AE_IFCHR},
                {"d/dev", NULL, "not allowed", AE_IFBLK},
                {"d/fifo", NULL, "not allowed", AE_IFIFO},
        };
        struct fixture *f = *state;

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct archive_entry *e = tar_entry(cases[i].name, cases[i].type, 0644);

                tar_file(&f->tar, "d/ok", 0644, "1");
                if (cases[i].hardlink)
                        archive_entry_set_hardlink(e, cases[i].hardlink);
                tar_put(&f->tar, e, NULL);
                if (copy(f, "d", "out") >= 0)
                        fail_msg("%s %s was taken", cases[i].name, cases[i].hardlink ? cases[i].hardlink : "");
                if (!strstr(f->err.message, cases[i].why))
                        fail_msg("%s: %s", cases[i].name, f->err.message);
                assert_int_equal(look(f, "out").st_mode, 0);
        }
}

static void test_214_links_are_no_way_out(void **state)
{
        struct fixture *f = *state;

        mkdir(at(f, "outside"), 0755);
        tar_symlink(&f->tar, "d/x", at(f, "outside"));
        tar_file(&f->tar, "d/x/evil", 0644, "1");
        assert_int_equal(copy(f, "d", "out"), -EINVAL);
        assert_non_null(strstr(f->err.message, "behind a symbolic link"));
        tar_symlink(&f->tar, "d/x", at(f, "outside"));
        tar_hardlink(&f->tar, "d/y", "d/x/evil");
        assert_true(copy(f, "d", "out") < 0);
        /* A link that a file of the same name follows is replaced, not written through. */
        put(f, "outside/file", "untouched");
        tar_symlink(&f->tar, "d/z", at(f, "outside/file"));
        tar_file(&f->tar, "d/z", 0644, "own");
        assert_int_equal(copy(f, "d", "out"), 0);
        assert_content(f, "out/z", "own");
        assert_content(f, "outside/file", "untouched");
        assert_int_equal(access(at(f, "outside/evil"), F_OK), -1);
}

/* A file that claims more than the disk has is refused at its header. */
static void test_bomb_is_refused_by_its_size(void **state)
{
        struct fixture *f = *state;
        struct archive_entry *e = tar_entry("d/big", AE_IFREG, 0644);
        size_t len;

        archive_entry_set_size(e, 1LL << 50);
        archive_write_header(f->tar.a, e);
        archive_entry_free(e);
        archive_write_data(f->tar.a, "start", 5);
        len = 1536; /* what the writer has before the content; the rest would be a pebibyte */
        archive_write_free(f->tar.a);
        f->tar.a = NULL;
        write_archive(f, f->tar.len > len ? f->tar.len : len);
        assert_true(copy(f, "d", "out") < 0);
        assert_non_null(strstr(f->err.message, "do not fit"));
        assert_int_equal(look(f, "out").st_mode, 0);
}

static bool stage_is_left(void)
{
        DIR *d = opendir("/");
        bool found = false;

        for (struct dirent *e; (e = readdir(d));)
                found |= strncmp(e->d_name, ".vmon-copy-", 11) == 0;
        closedir(d);
        return found;
}

static void test_nothing_is_left(void **state)
{
        (void)state;
        assert_false(stage_is_left());
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(test_213_plain_and_packed), T(test_D1_20_cut_archives), T(test_damaged_archives), T(test_padding_is_bounded),
                T(test_names), T(test_212_kinds), T(test_later_entries_win), T(test_214_hostile_entries),
                T(test_214_links_are_no_way_out), T(test_bomb_is_refused_by_its_size), cmocka_unit_test(test_nothing_is_left),
        };

        if (geteuid() != 0) {
                print_message("skipped: owners need root\n");
                return 77;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
