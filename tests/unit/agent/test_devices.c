/* What is undone behind a step in /dev, in a directory of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "agent/guest-devices.h"

static char dir[] = "/tmp/vmon-devices-XXXXXX";
static int dev;
static struct device_list list;

/* Pipes stand for devices here, which take root to make; those of the kernel have "kernel" in their names. */
static bool is_kernels(const char *path, mode_t mode, dev_t number)
{
        (void)number;
        return S_ISFIFO(mode) && strstr(path, "kernel");
}

static mode_t mode_of(const char *name)
{
        struct stat st;

        return fstatat(dev, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? 0 : st.st_mode;
}

static void is_link(const char *name, const char *target)
{
        char text[100] = {};

        assert_true(readlinkat(dev, name, text, sizeof(text) - 1) > 0);
        assert_string_equal(text, target);
}

static int setup(void **state)
{
        struct error err;

        (void)state;
        strcpy(dir + strlen(dir) - 6, "XXXXXX");
        if (!mkdtemp(dir))
                return -1;
        dev = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        umask(0);
        mkfifoat(dev, "null", 0666);
        mkfifoat(dev, "zero", 0640);
        mkdirat(dev, "net", 0755);
        mkfifoat(dev, "net/tun", 0600);
        mkdirat(dev, "net/deep", 0711);
        symlinkat("/proc/self/fd", dev, "fd");
        return devices_remember(dev, &list, &err);
}

static int teardown(void **state)
{
        (void)state;
        device_list_free(&list);
        close(dev);
        return tree_remove(dir, NULL);
}

static void restore(void)
{
        struct error err;

        if (devices_restore(dev, &list, is_kernels, &err) < 0)
                fail_msg("%s", err.message);
}

static void made(void **state)
{
        (void)state;
        close(openat(dev, "file", O_WRONLY | O_CREAT, 0600));
        symlinkat("/etc", dev, "link");
        mkdirat(dev, "a", 0700);
        mkdirat(dev, "a/b", 0700);
        close(openat(dev, "a/b/file", O_WRONLY | O_CREAT, 0));
        mkfifoat(dev, "net/mine", 0600);
        mkfifoat(dev, "kernel0", 0600);
        mkdirat(dev, "mapper", 0755);
        mkfifoat(dev, "mapper/kernel1", 0600);
        mkfifoat(dev, "mapper/mine", 0600);
        restore();
        for (const char *const *gone = (const char *const[]){"file", "link", "a", "net/mine", "mapper/mine", NULL}; *gone; gone++)
                assert_int_equal(mode_of(*gone), 0);
        assert_int_equal(mode_of("kernel0"), S_IFIFO | 0600);
        assert_int_equal(mode_of("mapper/kernel1"), S_IFIFO | 0600);
}

static void removed(void **state)
{
        (void)state;
        unlinkat(dev, "null", 0);
        unlinkat(dev, "fd", 0);
        unlinkat(dev, "net/tun", 0);
        unlinkat(dev, "net/deep", AT_REMOVEDIR);
        unlinkat(dev, "net", AT_REMOVEDIR);
        restore();
        assert_int_equal(mode_of("null"), S_IFIFO | 0666);
        assert_int_equal(mode_of("net"), S_IFDIR | 0755);
        assert_int_equal(mode_of("net/tun"), S_IFIFO | 0600);
        assert_int_equal(mode_of("net/deep"), S_IFDIR | 0711);
        is_link("fd", "/proc/self/fd");
}

static void changed(void **state)
{
        (void)state;
        fchmodat(dev, "zero", 0666, 0);
        unlinkat(dev, "null", 0);
        close(openat(dev, "null", O_WRONLY | O_CREAT, 0644)); /* rm /dev/null; echo >/dev/null */
        unlinkat(dev, "fd", 0);
        symlinkat("/etc", dev, "fd");
        unlinkat(dev, "net/tun", 0);
        mkdirat(dev, "net/tun", 0755);
        mkfifoat(dev, "net/tun/kernel", 0600);
        fchmodat(dev, "net", 0, 0);
        restore();
        assert_int_equal(mode_of("zero"), S_IFIFO | 0640);
        assert_int_equal(mode_of("null"), S_IFIFO | 0666);
        is_link("fd", "/proc/self/fd");
        assert_int_equal(mode_of("net"), S_IFDIR | 0755);
        assert_int_equal(mode_of("net/tun"), S_IFIFO | 0600);
}

static void nothing_to_do(void **state)
{
        struct stat before, after;

        (void)state;
        assert_int_equal(fstat(dev, &before), 0);
        restore();
        assert_int_equal(fstat(dev, &after), 0);
        assert_int_equal(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = { TEST(made), TEST(removed), TEST(changed), TEST(nothing_to_do) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
