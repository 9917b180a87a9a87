/* What is made of a guest script's output: the log, results, and one line for its failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/script_output.h"

static struct buf got; /* "<level> <message>|" for each entry */

static void on_log(void *data, const char *build_id, int level, const char *step, const char *message)
{
        (void)data;
        (void)build_id;
        (void)step;
        buf_addf(&got, "%d ", level);
        buf_adds(&got, message);
        buf_addc(&got, '|');
}

static const struct build_events events = {.log = on_log};
static const struct build_log blog = {.events = &events, .build_id = "b1", .step = "base"};
static struct script_output said;

static int start(void **state)
{
        (void)state;
        buf_free(&got);
        script_output_init(&said, &blog, "[x] ");
        return 0;
}

static int stop(void **state)
{
        (void)state;
        script_output_free(&said);
        buf_free(&got);
        return 0;
}

static void feed(int stream, const char *s)
{
        output_log_feed(&said.output, stream, s, strlen(s));
}

/* The failure with its log, which must be as expected: debug as it came, then error. */
static void fails_with(const char *expected, const char *log)
{
        CLEANUP_FREE char *text = NULL;

        output_log_end(&said.output);
        text = script_output_failure(&said, "provisioning", "exit status 100");
        assert_string_equal(text, expected);
        assert_null(strchr(text, '\n'));
        assert_string_equal(buf_str(&got), log);
}

static void results_and_warnings(void **state)
{
        (void)state;
        feed(1, "::set:: init=/sbin/init\n::warn:: careful\n::set:: no value\nhello\n");
        output_log_end(&said.output);
        assert_string_equal(json_str(said.set, "init"), "/sbin/init");
        assert_int_equal(json_object_size(said.set), 1);
        assert_null(said.reason);
        assert_string_equal(buf_str(&got), "2 careful|0 [x] ::set:: no value|0 [x] hello|");
}

static void reason_of_the_script(void **state)
{
        (void)state;
        feed(2, "E: no network\nE: really\n");
        feed(2, "::fail:: apt-get could not install: a b; check\nthe second line of it\n");
        fails_with("provisioning failed: apt-get could not install: a b; check (the last lines of its output are in the build log)",
                   "0 [x] E: no network|0 [x] E: really|0 [x] the second line of it|"
                   "3 [x] E: no network|3 [x] E: really|3 [x] the second line of it|");
}

static void reason_alone(void **state)
{
        (void)state;
        feed(2, "::fail:: user 'x' could not be created\n");
        fails_with("provisioning failed: user 'x' could not be created", "");
}

static void no_reason(void **state)
{
        (void)state;
        feed(1, "one\n");
        feed(2, "sh: 3: X: parameter not set\n");
        fails_with("provisioning failed: exit status 100: sh: 3: X: parameter not set (the last lines of its output are in the build log)",
                   "0 [x] one|0 [x] sh: 3: X: parameter not set|3 [x] one|3 [x] sh: 3: X: parameter not set|");
}

static void nothing_at_all(void **state)
{
        (void)state;
        fails_with("provisioning failed: exit status 100", "");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(results_and_warnings), TEST(reason_of_the_script), TEST(reason_alone), TEST(no_reason), TEST(nothing_at_all),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
