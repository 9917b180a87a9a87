#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include "base/clock.h"

static void parses(void **state)
{
        static const struct {
                const char *text;
                int64_t ns;
        } good[] = {
                {"1970-01-01T00:00:00Z", 0},
                {"1970-01-01T00:00:01.5Z", 1500000000},
                {"2026-08-21T10:00:00.123456789Z", 1787306400123456789},
                {"2026-08-21T12:00:00+02:00", 1787306400000000000},
                {"2024-02-29T00:00:00Z", 1709164800000000000},
        };
        static const char *const bad[] = {"", "2026", "2026-13-01T00:00:00Z", "2026-08-21T10:00:00",
                                          "2026-08-21T10:00:00.Z", "2026-08-21T10:00:00.1234567890Z",
                                          "2026-08-21T10:00:00Zx", "2026-08-21T25:00:00Z", "x026-08-21T10:00:00Z",
                                          "2026-08-21T10:00:00+2:00", "99999-08-21T10:00:00Z"};
        int64_t ns;

        (void)state;
        for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
                assert_true(rfc3339_parse(good[i].text, &ns));
                assert_int_equal(ns, good[i].ns);
        }
        for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
                assert_false(rfc3339_parse(bad[i], &ns));
}

static void formats(void **state)
{
        char out[RFC3339_MAX];
        int64_t back;

        (void)state;
        rfc3339_format(1787306400123456789, out);
        assert_string_equal(out, "2026-08-21T10:00:00.123456Z");
        rfc3339_format(-1, out);
        assert_string_equal(out, "1969-12-31T23:59:59.999999Z");
        rfc3339_format(clock_realtime_ns(), out);
        assert_true(rfc3339_parse(out, &back));
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(parses), cmocka_unit_test(formats)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
