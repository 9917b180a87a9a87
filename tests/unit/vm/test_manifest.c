/* manifest.json: written, read back, refused when foreign or damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/manifest.h"
#include "vm/vm.h"

static struct kit kit = {.version = "abc123", .arch = "x86_64", .qemu_version = "7.2.15"};

static void put(const char *dir, const char *name, const char *text, off_t size)
{
        CLEANUP_FREE char *path = path_join(dir, name);
        CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
        assert_int_equal(ftruncate(fd, size), 0);
}

static char *make_dir(void)
{
        char *dir = xstrdup("/tmp/vmon-test-manifest-XXXXXX");
        struct vm_manifest m;
        struct error err = {};

        assert_non_null(mkdtemp(dir));
        put(dir, "rootfs.img", "root", 1 << 20);
        put(dir, "memory", "abc", 3);
        put(dir, "device-state", "", 0);
        vm_manifest_describe(&m, &kit, "tcg", NULL, 2, 512);
        if (vm_manifest_write(dir, &m, &err) < 0)
                fail_msg("%s", err.message);
        vm_manifest_free(&m);
        return dir;
}

static void remove_dir(char *dir)
{
        tree_remove(dir, NULL);
        free(dir);
}

static void reads_back_what_it_wrote(void **state)
{
        char *dir = make_dir();
        struct vm_manifest m;
        struct error err = {};

        (void)state;
        assert_int_equal(vm_manifest_read(dir, &m, &err), 0);
        assert_int_equal(m.format, 4);
        assert_string_equal(m.architecture, "x86_64");
        assert_string_equal(m.backend, "tcg");
        assert_string_equal(m.cpu_model, "Nehalem-v1");
        assert_string_equal(m.kit_version, "abc123");
        assert_int_equal(m.vcpus, 2);
        assert_int_equal(m.memory_mib, 512);
        assert_string_equal(m.devices[0], "blk");
        /* sha256(sha256("abc")), and of the empty string. */
        assert_string_equal(vm_manifest_part(&m, "memory")->digest,
                            "4f8b42c22dd3729b519ba6f68d2da7cc5b2d606d05daed5ad5128cc03e6c6358");
        assert_string_equal(vm_manifest_part(&m, "device-state")->digest,
                            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_int_equal(vm_manifest_part(&m, "rootfs.img")->size, 1 << 20);
        assert_int_equal(vm_manifest_verify(dir, &m, true, &err), 0);
        vm_manifest_free(&m);
        remove_dir(dir);
}

static void notices_damage(void **state)
{
        char *dir = make_dir();
        struct vm_manifest m;
        struct error err = {};

        (void)state;
        assert_int_equal(vm_manifest_read(dir, &m, &err), 0);
        put(dir, "memory", "abd", 3);
        assert_int_equal(vm_manifest_verify(dir, &m, false, &err), 0);
        assert_true(vm_manifest_verify(dir, &m, true, &err) < 0);
        put(dir, "memory", "abcd", 4);
        assert_true(vm_manifest_verify(dir, &m, false, &err) < 0);
        assert_int_equal(err.kind, ERROR_UNAVAILABLE);
        vm_manifest_free(&m);
        remove_dir(dir);
}

static void missing_parts_are_no_snapshot(void **state)
{
        char *dir = xstrdup("/tmp/vmon-test-manifest-XXXXXX");
        CLEANUP_FREE char *path = NULL;
        struct vm_manifest m;

        (void)state;
        assert_non_null(mkdtemp(dir));
        vm_manifest_describe(&m, &kit, "tcg", "max", 1, 128);
        assert_true(vm_manifest_write(dir, &m, NULL) < 0);
        path = path_join(dir, "manifest.json");
        assert_false(path_exists(path));
        vm_manifest_free(&m);
        remove_dir(dir);
}

static json_t *good(void)
{
        struct vm_manifest m;
        json_t *j;

        vm_manifest_describe(&m, &kit, "tcg", NULL, 2, 512);
        j = vm_manifest_json(&m);
        vm_manifest_free(&m);
        json_object_set_new(j, "parts", json_pack("[{s:s,s:i,s:s},{s:s,s:i,s:s},{s:s,s:i,s:s}]",
                "name", "rootfs.img", "size", 1, "digest", "4f8b42c22dd3729b519ba6f68d2da7cc5b2d606d05daed5ad5128cc03e6c6358",
                "name", "memory", "size", 1, "digest", "4f8b42c22dd3729b519ba6f68d2da7cc5b2d606d05daed5ad5128cc03e6c6358",
                "name", "device-state", "size", 1, "digest",
                "4f8b42c22dd3729b519ba6f68d2da7cc5b2d606d05daed5ad5128cc03e6c6358"));
        return j;
}

static int parse(const json_t *j, struct error *err)
{
        CLEANUP_FREE char *text = json_text(j);
        struct vm_manifest m = {};
        int r = vm_manifest_parse(text, strlen(text), &m, err);

        vm_manifest_free(&m);
        return r;
}

static void another_format_wants_recapture(void **state)
{
        CLEANUP_JSON json_t *j = good();
        struct error err = {};

        (void)state;
        assert_int_equal(parse(j, &err), 0);
        json_object_set_new(j, "format", json_integer(3));
        assert_true(parse(j, &err) < 0);
        assert_int_equal(err.kind, ERROR_CONFLICT);
        assert_non_null(strstr(err.message, "recapture required"));
        json_object_del(j, "format");
        assert_true(parse(j, &err) < 0);
        assert_int_equal(err.kind, ERROR_CONFLICT);
}

static void refuses_damaged_values(void **state)
{
        static const struct {
                const char *name, *value;
        } bad[] = {{"architecture", "null"}, {"backend", "5"}, {"cpu_model", "null"}, {"vcpus", "0"}, {"vcpus", "65"},
                   {"memory_mib", "\"512\""}, {"tsc_khz", "-1"}, {"kit_version", "\"../x\""}, {"kit_version", "\"\""},
                   {"devices", "[]"}, {"devices", "[1]"}, {"parts", "[]"}, {"parts", "{}"}};
        struct error err = {};

        (void)state;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
                CLEANUP_JSON json_t *j = good();
                json_t *v = json_loads(bad[i].value, JSON_DECODE_ANY, NULL);

                assert_non_null(v);
                json_object_set_new(j, bad[i].name, v);
                assert_true(parse(j, &err) < 0);
                assert_int_equal(err.kind, ERROR_INVALID);
        }
}

static void knows_what_this_host_can_load(void **state)
{
        struct vm_manifest m;
        struct error err = {};

        (void)state;
        vm_manifest_describe(&m, &kit, "tcg", NULL, 2, 512);
        m.tsc_khz = 2445406;
        assert_int_equal(vm_manifest_compatible(&m, "x86_64", "tcg", 2445406, &err), 0);
        assert_int_equal(vm_manifest_compatible(&m, "x86_64", "tcg", 2445500, &err), 0);
        assert_true(vm_manifest_compatible(&m, "x86_64", "tcg", 2600000, &err) < 0);
        assert_true(vm_manifest_compatible(&m, "x86_64", "kvm", 2445406, &err) < 0);
        assert_int_equal(err.kind, ERROR_UNAVAILABLE);
        assert_true(vm_manifest_compatible(&m, "aarch64", "tcg", 2445406, &err) < 0);
        vm_manifest_free(&m);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(reads_back_what_it_wrote),
                cmocka_unit_test(notices_damage),
                cmocka_unit_test(missing_parts_are_no_snapshot),
                cmocka_unit_test(another_format_wants_recapture),
                cmocka_unit_test(refuses_damaged_values),
                cmocka_unit_test(knows_what_this_host_can_load),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
