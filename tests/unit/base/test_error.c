#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "base/error.h"

static void sets_and_wraps(void **state)
{
        struct error err;

        (void)state;
        assert_int_equal(error_set(&err, ERROR_INVALID, "bad %s", "x"), -EINVAL);
        assert_int_equal(error_wrap(&err, -EINVAL, "layer %d", 3), -EINVAL);
        assert_string_equal(err.message, "layer 3: bad x");
        assert_int_equal(err.kind, ERROR_INVALID);
        assert_int_equal(error_errno(&err, -ENOSPC, "write %s", "f"), -ENOSPC);
        assert_string_equal(err.message, "write f: No space left on device");
        assert_int_equal(err.kind, ERROR_UNAVAILABLE);
        assert_int_equal(error_errno(NULL, EIO, "nobody listens"), -EIO);
}

static void cuts_long_messages(void **state)
{
        static char text[2 * ERROR_MESSAGE_MAX];
        struct error err;

        (void)state;
        memset(text, 'a', sizeof(text) - 1);
        error_set(&err, ERROR_INTERNAL, "%s", text);
        assert_int_equal(strlen(err.message), ERROR_MESSAGE_MAX - 1);
        error_errno(&err, EIO, "%s", text);
        error_wrap(&err, -EIO, "%s", text);
        assert_int_equal(strlen(err.message), ERROR_MESSAGE_MAX - 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(sets_and_wraps), cmocka_unit_test(cuts_long_messages)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
