/* WWW-Authenticate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/challenge.h"

static void good(void **state)
{
        static const struct {
                const char *text;
                enum challenge_scheme scheme;
                const char *realm, *service, *scope;
        } cases[] = {
                {"Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\",scope=\"repository:a/b:pull\"",
                 CHALLENGE_BEARER, "https://auth.docker.io/token", "registry.docker.io", "repository:a/b:pull"},
                {"bearer Realm = \"x\" , error=\"insufficient_scope\"", CHALLENGE_BEARER, "x", NULL, NULL},
                {"Basic realm=\"a \\\"quoted\\\" one\"", CHALLENGE_BASIC, "a \"quoted\" one", NULL, NULL},
                {"Basic realm=b, Bearer realm=\"t\"", CHALLENGE_BEARER, "t", NULL, NULL},
                {"Bearer realm=\"t\",service=s, Basic realm=b", CHALLENGE_BEARER, "t", "s", NULL},
                {"Negotiate", CHALLENGE_NONE, NULL, NULL, NULL},
                {"Negotiate YWJj==, Basic realm=\"r\"", CHALLENGE_BASIC, "r", NULL, NULL},
                {"Basic", CHALLENGE_BASIC, NULL, NULL, NULL},
                {"", CHALLENGE_NONE, NULL, NULL, NULL},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                struct challenge c = {};

                assert_int_equal(challenge_parse(cases[i].text, &c, NULL), 0);
                assert_int_equal(c.scheme, cases[i].scheme);
                if (c.scheme == CHALLENGE_NONE)
                        continue;
                assert_true(streq(c.realm, cases[i].realm));
                assert_true(streq(c.service, cases[i].service));
                assert_true(streq(c.scope, cases[i].scope));
                challenge_free(&c);
        }
}

static void bad(void **state)
{
        static const char *const cases[] = {
                "Bearer", "Bearer realm=\"\"", "Bearer service=\"x\"", "Bearer realm=\"x", "Bearer realm=\"x\\", "=", "@", "Bearer realm=\"a\" \"",
        };
        CLEANUP_FREE char *longest = xcalloc(CHALLENGE_MAX + 2, 1);

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
                assert_int_equal(challenge_parse(cases[i], &(struct challenge){}, NULL), -22);
        memset(longest, 'a', CHALLENGE_MAX + 1);
        assert_int_equal(challenge_parse(longest, &(struct challenge){}, NULL), -22);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(good), cmocka_unit_test(bad) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
