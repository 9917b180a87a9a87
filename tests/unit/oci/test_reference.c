/* References by Docker's grammar. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/oci.h"

#define D64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void good(void **state)
{
        static const struct {
                const char *text, *registry, *repository, *tag, *digest;
        } cases[] = {
                {"debian", "docker.io", "library/debian", "latest", NULL},
                {"debian:12", "docker.io", "library/debian", "12", NULL},
                {"e2bdev/base", "docker.io", "e2bdev/base", "latest", NULL},
                {"docker.io/debian:stable", "docker.io", "library/debian", "stable", NULL},
                {"index.docker.io/library/debian", "docker.io", "library/debian", "latest", NULL},
                {"localhost/a/b", "localhost", "a/b", "latest", NULL},
                {"127.0.0.1:5000/x:y", "127.0.0.1:5000", "x", "y", NULL},
                {"[::1]:5000/x", "[::1]:5000", "x", "latest", NULL},
                {"Registry/x", "Registry", "x", "latest", NULL},
                {"ghcr.io/a__b/c-d--e.f_g", "ghcr.io", "a__b/c-d--e.f_g", "latest", NULL},
                {"a@sha256:" D64, "docker.io", "library/a", NULL, "sha256:" D64},
                {"a.b/c:T_1.2-x@sha256:" D64, "a.b", "c", "T_1.2-x", "sha256:" D64},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                struct oci_reference r;
                struct error err = {};

                assert_int_equal(oci_reference_parse(cases[i].text, &r, &err), 0);
                assert_string_equal(r.registry, cases[i].registry);
                assert_string_equal(r.repository, cases[i].repository);
                assert_true(streq(r.tag, cases[i].tag));
                assert_true(streq(r.digest, cases[i].digest));
                oci_reference_free(&r);
        }
}

static void bad(void **state)
{
        static const char *const cases[] = {
                "", " ", "Debian", "debian:", "debian:-x", "debian:.x", ":12", "/x", "x/", "a//b", "a..b", "a___b", "-a", "a-",
                "_a", "a b", "a\nb", "a@", "a@sha256:12", "a@md5:" D64, "a@sha512:" D64, "http://a/b", "a.b:99999/c", "a.b:0/c",
                "a.b:/c", "-a.b/c", "a..b/c", "[::1/c", "a:b:c", D64, "..", "../x", "a.b/../c", "\xff\xfe", "a/b:t/../c?x",
        };
        CLEANUP_FREE char *longest = xcalloc(3000, 1);

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                struct oci_reference r = {};
                struct error err = {};

                assert_int_equal(oci_reference_parse(cases[i], &r, &err), -22);
                assert_int_equal(err.kind, ERROR_INVALID);
                assert_true(str_starts(err.message, "invalid image reference '"));
                assert_true(utf8_valid(err.message, strlen(err.message)));
                assert_null(r.registry);
        }
        memset(longest, 'a', 2999);
        assert_int_equal(oci_reference_parse(longest, &(struct oci_reference){}, NULL), -22);
        longest[256] = '\0';
        assert_int_equal(oci_reference_parse(longest, &(struct oci_reference){}, NULL), -22);
}

/* The limit counts what is filled in: "library/" and the name. */
static void length(void **state)
{
        struct oci_reference r = {};
        struct error err;
        char name[256];

        (void)state;
        memset(name, 'a', sizeof name);
        name[247] = '\0';
        assert_int_equal(oci_reference_parse(name, &r, &err), 0);
        oci_reference_free(&r);
        name[247] = 'a';
        name[248] = '\0';
        assert_true(oci_reference_parse(name, &r, &err) < 0);
        assert_int_equal(err.kind, ERROR_INVALID);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(good), cmocka_unit_test(bad), cmocka_unit_test(length) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
