#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "build/key.h"

static void key(const char *previous, const char *type, char **args, const char *hash, char *ret)
{
        struct build_step s = {.type = (char *)type, .args = args, .files_hash = (char *)hash};

        build_key_step(previous, &s, ret);
}

static void args_are_not_joined(void **state)
{
        char a[65], b[65], c[65], d[65];

        (void)state;
        key("p", "RUN", (char *[]){"a b", NULL}, NULL, a);
        key("p", "RUN", (char *[]){"a", "b", NULL}, NULL, b);
        key("p", "RUN", (char *[]){"a", "b", "", NULL}, NULL, c);
        key("p", "RUN", (char *[]){"ab", NULL}, NULL, d);
        assert_string_not_equal(a, b);
        assert_string_not_equal(b, c);
        assert_string_not_equal(a, d);
        assert_int_equal(strlen(a), 64);
}

static void every_part_counts(void **state)
{
        char *args[] = {"x", NULL};
        char base[65], k[65];

        (void)state;
        key("p", "COPY", args, "h", base);
        key("p", "COPY", args, "h", k);
        assert_string_equal(base, k);
        key("q", "COPY", args, "h", k);
        assert_string_not_equal(base, k);
        key("p", "ENV", args, "h", k);
        assert_string_not_equal(base, k);
        key("p", "COPY", args, "i", k);
        assert_string_not_equal(base, k);
        key("p", "COPY", args, NULL, k);
        assert_string_not_equal(base, k);
        /* The hash is no argument. */
        key("p", "COPY", (char *[]){"x", "h", NULL}, NULL, k);
        assert_string_not_equal(base, k);
}

static void force_is_no_part(void **state)
{
        struct build_step s = {.type = "RUN", .args = (char *[]){"x", NULL}};
        char a[65], b[65];

        (void)state;
        build_key_step("p", &s, a);
        s.force = true;
        build_key_step("p", &s, b);
        assert_string_equal(a, b);
}

static void base_covers_its_inputs(void **state)
{
        char a[65], b[65];

        (void)state;
        build_key_image("sha256:1", "x86_64", 10240, "s", "g", a);
        build_key_image("sha256:2", "x86_64", 10240, "s", "g", b);
        assert_string_not_equal(a, b);
        build_key_image("sha256:1", "aarch64", 10240, "s", "g", b);
        assert_string_not_equal(a, b);
        build_key_image("sha256:1", "x86_64", 1024, "s", "g", b);
        assert_string_not_equal(a, b);
        build_key_image("sha256:1", "x86_64", 10240, "t", "g", b);
        assert_string_not_equal(a, b);
        build_key_image("sha256:1", "x86_64", 10240, "s", "h", b);
        assert_string_not_equal(a, b);
        build_key_template("sha256:1", 10240, b);
        assert_string_not_equal(a, b);
}

static void sha256_of_abc(void **state)
{
        char k[65];

        (void)state;
        build_sha256("abc", 3, k);
        assert_string_equal(k, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(args_are_not_joined), cmocka_unit_test(every_part_counts),
                cmocka_unit_test(force_is_no_part),    cmocka_unit_test(base_covers_its_inputs),
                cmocka_unit_test(sha256_of_abc),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
