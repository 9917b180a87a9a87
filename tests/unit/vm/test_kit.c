/* kit.h: versioning, opening, and the pure parts of building. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/subprocess.h"
#include "vm/kit.h"
#include "vm/kit_internal.h"
#include "vm/manifest.h"

static char dir[] = "/tmp/vmon-test-kit-XXXXXX";

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

static void test_version_follows_every_input(void **state)
{
        const struct kit_inputs base = {"x86_64", "aa", "linux-image-6.1", "6.1.1-1", "1:7.2", "bin/qemu 1\n"};
        char versions[8][KIT_VERSION_LEN + 1], again[KIT_VERSION_LEN + 1];
        struct kit_inputs in[8];
        (void)state;

        for (int i = 0; i < 8; i++)
                in[i] = base;
        in[1].arch = "aarch64";
        in[2].agent_sha256 = "ab";
        in[3].kernel_package = "linux-image-6.12";
        in[4].kernel_version = "6.1.1-2";
        in[5].qemu_version = "1:7.3";
        in[6].qemu_files = "bin/qemu 2\n";
        /* The boundary between two fields counts. */
        in[7].kernel_package = "linux-image-6.16";
        in[7].kernel_version = ".1.1-1";
        for (int i = 0; i < 8; i++) {
                kit_version(&in[i], versions[i]);
                assert_int_equal(strlen(versions[i]), KIT_VERSION_LEN);
                for (int j = 0; j < i; j++)
                        assert_string_not_equal(versions[i], versions[j]);
        }
        kit_version(&base, again);
        assert_string_equal(again, versions[0]);
}

static void write_in(const char *base, const char *name, const char *text)
{
        CLEANUP_FREE char *path = path_join(base, name);
        CLEANUP_FREE char *parent = xstrndup(path, (size_t)(strrchr(path, '/') - path));

        assert_int_equal(dir_make(parent, 0755, NULL), 0);
        assert_int_equal(file_write_atomic(path, text, strlen(text), 0644, NULL), 0);
}

/* A kit of empty files at <dir>/x86_64/<version>. */
static char *fake_kit(const char *version)
{
        static const char *const parts[] = {"vmlinuz", "initramfs", "modules.img", "qemu/bin/qemu-system-x86_64",
                                            "qemu/bin/virtiofsd", "qemu/lib/libc.so.6", "qemu/share/qemu/x.bin"};
        char *path = xasprintf("%s/x86_64/%s", dir, version);
        CLEANUP_FREE char *json = xasprintf("{\"format\":1,\"version\":\"%s\",\"arch\":\"x86_64\",\"kernel\":\"6.1.0\","
                                            "\"qemu\":\"7.2\",\"agent_sha256\":\"00\",\"path\":\"%s\"}",
                                            version, path);

        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
                write_in(path, parts[i], "");
        write_in(path, "kit.json", json);
        return path;
}

static void expect_unusable(const char *version, const char *text)
{
        struct error err = {};
        struct kit *k = NULL;

        assert_int_equal(kit_open(dir, "x86_64", version, &k, &err), -EAGAIN);
        assert_null(k);
        assert_non_null(strstr(err.message, text));
        assert_non_null(strstr(err.message, "vmon kit"));
}

static void test_open(void **state)
{
        CLEANUP_FREE char *path = fake_kit("0123456789abcdef"), *link = xasprintf("%s/x86_64/current", dir);
        struct error err = {};
        struct kit *k = NULL;
        (void)state;

        expect_unusable(NULL, "no guest kit");
        assert_int_equal(symlink("0123456789abcdef", link), 0);
        if (kit_open(dir, "x86_64", NULL, &k, &err) < 0)
                fail_msg("%s", err.message);
        assert_string_equal(k->dir, path); /* the version, not the link: it stays when current moves on */
        assert_string_equal(k->version, "0123456789abcdef");
        assert_string_equal(k->kernel_release, "6.1.0");
        kit_free(k);
        k = NULL;
        assert_int_equal(kit_open(dir, "x86_64", "0123456789abcdef", &k, &err), 0);
        kit_free(k);
}

static void test_open_refuses(void **state)
{
        CLEANUP_FREE char *path = fake_kit("00000000000000aa"), *moved = xasprintf("%s/x86_64/00000000000000bb", dir);
        CLEANUP_FREE char *initramfs = path_join(path, "initramfs");
        struct error err = {};
        struct kit *k = NULL;
        (void)state;

        assert_int_equal(kit_open(dir, "x86_64", "../x", &k, &err), -EINVAL);
        assert_int_equal(kit_open(dir, "riscv64", NULL, &k, &err), -EINVAL);
        unlink(initramfs);
        expect_unusable("00000000000000aa", "initramfs is missing");
        write_in(path, "initramfs", "");
        write_in(path, "kit.json", "{");
        expect_unusable("00000000000000aa", "kit.json");
        write_in(path, "kit.json", "{\"format\":2}");
        expect_unusable("00000000000000aa", "another format");
        free(fake_kit("00000000000000aa"));
        assert_int_equal(rename(path, moved), 0);
        expect_unusable("00000000000000bb", "moved");
        expect_unusable("00000000000000aa", "no guest kit");
}

/* A data directory with one snapshot and one sandbox, of the given kits. */
static char *fake_data(const char *name, const char *snapshot, const char *sandbox)
{
        char *data = path_join(dir, name);
        CLEANUP_FREE char *build = path_join(data, "builds/one");
        const struct kit kit = {.arch = (char *)"x86_64", .version = (char *)snapshot, .qemu_version = (char *)"7.2"};
        struct vm_manifest m = {};
        CLEANUP_FREE char *target = xasprintf("x86_64/%s", sandbox), *link = path_join(data, "sandboxes/i1/kit");

        write_in(data, "root-secret", "");
        write_in(build, "rootfs.img", "");
        write_in(build, "memory", "");
        write_in(build, "device-state", "");
        vm_manifest_describe(&m, &kit, "tcg", NULL, 1, 128);
        assert_int_equal(vm_manifest_write(build, &m, NULL), 0);
        vm_manifest_free(&m);
        write_in(data, "sandboxes/i1/state", "");
        assert_int_equal(symlink(target, link), 0);
        return data;
}

static bool there(const char *version)
{
        CLEANUP_FREE char *path = xasprintf("%s/x86_64/%s", dir, version);

        return path_exists(path);
}

static void collect(void)
{
        struct error err = {};

        if (kit_collect(dir, "x86_64", true, NULL, &err) < 0)
                fail_msg("%s", err.message);
}

#define SNAPSHOT "0000000000000001"
#define SANDBOX "0000000000000002"
#define OPEN "0000000000000003"
#define UNUSED "0000000000000004"
#define CURRENT "0000000000000005"

static void test_collect(void **state)
{
        static const char *const versions[] = {SNAPSHOT, SANDBOX, OPEN, UNUSED, CURRENT};
        CLEANUP_FREE char *link = xasprintf("%s/x86_64/current", dir), *data = NULL, *secret = NULL;
        struct error err = {};
        struct kit *k = NULL;
        (void)state;

        for (size_t i = 0; i < 5; i++)
                free(fake_kit(versions[i]));
        write_in(dir, "x86_64/.lock", "");
        write_in(dir, "x86_64/0000000000000006.tmp/vmlinuz", "of a crash");
        write_in(dir, "x86_64/notes.txt", "not ours");
        unlink(link);
        assert_int_equal(symlink(CURRENT, link), 0);
        assert_int_equal(kit_open(dir, "x86_64", OPEN, &k, &err), 0);

        collect(); /* nobody is known to use the root */
        assert_true(there(UNUSED));

        data = fake_data("data", SNAPSHOT, SANDBOX);
        assert_int_equal(kit_add_user(dir, data, &err), 0);
        assert_int_equal(kit_add_user(dir, data, &err), 0);
        collect();
        assert_false(there(UNUSED));
        assert_false(there("0000000000000006.tmp"));
        assert_true(there(SNAPSHOT) && there(SANDBOX) && there(OPEN) && there(CURRENT) && there("notes.txt"));

        kit_free(k);
        collect();
        assert_false(there(OPEN));

        /* As if its file system were not mounted: everything stays. */
        secret = path_join(data, "root-secret");
        free(fake_kit(UNUSED));
        unlink(secret);
        assert_int_equal(kit_collect(dir, "x86_64", true, NULL, &err), -EAGAIN);
        assert_non_null(strstr(err.message, data));
        assert_true(there(UNUSED));

        /* Gone for good: what it needed goes too. */
        assert_int_equal(tree_remove(data, NULL), 0);
        collect();
        assert_false(there(SNAPSHOT) || there(SANDBOX) || there(UNUSED));
        assert_true(there(CURRENT));
}

static void test_collect_keeps_what_it_cannot_read(void **state)
{
        CLEANUP_FREE char *data = fake_data("data2", SNAPSHOT, SANDBOX);
        struct error err = {};
        (void)state;

        free(fake_kit(UNUSED));
        assert_int_equal(kit_add_user(dir, data, &err), 0);
        write_in(data, "builds/two/manifest.json", "{\"format\":4,");
        assert_true(kit_collect(dir, "x86_64", true, NULL, &err) < 0);
        assert_true(there(UNUSED));
        write_in(data, "builds/two/manifest.json", "{\"format\":3}"); /* never loaded again */
        collect();
        assert_false(there(UNUSED));
}

static void test_parse_apt(void **state)
{
        CLEANUP_FREE char *package = kit_parse_depends("linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n");
        CLEANUP_FREE char *candidate = kit_parse_candidate("x:\n  Installed: (none)\n  Candidate: 6.1.192-3\n  Version table:\n");
        (void)state;

        assert_string_equal(package, "linux-image-6.1.0-57-cloud-amd64");
        assert_string_equal(candidate, "6.1.192-3");
        assert_null(kit_parse_depends(""));
        assert_null(kit_parse_depends("  Depends: kmod\n"));
        assert_null(kit_parse_candidate("  Candidate: (none)\n"));
        assert_null(kit_parse_candidate(""));
}

static void test_parse_ldd(void **state)
{
        CLEANUP(kit_files_free) struct kit_files f = {};
        struct error err = {};
        (void)state;

        assert_int_equal(kit_parse_ldd("\tlinux-vdso.so.1 (0x7ffd)\n"
                                       "\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x7f00)\n"
                                       "\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x7f00)\n"
                                       "\t/lib64/ld-linux-x86-64.so.2 (0x7f01)\n",
                                       &f, &err),
                         0);
        assert_int_equal(f.n, 2);
        assert_string_equal(f.items[0].from, "/lib/x86_64-linux-gnu/libz.so.1");
        assert_string_equal(f.items[0].to, "lib/libz.so.1");
        assert_string_equal(f.items[1].to, "lib/ld-linux-x86-64.so.2");
        assert_string_equal(f.loader, "lib/ld-linux-x86-64.so.2");
        assert_int_equal(kit_parse_ldd("\tstatically linked\n", &f, &err), 0);
        assert_int_equal(f.n, 2);
        assert_int_equal(kit_parse_ldd("\tlibgone.so.3 => not found\n", &f, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "libgone.so.3"));
}

/* A program whose loader is redirected runs with it, and fails without it. */
static void test_interpreter(void **state)
{
        CLEANUP_FREE char *program = path_join(dir, "true"), *loader = path_join(dir, "loader");
        CLEANUP(kit_files_free) struct kit_files f = {};
        CLEANUP_BUF struct buf ldd = {};
        struct error err = {};
        (void)state;

        assert_int_equal(subprocess_run((const char *const[]){"cp", "/bin/true", program, NULL}, NULL, NULL), 0);
        assert_int_equal(subprocess_run((const char *const[]){"ldd", program, NULL}, &ldd, NULL), 0);
        assert_int_equal(kit_parse_ldd(buf_str(&ldd), &f, NULL), 0);
        if (kit_set_interpreter(program, loader, &err) < 0)
                fail_msg("%s", err.message);
        assert_true(subprocess_run((const char *const[]){program, NULL}, NULL, NULL) < 0);
        for (size_t i = 0; i < f.n; i++)
                if (strcmp(f.items[i].to, f.loader) == 0)
                        assert_int_equal(subprocess_run((const char *const[]){"cp", f.items[i].from, loader, NULL}, NULL, NULL), 0);
        assert_int_equal(subprocess_run((const char *const[]){program, NULL}, NULL, NULL), 0);
        assert_true(kit_set_interpreter("/dev/null", loader, NULL) < 0);
        write_in(dir, "short", "\177ELF");
        {
                CLEANUP_FREE char *junk = path_join(dir, "short");

                assert_int_equal(kit_set_interpreter(junk, loader, NULL), -EIO);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_version_follows_every_input), cmocka_unit_test(test_open),
                cmocka_unit_test(test_open_refuses), cmocka_unit_test(test_collect),
                cmocka_unit_test(test_collect_keeps_what_it_cannot_read), cmocka_unit_test(test_parse_apt),
                cmocka_unit_test(test_parse_ldd), cmocka_unit_test(test_interpreter),
        };

        return cmocka_run_group_tests(tests, setup, teardown);
}
