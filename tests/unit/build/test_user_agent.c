#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "build/build.h"

static const struct {
        const char *agent;
        int version; /* 0: an error */
} cases[] = {
        {NULL, 21},
        {"", 21},
        {"custom/1.0", 21},
        {"curl/8.0 e2b", 21},
        {"e2b-js-sdk/2.51.0", 21},
        {"e2b-js-sdk/2.3.0", 21},
        {"e2b-js-sdk/2.2.9", 20},
        {"e2b-js-sdk/2.2.0 e2b-cli/2.13.0", 20},
        {"e2b-python-sdk/2.31.0 custom/1.0", 21},
        {"e2b-python-sdk/1.9.9", 20},
        {"e2b-python-sdk/10.0.0", 21},
        {"e2b-js-sdk/2.3.0-beta.1", 20},
        {"e2b-js-sdk/2.3.1-beta.1", 21},
        {"e2b-js-sdk/2.3.0+build.5", 21},
        {"e2b-js-sdk/v2.3.0", 21},
        {"e2b-js-sdk/2", 20},
        {"e2b-js-sdk/3", 21},
        {"e2b-js-sdk/2.3", 21},
        {"x e2b-js-sdk/2.2.0 e2b-python-sdk/2.31.0", 20},
        {"e2b-js-sdk/xyz", 0},
        {"e2b-js-sdk/", 0},
        {"e2b-js-sdk/2.", 0},
        {"e2b-js-sdk/2.3.0.1", 0},
        {"e2b-js-sdk/2.3.0-", 0},
        {"e2b-js-sdk/2.3.0-a..b", 0},
        {"e2b-js-sdk/-1", 0},
        {"e2b-js-sdk/99999999999999999999", 0},
        {"e2b-js-sdk/2.3.0 e2b-js-sdk/xyz", 21},
};

/* Items 98-102 of template-api 18, and more. */
static void table(void **state)
{
        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct error err = {};
                int version = 0, r = build_template_version(cases[i].agent, &version, &err);

                if (version != cases[i].version)
                        fail_msg("%s: got %d", cases[i].agent, version);
                if (!cases[i].version) {
                        assert_int_equal(r, -22);
                        assert_memory_equal(err.message, "Error when parsing user agent: ", 31);
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(table)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
