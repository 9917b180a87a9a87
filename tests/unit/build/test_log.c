#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"
#include "build/log.h"

static struct buf got; /* "<level> <step> <message>|" for each entry */
static size_t longest, entries;

static void on_log(void *data, const char *build_id, int level, const char *step, const char *message)
{
        (void)data;
        assert_string_equal(build_id, "b1");
        assert_true(utf8_valid(message, strlen(message)));
        longest = strlen(message) > longest ? strlen(message) : longest;
        entries++;
        buf_addf(&got, "%d %s ", level, step ? step : "-");
        buf_adds(&got, message);
        buf_addc(&got, '|');
}

static const struct build_events events = {.log = on_log};
static struct build_log blog = {.events = &events, .build_id = "b1", .step = "2"};
static struct output_log out;

static int start(void **state)
{
        (void)state;
        buf_free(&got);
        longest = entries = 0;
        output_log_init(&out, &blog, LOG_LEVEL_INFO, "[builder 2/3] ", true);
        return 0;
}

static int stop(void **state)
{
        (void)state;
        output_log_free(&out);
        buf_free(&got);
        return 0;
}

static void feed(int stream, const char *s)
{
        output_log_feed(&out, stream, s, strlen(s));
}

static void joins_chunks_and_splits_lines(void **state)
{
        (void)state;
        feed(1, "one\ntw");
        feed(2, "err");
        feed(1, "o\n\n   \n  three \r\n");
        feed(2, "or\n");
        feed(1, "last");
        output_log_end(&out);
        assert_string_equal(buf_str(&got),
                            "1 2 [builder 2/3] [stdout]: one|1 2 [builder 2/3] [stdout]: two|"
                            "1 2 [builder 2/3] [stdout]: three|1 2 [builder 2/3] [stderr]: error|"
                            "1 2 [builder 2/3] [stdout]: last|");
}

static void foreign_bytes(void **state)
{
        (void)state;
        output_log_feed(&out, 1, "\x1b[38:5:82mX\xff\0\n", 14);
        output_log_end(&out);
        assert_string_equal(buf_str(&got), "1 2 [builder 2/3] [stdout]: \x1b[38:5:82mX\xef\xbf\xbd\xef\xbf\xbd|");
}

static void a_long_line_loses_nothing(void **state)
{
        const size_t size = 1 << 20;
        CLEANUP_FREE char *line = xmalloc(size);
        size_t bytes = 0, marks = 0;

        (void)state;
        /* Two-byte characters at odd offsets, so that some cut would fall into one. */
        line[0] = 'a';
        for (size_t i = 1; i + 1 < size; i += 2)
                memcpy(line + i, "\xc3\xa9", 2);
        line[size - 1] = 'z';
        for (size_t i = 0; i < size; i += 10000)
                output_log_feed(&out, 1, line + i, size - i < 10000 ? size - i : 10000);
        output_log_end(&out);
        assert_true(longest <= BUILD_LOG_LINE_MAX + 64);
        assert_int_equal(entries, size / BUILD_LOG_LINE_MAX + 1);
        for (const char *p = buf_str(&got); *p; p++) {
                bytes += *p == '\xc3' || *p == '\xa9';
                marks += *p == '\xef';
        }
        assert_int_equal(bytes, size - 2);
        assert_int_equal(marks, 0);
}

static void blanks_at_a_cut_are_kept(void **state)
{
        CLEANUP_FREE char *line = xmalloc(BUILD_LOG_LINE_MAX + 8);

        (void)state;
        memset(line, 'x', BUILD_LOG_LINE_MAX);
        memcpy(line + BUILD_LOG_LINE_MAX, "  end \n", 8);
        feed(1, line);
        feed(1, "  next\n");
        assert_non_null(strstr(buf_str(&got), "[stdout]:   end|"));
        assert_non_null(strstr(buf_str(&got), "[stdout]: next|"));
        assert_int_equal(entries, 3);
}

static void keeps_the_last_lines(void **state)
{
        CLEANUP_FREE char *last = NULL;

        (void)state;
        for (int i = 1; i <= 35; i++) {
                CLEANUP_FREE char *line = xasprintf("line %d\n", i);

                feed(i % 2 ? 1 : 2, line);
        }
        output_log_end(&out);
        assert_int_equal(out.tail_count, BUILD_SCRIPT_TAIL_LINES);
        assert_string_equal(out.tail[0], "line 6");
        last = output_log_last(&out, 100);
        assert_string_equal(last, "line 35");
}

static void last_line_is_bounded(void **state)
{
        CLEANUP_FREE char *none = output_log_last(&out, 5), *last = NULL;

        (void)state;
        assert_string_equal(none, "");
        feed(1, "abc\xc3\xa9\xc3\xa9\n");
        last = output_log_last(&out, 6); /* in the middle of the second character */
        assert_string_equal(last, "abc\xc3\xa9");
}

static void no_step_is_null(void **state)
{
        struct build_log l = {.events = &events, .build_id = "b1"};

        (void)state;
        build_log(&l, LOG_LEVEL_ERROR, "Build failed: %s", "x");
        assert_string_equal(buf_str(&got), "3 - Build failed: x|");
}

static void durations(void **state)
{
        static const struct {
                unsigned long s;
                const char *text;
        } cases[] = {{0, "0s"}, {45, "45s"}, {60, "1m0s"}, {72, "1m12s"}, {3600, "1h0m0s"}, {3725, "1h2m5s"}};

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                CLEANUP_FREE char *t = format_seconds(cases[i].s);

                assert_string_equal(t, cases[i].text);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(joins_chunks_and_splits_lines, start, stop),
                cmocka_unit_test_setup_teardown(foreign_bytes, start, stop),
                cmocka_unit_test_setup_teardown(a_long_line_loses_nothing, start, stop), cmocka_unit_test_setup_teardown(blanks_at_a_cut_are_kept, start, stop),
                cmocka_unit_test_setup_teardown(keeps_the_last_lines, start, stop),
                cmocka_unit_test_setup_teardown(last_line_is_bounded, start, stop),
                cmocka_unit_test_setup_teardown(no_step_is_null, start, stop),
                cmocka_unit_test(durations),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
