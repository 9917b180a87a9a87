/* Reading the agent's metrics: a guest may answer anything. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sandbox/metrics.h"

static int parse_part(const char *answer, size_t len, struct sandbox_metrics *m)
{
        json_t *j = NULL;
        int status, r = sandbox_answer_parse(answer, len, &status, &j, NULL);
        if (r == 0 && !j)
                r = -EACCES;
        if (r == 0)
                r = sandbox_metrics_read(j, m, NULL);
        json_decref(j);
        return r;
}

static int parse(const char *answer, struct sandbox_metrics *m)
{
        return parse_part(answer, strlen(answer), m);
}

#define HEAD "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
#define BODY "{\"ts\":1,\"cpu_count\":2,\"cpu_used_pct\":1.5,\"mem_total\":1000,\"mem_used\":500,\"mem_cache\":100," \
             "\"disk_used\":7,\"disk_total\":9}"

static void test_good(void **state)
{
        (void)state;
        struct sandbox_metrics m;
        assert_int_equal(parse(HEAD BODY, &m), 0);
        assert_int_equal(m.cpu_count, 2);
        assert_true(m.cpu_used_pct > 1.49 && m.cpu_used_pct < 1.51);
        assert_int_equal(m.mem_used, 500);
        assert_int_equal(m.disk_total, 9);
        assert_int_equal(parse("HTTP/1.1 200 OK\r\n\r\n" BODY, &m), 0);
        assert_int_equal(parse(HEAD "{\"ts\":1,\"cpu_count\":2,\"cpu_used_pct\":-1e300,\"mem_total\":1000}", &m), 0);
        assert_true(m.cpu_used_pct >= 0);
        assert_int_equal(parse(HEAD "{\"ts\":1,\"cpu_count\":2,\"cpu_used_pct\":1e300,\"mem_total\":1000}", &m), 0);
        assert_true(m.cpu_used_pct <= 100);
}

static void test_bad(void **state)
{
        (void)state;
        struct sandbox_metrics m;
        assert_true(parse("", &m) < 0);
        assert_true(parse("HTTP/1.1 200 OK\r\n", &m) < 0);
        assert_true(parse("HTTP/1.1 401 Unauthorized\r\n\r\n" BODY, &m) < 0);
        assert_true(parse(HEAD "[]", &m) < 0);
        assert_true(parse(HEAD "{", &m) < 0);
        assert_true(parse(HEAD "{}", &m) < 0);
        assert_true(parse(HEAD "{\"ts\":1,\"cpu_count\":-2,\"cpu_used_pct\":1,\"mem_total\":1}", &m) < 0);
        assert_true(parse(HEAD "{\"ts\":1,\"cpu_count\":1,\"cpu_used_pct\":\"x\",\"mem_total\":1}", &m) < 0);
}

static void test_every_cut(void **state)
{
        (void)state;
        struct sandbox_metrics m;
        const char *whole = HEAD BODY;
        for (size_t len = 0; len < strlen(whole); len++)
                assert_true(parse_part(whole, len, &m) < 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_good), cmocka_unit_test(test_bad), cmocka_unit_test(test_every_cut) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
