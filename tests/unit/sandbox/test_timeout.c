/* The rules of a sandbox's end (sandbox-api 5.1, 11, 12). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "sandbox/timeout.h"

#define S NSEC_PER_SEC
#define START (1000000 * S)

static void test_check(void **state)
{
        (void)state;
        struct error err = {};
        assert_int_equal(sandbox_timeout_check(1, 24, false, &err), 0);
        assert_int_equal(sandbox_timeout_check(24 * 3600, 24, false, &err), 0);
        assert_true(sandbox_timeout_check(24 * 3600 + 1, 24, false, &err) < 0);
        assert_int_equal(err.kind, ERROR_INVALID);
        assert_string_equal(err.message, "Timeout cannot be greater than 24 hours");
        assert_true(sandbox_timeout_check(0, 24, false, &err) < 0);
        assert_string_equal(err.message, "Timeout must be greater than 0");
        assert_true(sandbox_timeout_check(-1, 24, false, &err) < 0);
        assert_int_equal(sandbox_timeout_check(0, 24, true, &err), 0);
        assert_true(sandbox_timeout_check(-1, 24, true, &err) < 0);
        assert_int_equal(sandbox_timeout_check(INT32_MAX, 0, false, &err), 0);
        assert_true(sandbox_timeout_check((int64_t)INT32_MAX + 1, 0, false, &err) < 0);
}

static void test_set(void **state)
{
        (void)state;
        int64_t end = 0;
        struct error err = {};
        assert_int_equal(sandbox_timeout_end(START, START + 300 * S, START + 10 * S, 60, 24, false, &end, &err), 0);
        assert_true(end == START + 70 * S); /* shorter than it was */
        assert_int_equal(sandbox_timeout_end(START, START + 30 * S, START + 10 * S, 60, 24, false, &end, &err), 0);
        assert_true(end == START + 70 * S); /* longer */
        assert_int_equal(sandbox_timeout_end(START, START + 30 * S, START + 10 * S, 0, 24, false, &end, &err), 0);
        assert_true(end == START + 10 * S); /* now */
        assert_true(sandbox_timeout_end(START, START + 30 * S, START + 10 * S, -1, 24, false, &end, &err) < 0);
        assert_int_equal(err.kind, ERROR_INVALID);
}

static void test_extend_only(void **state)
{
        (void)state;
        int64_t end = 0;
        assert_int_equal(sandbox_timeout_end(START, START + 300 * S, START + 10 * S, 60, 24, true, &end, NULL), 0);
        assert_true(end == START + 300 * S);
        assert_int_equal(sandbox_timeout_end(START, START + 30 * S, START + 10 * S, 60, 24, true, &end, NULL), 0);
        assert_true(end == START + 70 * S);
}

static void test_longest_life(void **state)
{
        (void)state;
        int64_t end = 0;
        struct error err = {};
        int64_t hour = 3600 * S;
        assert_int_equal(sandbox_timeout_end(START, START + 60 * S, START + hour - 10 * S, 60, 1, false, &end, &err), 0);
        assert_true(end == START + hour); /* clamped */
        assert_true(sandbox_timeout_end(START, START + hour, START + hour, 60, 1, false, &end, &err) < 0);
        assert_string_equal(err.message, "Max instance length exceeded");
        assert_int_equal(sandbox_timeout_end(START, START + hour, START + 2 * hour, 60, 0, false, &end, &err), 0);
        assert_true(end == START + 2 * hour + 60 * S); /* 0 hours = no limit */
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_check),
                cmocka_unit_test(test_set),
                cmocka_unit_test(test_extend_only),
                cmocka_unit_test(test_longest_life),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
