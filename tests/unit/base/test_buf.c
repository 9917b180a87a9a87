#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/buf.h"

static void grows_and_terminates(void **state)
{
        CLEANUP_BUF struct buf b = {};

        (void)state;
        assert_string_equal(buf_str(&b), "");
        for (int i = 0; i < 1000; i++)
                buf_addf(&b, "%d,", i % 10);
        assert_int_equal(b.len, 2000);
        assert_int_equal(strlen(b.data), 2000);
        buf_consume(&b, 1998);
        assert_string_equal(buf_str(&b), "9,");
        buf_consume(&b, 5);
        assert_int_equal(b.len, 0);
        assert_string_equal(buf_str(&b), "");
}

static void steals(void **state)
{
        struct buf b = {};
        char *s;

        (void)state;
        s = buf_steal(&b);
        assert_string_equal(s, "");
        free(s);
        buf_add(&b, "a\0b", 3);
        s = buf_steal(&b);
        assert_memory_equal(s, "a\0b", 4);
        free(s);
        assert_null(b.data);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(grows_and_terminates), cmocka_unit_test(steals)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
