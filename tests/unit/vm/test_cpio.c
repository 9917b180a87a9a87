/* cpio.h, judged by GNU cpio. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/str.h"
#include "base/subprocess.h"
#include "vm/cpio.h"

static void fill(struct cpio *c)
{
        cpio_add(c, "dev", S_IFDIR | 0755, 0, NULL, 0);
        cpio_add(c, "dev/console", S_IFCHR | 0600, makedev(5, 1), NULL, 0);
        cpio_add(c, "init", S_IFREG | 0755, 0, "12345", 5);
        cpio_add(c, "empty", S_IFREG | 0644, 0, NULL, 0);
        cpio_end(c);
}

static void list(const struct cpio *c, const char *option, struct buf *out)
{
        struct error err = {};

        if (subprocess_feed((const char *const[]){"cpio", option, "--quiet", NULL}, c->out.data, c->out.len, out, &err) < 0)
                fail_msg("%s", err.message);
}

static void test_entries(void **state)
{
        struct cpio c = {};
        struct buf names = {}, details = {};
        (void)state;

        fill(&c);
        assert_int_equal(c.out.len % 512, 0);
        list(&c, "-it", &names);
        assert_string_equal(buf_str(&names), "dev\ndev/console\ninit\nempty\n");
        list(&c, "-itv", &details);
        assert_non_null(strstr(details.data, "drwxr-xr-x"));
        assert_non_null(strstr(details.data, "crw-------"));
        assert_non_null(strstr(details.data, "5,   1"));
        assert_non_null(strstr(details.data, "-rwxr-xr-x"));
        buf_free(&names);
        buf_free(&details);
        cpio_free(&c);
}

static void test_content(void **state)
{
        struct cpio c = {};
        struct buf out = {};
        struct error err = {};
        (void)state;

        fill(&c);
        if (subprocess_feed((const char *const[]){"cpio", "-i", "--quiet", "--to-stdout", "init", NULL}, c.out.data,
                            c.out.len, &out, &err) < 0)
                fail_msg("%s", err.message);
        assert_string_equal(buf_str(&out), "12345");
        buf_free(&out);
        cpio_free(&c);
}

static void test_same_input_same_bytes(void **state)
{
        struct cpio a = {}, b = {};
        (void)state;

        fill(&a);
        fill(&b);
        assert_int_equal(a.out.len, b.out.len);
        assert_memory_equal(a.out.data, b.out.data, a.out.len);
        cpio_free(&a);
        cpio_free(&b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_entries),
                cmocka_unit_test(test_content),
                cmocka_unit_test(test_same_input_same_bytes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
