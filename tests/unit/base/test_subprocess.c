#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/subprocess.h"

static void captures(void **state)
{
        const char *const argv[] = {"sh", "-c", "cat; echo end", NULL};
        CLEANUP_BUF struct buf out = {};
        struct error err;

        (void)state;
        assert_int_equal(subprocess_feed(argv, "in\n", 3, &out, &err), 0);
        assert_string_equal(out.data, "in\nend\n");
}

static void reports_failures(void **state)
{
        const char *const fails[] = {"sh", "-c", "echo reason >&2; exit 3", NULL};
        const char *const dies[] = {"sh", "-c", "kill -9 $$", NULL};
        const char *const missing[] = {"/no/such/program", NULL};
        struct error err;

        (void)state;
        assert_true(subprocess_run(fails, NULL, &err) < 0);
        assert_string_equal(err.message, "sh: exit status 3: reason");
        assert_true(subprocess_run(dies, NULL, &err) < 0);
        assert_non_null(strstr(err.message, "signal 9"));
        assert_true(subprocess_run(missing, NULL, &err) < 0);
        assert_int_equal(err.kind, ERROR_UNAVAILABLE);
}

static void survives_much_output_and_unread_input(void **state)
{
        const char *const loud[] = {"sh", "-c", "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2", NULL};
        const char *const deaf[] = {"true", NULL};
        static char input[1 << 20];
        CLEANUP_BUF struct buf out = {};
        struct error err;

        (void)state;
        assert_int_equal(subprocess_run(loud, &out, &err), 0);
        assert_int_equal(out.len, 1000000);
        assert_int_equal(subprocess_feed(deaf, input, sizeof(input), NULL, &err), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(captures), cmocka_unit_test(reports_failures),
                                           cmocka_unit_test(survives_much_output_and_unread_input)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
