/* hypervisor.h and hypervisor_select(): everything but a real boot; "QEMU" is a shell script here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "vm/hypervisor.h"

static char dir[] = "/tmp/vmon-test-hypervisor-XXXXXX";

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

static void test_cpuinfo(void **state)
{
        (void)state;
        assert_true(hypervisor_cpuinfo_has_virtualisation("processor\t: 0\nflags\t\t: fpu vmx sse\n"));
        assert_true(hypervisor_cpuinfo_has_virtualisation("flags\t\t: svm"));
        assert_false(hypervisor_cpuinfo_has_virtualisation("processor\t: 0\nflags\t\t: fpu sse\n"));
        assert_false(hypervisor_cpuinfo_has_virtualisation("vmx flags\t: vmx\nflags\t: avmx vmxx\nvmx\n"));
        assert_false(hypervisor_cpuinfo_has_virtualisation(""));
}

/* A kit whose QEMU is `script`. */
static void script_kit(struct kit *k, const char *script)
{
        *k = (struct kit){.version = "v", .arch = "x86_64", .vmlinuz = "k", .initramfs = "i", .qemu_data = "d"};
        k->qemu = path_join(dir, "qemu");
        assert_int_equal(file_write_atomic(k->qemu, script, strlen(script), 0755, NULL), 0);
}

static void test_probe(void **state)
{
        struct error err = {};
        struct kit k;
        (void)state;

        script_kit(&k, "#!/bin/sh\nread ping\ncase $ping in *'\"ping\"'*) echo '{\"id\":1,\"result\":{}}';; esac\n"
                       "exec sleep 1000\n");
        if (hypervisor_probe(&k, "kvm", 20, dir, &err) < 0)
                fail_msg("%s", err.message);
        free(k.qemu);
        /* One that ends, with something on its console. */
        script_kit(&k, "#!/bin/sh\necho 'first' >&2; echo 'kvm run failed' >&2; exit 1\n");
        assert_int_equal(hypervisor_probe(&k, "kvm", 20, dir, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "kvm run failed"));
        assert_null(strstr(err.message, "first"));
        free(k.qemu);
        /* One that hangs. */
        script_kit(&k, "#!/bin/sh\nexec sleep 1000\n");
        assert_int_equal(hypervisor_probe(&k, "kvm", 1, dir, &err), -EAGAIN);
        unlink(k.qemu);
        assert_true(hypervisor_probe(&k, "kvm", 1, dir, &err) < 0);
        free(k.qemu);
}

static void test_select(void **state)
{
        struct kit foreign = {.version = "v", .arch = "s390x"};
        const char *verdict = NULL;
        char *reason = NULL;
        struct error err = {};
        (void)state;

        assert_int_equal(hypervisor_select(&foreign, "tcg", dir, &verdict, NULL, &err), 0);
        assert_string_equal(verdict, "tcg");
        assert_int_equal(hypervisor_select(&foreign, "auto", dir, &verdict, &reason, &err), 0);
        assert_string_equal(verdict, "tcg");
        assert_non_null(strstr(reason, "s390x"));
        free(reason);
        assert_int_equal(hypervisor_select(&foreign, "kvm", dir, &verdict, NULL, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "--hypervisor tcg"));
        assert_int_equal(hypervisor_select(&foreign, "xen", dir, &verdict, NULL, &err), -EINVAL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpuinfo), cmocka_unit_test(test_probe),
                                           cmocka_unit_test(test_select)};

        return cmocka_run_group_tests(tests, setup, teardown);
}
