/* The token bucket of each team's request rate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/request-rate.h"
#include "base/clock.h"

static unsigned granted(struct request_rate *r, const char *team, unsigned per_second, int64_t now_ns)
{
        unsigned n = 0;

        for (int i = 0; i < 100; i++)
                n += request_rate_take(r, team, per_second, now_ns);
        return n;
}

static void a_second_holds_its_number(void **state)
{
        struct request_rate *r = request_rate_new();

        (void)state;
        assert_int_equal(granted(r, "a", 10, 0), 10);
        assert_int_equal(granted(r, "a", 10, NSEC_PER_SEC / 2), 5);
        assert_int_equal(granted(r, "a", 10, 100 * NSEC_PER_SEC), 10); /* no more than a second's worth is saved up */
        assert_int_equal(granted(r, "b", 3, 100 * NSEC_PER_SEC), 3);   /* another team has its own */
        assert_int_equal(granted(r, "a", 0, 100 * NSEC_PER_SEC), 100); /* no limit */
        assert_int_equal(granted(r, "a", 20, 101 * NSEC_PER_SEC), 20); /* raised */
        assert_null(request_rate_free(r));
        assert_null(request_rate_free(NULL));
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(a_second_holds_its_number) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
