/* The QEMU command line: fixed slots, no option injection, what differs between boot and fork. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "vm/qemu.h"

static const bool raw_only[] = {false};
static const bool chain[] = {false, true, true};

static struct qemu_options boot(void)
{
        return (struct qemu_options){.qemu = "/kit/qemu", .qemu_data = "/kit/share", .arch = "x86_64", .backend = "tcg",
                                     .cpu_model = "Nehalem", .vcpus = 2, .memory_mib = 512, .network = VM_NETWORK_NAT,
                                     .disk_qcow2 = raw_only, .disks = 1, .top_writable = true, .kernel = "/kit/vmlinuz",
                                     .initrd = "/kit/initramfs", .mode = "root", .init = "/sbin/init", .tsc_khz = 2445406};
}

static struct qemu_options fork_(void)
{
        struct qemu_options o = boot();

        o.kernel = o.initrd = o.mode = o.init = NULL;
        o.incoming = true;
        o.memory = QEMU_MEMORY_PRIVATE;
        o.disk_qcow2 = chain;
        o.disks = 2;
        return o;
}

static char **argv_of(const struct qemu_options *o)
{
        struct error err = {};
        char **argv = NULL;

        if (qemu_argv(o, &argv, &err) < 0)
                fail_msg("%s", err.message);
        return argv;
}

/* The value of the nth `option` that starts with `prefix`, or NULL. */
static const char *value(char **argv, const char *option, const char *prefix)
{
        for (char **p = argv; *p && p[1]; p++)
                if (streq(*p, option) && str_starts(p[1], prefix))
                        return p[1];
        return NULL;
}

static bool has(char **argv, const char *word)
{
        for (; *argv; argv++)
                if (streq(*argv, word))
                        return true;
        return false;
}

static void boots_with_kernel_and_command_line(void **state)
{
        struct qemu_options o = boot();
        char **argv = argv_of(&o);

        (void)state;
        assert_string_equal(argv[0], "/kit/qemu");
        assert_string_equal(value(argv, "-kernel", ""), "/kit/vmlinuz");
        assert_string_equal(value(argv, "-cpu", ""), "Nehalem,arat=on"); /* so that the guest's tick can stop */
        assert_string_equal(value(argv, "-initrd", ""), "/kit/initramfs");
        assert_string_equal(value(argv, "-append", ""), "console=ttyS0 quiet net.ifnames=0 reboot=t panic=-1 "
                            "tsc_early_khz=2445406 tsc=reliable mitigations=off vmon.mode=root vmon.init=/sbin/init");
        o.backend = "kvm";
        qemu_argv_free(argv);
        argv = argv_of(&o);
        assert_null(strstr(value(argv, "-append", ""), "mitigations"));
        assert_string_equal(value(argv, "-L", ""), "/kit/share");
        assert_null(value(argv, "-incoming", ""));
        assert_non_null(value(argv, "-object", "memory-backend-ram,id=ram,size=512M"));
        qemu_argv_free(argv);
}

static void forks_without_kernel(void **state)
{
        struct qemu_options o = fork_();
        char **argv = argv_of(&o);

        (void)state;
        assert_false(has(argv, "-kernel"));
        assert_false(has(argv, "-append"));
        assert_string_equal(value(argv, "-incoming", ""), "defer");
        assert_string_equal(value(argv, "-object", "memory-backend-file"),
                            "memory-backend-file,id=ram,size=512M,mem-path=/proc/self/fd/8,share=off");
        qemu_argv_free(argv);
}

static void both_turn_configuration_off_and_are_confined(void **state)
{
        struct qemu_options all[] = {boot(), fork_()};

        (void)state;
        for (size_t i = 0; i < 2; i++) {
                char **argv = argv_of(&all[i]);

                assert_non_null(value(argv, "-global", "migration.send-configuration=off"));
                assert_non_null(value(argv, "-global", "virtio-mmio.force-legacy=false"));
                assert_non_null(value(argv, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny"));
                assert_true(has(argv, "-nodefaults"));
                assert_true(has(argv, "-no-user-config"));
                assert_true(has(argv, "-no-reboot"));
                qemu_argv_free(argv);
        }
}

/* A snapshot loads only where every device is the same one in the same slot. */
static void devices_are_the_same_in_boot_and_fork(void **state)
{
        struct qemu_options b = boot(), f = fork_();
        char **one = argv_of(&b), **two = argv_of(&f), **p = one, **q = two;
        size_t count = 0;

        (void)state;
        for (;;) {
                while (*p && !streq(*p, "-device"))
                        p++;
                while (*q && !streq(*q, "-device"))
                        q++;
                if (!*p || !*q)
                        break;
                p++;
                q++;
                /* The drive behind the root disk is named by its depth. */
                if (count++)
                        assert_string_equal(*p, *q);
                else
                        assert_int_equal(strncmp(*p, *q, strlen("virtio-blk-device,bus=virtio-mmio-bus.7,drive=d")), 0);
        }
        assert_true(!*p && !*q);
        assert_int_equal(count, 7);
        qemu_argv_free(one);
        qemu_argv_free(two);
}

static void network_peer_does_not_change_the_card(void **state)
{
        const enum vm_network all[] = {VM_NETWORK_NAT, VM_NETWORK_USER, VM_NETWORK_NONE};
        char *first = NULL;

        (void)state;
        for (size_t i = 0; i < 3; i++) {
                struct qemu_options o = boot();
                char **argv;
                const char *card, *mac;

                o.network = all[i];
                argv = argv_of(&o);
                card = value(argv, "-device", "virtio-net-device,bus=virtio-mmio-bus.5,");
                assert_non_null(card);
                mac = strstr(card, "mac=");
                assert_non_null(mac);
                if (!first)
                        first = xstrdup(mac);
                assert_string_equal(mac, first);
                assert_int_equal(value(argv, "-netdev", "") == NULL, all[i] == VM_NETWORK_NONE);
                qemu_argv_free(argv);
        }
        assert_non_null(strstr(first, "host_tso4=off"));
        free(first);
}

static void chains_layers_bottom_first(void **state)
{
        struct qemu_options o = boot();
        char **argv;

        (void)state;
        o.disk_qcow2 = chain;
        o.disks = 3;
        argv = argv_of(&o);
        assert_non_null(value(argv, "-blockdev", "driver=raw,node-name=d0,file=f0,read-only=on"));
        assert_string_equal(value(argv, "-blockdev", "driver=qcow2,node-name=d1"),
                            "driver=qcow2,node-name=d1,file=f1,read-only=on,backing=d0");
        assert_non_null(strstr(value(argv, "-blockdev", "driver=qcow2,node-name=d2"), "read-only=off"));
        assert_non_null(strstr(value(argv, "-blockdev", "driver=qcow2,node-name=d2"), "backing=d1"));
        assert_non_null(value(argv, "-device", "virtio-blk-device,bus=virtio-mmio-bus.7,drive=d2"));
        /* The writable one has its read-only twin for a later reopen; the others have not. */
        assert_non_null(value(argv, "-add-fd", "fd=14,set=3"));
        assert_non_null(value(argv, "-add-fd", "fd=15,set=3"));
        assert_non_null(value(argv, "-add-fd", "fd=12,set=2"));
        assert_null(value(argv, "-add-fd", "fd=13,set=2"));
        qemu_argv_free(argv);
}

static void read_only_top_stays_so(void **state)
{
        struct qemu_options o = boot();
        char **argv;

        (void)state;
        o.top_writable = false;
        argv = argv_of(&o);
        for (char **p = argv; *p; p++)
                assert_null(strstr(*p, "read-only=off"));
        qemu_argv_free(argv);
}

static void shares_only_with_shared_memory(void **state)
{
        struct qemu_options o = boot();
        struct error err = {};
        char **argv = NULL;

        (void)state;
        o.share = true;
        assert_int_equal(qemu_argv(&o, &argv, &err), -EINVAL);
        o.memory = QEMU_MEMORY_MEMFD;
        argv = argv_of(&o);
        assert_non_null(value(argv, "-device", "vhost-user-fs-device,bus=virtio-mmio-bus.1,chardev=fs,tag=share"));
        assert_non_null(value(argv, "-object", "memory-backend-memfd,id=ram,size=512M,share=on"));
        qemu_argv_free(argv);
}

static void refuses(struct qemu_options o)
{
        struct error err = {};
        char **argv = NULL;

        assert_true(qemu_argv(&o, &argv, &err) < 0);
        assert_int_equal(err.kind, ERROR_INVALID);
        assert_null(argv);
}

static void refuses_what_cannot_be(void **state)
{
        struct qemu_options o;

        (void)state;
        o = boot(), o.vcpus = 0, refuses(o);
        o = boot(), o.vcpus = 65, refuses(o);
        o = boot(), o.memory_mib = 0, refuses(o);
        o = boot(), o.memory_mib = 1048577, refuses(o);
        o = boot(), o.disks = 0, refuses(o);
        o = boot(), o.disks = QEMU_DISKS_MAX + 1, refuses(o);
        o = boot(), o.arch = "riscv64", refuses(o);
        o = boot(), o.backend = "xen", refuses(o);
        o = boot(), o.mode = NULL, refuses(o);
}

static void refuses_options_in_values(void **state)
{
        struct qemu_options o;

        (void)state;
        o = boot(), o.cpu_model = "max,-smep", refuses(o);
        o = boot(), o.cpu_model = "", refuses(o);
        o = boot(), o.init = "/bin/x console=tty9", refuses(o);
        o = boot(), o.mode = "root\nx", refuses(o);
}

static void aarch64_uses_virt(void **state)
{
        struct qemu_options o = boot();
        char **argv;

        (void)state;
        o.arch = "aarch64";
        o.cpu_model = qemu_default_cpu("aarch64", "tcg");
        argv = argv_of(&o);
        assert_non_null(value(argv, "-machine", "virt,"));
        assert_non_null(value(argv, "-device", "virtio-blk-device,bus=virtio-mmio-bus.0,drive=d0"));
        assert_non_null(strstr(value(argv, "-append", ""), "console=ttyAMA0"));
        assert_null(strstr(value(argv, "-append", ""), "tsc"));
        qemu_argv_free(argv);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(boots_with_kernel_and_command_line),
                cmocka_unit_test(forks_without_kernel),
                cmocka_unit_test(both_turn_configuration_off_and_are_confined),
                cmocka_unit_test(devices_are_the_same_in_boot_and_fork),
                cmocka_unit_test(network_peer_does_not_change_the_card),
                cmocka_unit_test(chains_layers_bottom_first),
                cmocka_unit_test(read_only_top_stays_so),
                cmocka_unit_test(shares_only_with_shared_memory),
                cmocka_unit_test(refuses_what_cannot_be),
                cmocka_unit_test(refuses_options_in_values),
                cmocka_unit_test(aarch64_uses_virt),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
