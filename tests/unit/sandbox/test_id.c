/* Sandbox identifiers: what is minted, what is taken, what is refused (sandbox-api 3). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sandbox/id.h"

static void assert_parses(const char *s, const char *expected)
{
        char id[SANDBOX_ID_MAX + 1];
        assert_int_equal(sandbox_id_parse(s, id), 0);
        assert_string_equal(id, expected);
}

static void assert_refused(const char *s)
{
        char id[SANDBOX_ID_MAX + 1];
        assert_int_equal(sandbox_id_parse(s, id), -EINVAL);
}

static void test_new(void **state)
{
        (void)state;
        char a[SANDBOX_ID_LEN + 1], b[SANDBOX_ID_LEN + 1];
        sandbox_id_new(a);
        sandbox_id_new(b);
        assert_int_equal(strlen(a), SANDBOX_ID_LEN);
        assert_int_equal(a[0], 'i');
        assert_string_not_equal(a, b);
        assert_parses(a, a);
}

static void test_plain_and_composite(void **state)
{
        (void)state;
        assert_parses("i0123456789abcdefghij", "i0123456789abcdefghij");
        assert_parses("i0123456789abcdefghij-6532622b", "i0123456789abcdefghij");
        assert_parses("non-existing", "non");
}

static void test_refused(void **state)
{
        (void)state;
        assert_refused("");
        assert_refused("-");
        assert_refused("a-");
        assert_refused("-a");
        assert_refused("non-existing-sandbox");
        assert_refused("UPPER");
        assert_refused("a_b");
        assert_refused("a.b");
        assert_refused("a/b");
        assert_refused("a-B");
        assert_refused("a b");
        assert_refused("\xc3\xa4");
}

static void test_length(void **state)
{
        (void)state;
        char longest[SANDBOX_ID_MAX + 2];
        memset(longest, 'a', sizeof longest);
        longest[SANDBOX_ID_MAX + 1] = '\0';
        assert_refused(longest);
        longest[SANDBOX_ID_MAX] = '\0';
        assert_parses(longest, longest);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_new),
                cmocka_unit_test(test_plain_and_composite),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_length),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
