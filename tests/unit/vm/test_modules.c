/* modules.h: load order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "vm/modules.h"

static const char dep[] =
        "kernel/drivers/virtio/virtio_mmio.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n"
        "kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko\n"
        "kernel/drivers/virtio/virtio.ko:\n"
        "kernel/drivers/net/virtio_net.ko.xz: kernel/net/core/failover.ko.xz kernel/drivers/net/net_failover.ko.xz\n"
        "kernel/drivers/net/net_failover.ko.xz: kernel/net/core/failover.ko.xz\n"
        "kernel/net/core/failover.ko.xz:\n"
        "kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio.ko\n";
static const char builtin[] = "kernel/fs/ext4/ext4.ko\nkernel/fs/jbd2/jbd2.ko\n";

static void expect(const char *const *wanted, const char *order)
{
        struct buf got = {};
        struct error err = {};
        char **paths = NULL;

        if (modules_resolve(dep, builtin, wanted, &paths, &err) < 0)
                fail_msg("%s", err.message);
        for (char **p = paths; *p; p++)
                buf_addf(&got, "%s ", strrchr(*p, '/') + 1);
        assert_string_equal(buf_str(&got), order);
        buf_free(&got);
        modules_free(paths);
}

static void test_order(void **state)
{
        (void)state;
        expect((const char *const[]){NULL}, "");
        expect((const char *const[]){"virtio_mmio", NULL}, "virtio.ko virtio_ring.ko virtio_mmio.ko ");
        /* A dependency listed before what it needs itself still comes after it. */
        expect((const char *const[]){"virtio_net", NULL}, "failover.ko.xz net_failover.ko.xz virtio_net.ko.xz ");
        /* Each once; '-' and '_' are one; built in is left out. */
        expect((const char *const[]){"virtio", "virtio_rng", "ext4", "virtio_mmio", "virtio-rng", NULL},
               "virtio.ko virtio-rng.ko virtio_ring.ko virtio_mmio.ko ");
}

static void test_missing_is_named(void **state)
{
        struct error err = {};
        char **paths = NULL;
        (void)state;

        assert_int_equal(modules_resolve(dep, builtin, (const char *const[]){"erofs", NULL}, &paths, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "erofs"));
        assert_null(paths);
        assert_int_equal(modules_resolve("a.ko: gone.ko\n", "", (const char *const[]){"a", NULL}, &paths, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "gone"));
}

static void test_damaged_text_is_refused(void **state)
{
        const char *const a[] = {"a", NULL}, *const zero[] = {"m0", NULL};
        struct buf chain = {};
        char **paths = NULL;
        (void)state;

        assert_int_equal(modules_resolve("a.ko: b.ko\nb.ko: a.ko\n", "", a, &paths, NULL), -EINVAL);
        assert_int_equal(modules_resolve("a.ko: a.ko\n", "", a, &paths, NULL), -EINVAL);
        assert_int_equal(modules_resolve("a.ko: README\n", "", a, &paths, NULL), -EINVAL);
        assert_int_equal(modules_resolve("", "", a, &paths, NULL), -EAGAIN);
        assert_int_equal(modules_resolve("", "", (const char *const[]){"", NULL}, &paths, NULL), -EINVAL);
        for (int i = 0; i < 100; i++)
                buf_addf(&chain, "m%d.ko: m%d.ko\n", i, i + 1);
        assert_int_equal(modules_resolve(buf_str(&chain), "", zero, &paths, NULL), -EINVAL);
        buf_clear(&chain);
        buf_adds(&chain, "m0.ko:");
        for (int i = 1; i < 400; i++)
                buf_addf(&chain, " m%d.ko", i);
        for (int i = 1; i < 400; i++)
                buf_addf(&chain, "\nm%d.ko:", i);
        assert_int_equal(modules_resolve(buf_str(&chain), "", zero, &paths, NULL), -EINVAL);
        buf_free(&chain);
}

static void test_names(void **state)
{
        char name[MODULE_NAME_MAX];
        (void)state;

        assert_int_equal(module_name("kernel/a/virtio-rng.ko.zst", name), 0);
        assert_string_equal(name, "virtio_rng");
        assert_int_equal(module_name("x.ko", name), 0);
        assert_int_equal(module_name(".ko", name), -EINVAL);
        assert_int_equal(module_name("x.kox", name), -EINVAL);
        assert_int_equal(module_name("", name), -EINVAL);
        assert_int_equal(module_name("dir.ko/x", name), -EINVAL);
        assert_int_equal(module_name("0123456789012345678901234567890123456789012345678901234567890123.ko", name), -EINVAL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_order),
                cmocka_unit_test(test_missing_is_named),
                cmocka_unit_test(test_damaged_text_is_refused),
                cmocka_unit_test(test_names),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
