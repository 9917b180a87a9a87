/* Logs and metrics on disk: order, filters, torn ends, bounds, and what a guest may make up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "sandbox/history.h"

static char work[64];
static struct history *history;

static int setup(void **state)
{
        (void)state;
        strcpy(work, "/tmp/vmon-history-XXXXXX");
        assert_non_null(mkdtemp(work));
        history = history_new(work);
        return 0;
}

static int teardown(void **state)
{
        (void)state;
        history_free(history);
        return tree_remove(work, NULL);
}

static char *file(const char *name)
{
        return xasprintf("%s/history/team/box/%s", work, name);
}

/* The messages found, joined by blanks. */
static char *messages(const struct history_query *q)
{
        json_t *found = history_logs(history, "team", "box", q);
        struct buf b = {};
        size_t i;
        const json_t *e;
        json_array_foreach(found, i, e)
                buf_addf(&b, "%s%s", i ? " " : "", json_str(e, "message"));
        json_decref(found);
        return buf_steal(&b);
}

#define ALL { .to_ns = INT64_MAX, .limit = 1000 }

static void assert_messages(const struct history_query *q, const char *expected)
{
        CLEANUP_FREE char *got = messages(q);
        assert_string_equal(got, expected);
}

static void append_to(const char *name, const void *data, size_t len)
{
        CLEANUP_FREE char *path = file(name);
        FILE *f = fopen(path, "a");
        assert_non_null(f);
        assert_int_equal(fwrite(data, 1, len, f), len);
        fclose(f);
}

static void take(struct history_cursor *c, const char *answer)
{
        CLEANUP_JSON json_t *j = NULL;
        assert_int_equal(json_parse(answer, strlen(answer), &j, NULL), 0);
        history_take(history, "team", "box", j, c);
}

static void test_filters(void **state)
{
        (void)state;
        CLEANUP_JSON json_t *fields = json_pack("{s:s, s:i}", "command", "make All", "pid", 7);
        struct history_query q = ALL;
        assert_messages(&q, "");
        history_log(history, "team", "box", "debug", "one", NULL);
        history_log(history, "team", "box", "info", "two", fields);
        history_log(history, "team", "box", "error", "three", NULL);
        history_log(history, "team", "other", "error", "elsewhere", NULL);
        assert_messages(&q, "one two three");
        q.limit = 2;
        assert_messages(&q, "one two");
        q.backward = true;
        assert_messages(&q, "three two");
        q = (struct history_query)ALL;
        q.level = HISTORY_WARN;
        assert_messages(&q, "three");
        q.level = HISTORY_DEBUG;
        q.search = "ALL";
        assert_messages(&q, "two");
        q.search = "TW";
        assert_messages(&q, "two");
        q.search = NULL;
        q.from_ns = clock_realtime_ns();
        assert_messages(&q, "");
        /* Names that lead out of the directory. */
        history_log(history, "..", "box", "info", "out", NULL);
        history_log(history, "team", "../../x", "info", "out", NULL);
        CLEANUP_FREE char *out = path_join(work, "box");
        assert_false(path_exists(out));
}

static void test_agent(void **state)
{
        (void)state;
        struct history_query q = ALL;
        struct history_cursor c = { .known = true }, found;
        CLEANUP_FREE char *late = xasprintf("{\"epoch\":\"e1\",\"entries\":[{\"n\":3,\"time_ns\":%lld,\"level\":\"info\",\"message\":\"early\"}]}",
                                            (long long)(clock_realtime_ns() - 5 * NSEC_PER_SEC));
        take(&c, "{\"epoch\":\"e1\",\"entries\":[{\"n\":1,\"level\":\"info\",\"message\":\"a\",\"fields\":{\"x\":1}},{\"n\":2,\"level\":\"warn\",\"message\":\"b\"}]}");
        assert_int_equal(c.number, 2);
        take(&c, "{\"epoch\":\"e1\",\"entries\":[{\"n\":2,\"level\":\"warn\",\"message\":\"again\"}]}");
        assert_messages(&q, "a b");
        take(&c, late);
        assert_messages(&q, "early a b");
        history_cursor_find(history, "team", "box", &found);
        assert_string_equal(found.epoch, "e1");
        assert_int_equal(found.number, 3);
        /* Another sandbox's agent, or one that began anew. */
        take(&c, "{\"epoch\":\"e2\",\"entries\":[{\"n\":1,\"level\":\"info\",\"message\":\"c\"}]}");
        assert_messages(&q, "early a b c");
        /* Times of the future are of now, levels and types are checked, and a large entry is left out. */
        take(&c, "{\"epoch\":\"e2\",\"entries\":[{\"n\":2,\"time_ns\":9000000000000000000,\"level\":\"info\",\"message\":\"d\"},{\"n\":3,\"level\":\"fatal\",\"message\":\"x\"},"
                 "{\"n\":4,\"level\":\"info\"},{\"n\":\"5\",\"level\":\"info\",\"message\":\"x\"},7,{\"n\":-1,\"level\":\"info\",\"message\":\"x\"}]}");
        take(&c, "{\"epoch\":\"e2\",\"entries\":{}}");
        take(&c, "{\"epoch\":\"../e\",\"entries\":[{\"n\":9,\"level\":\"info\",\"message\":\"x\"}]}");
        take(&c, "[]");
        CLEANUP_FREE char *text = xcalloc(1, HISTORY_ENTRY_MAX + 1);
        memset(text, 'y', HISTORY_ENTRY_MAX);
        CLEANUP_FREE char *large = xasprintf("{\"epoch\":\"e2\",\"entries\":[{\"n\":8,\"level\":\"info\",\"message\":\"%s\"}]}", text);
        take(&c, large);
        assert_int_equal(c.number, 8);
        q.to_ns = clock_realtime_ns();
        assert_messages(&q, "early a b c d");
}

static void test_torn(void **state)
{
        (void)state;
        struct history_query q = ALL;
        struct sandbox_metrics s = { .time_ns = 1, .cpu_count = 1, .mem_total = 2 }, *all;
        history_log(history, "team", "box", "info", "one", NULL);
        append_to("log", "{\"t\":12,\"level\":\"in", 19);
        assert_messages(&q, "one");
        history_log(history, "team", "box", "info", "two", NULL);
        append_to("log", "\n\nx\n{\"t\":9}\n", 12);
        assert_messages(&q, "one two");
        history_sample(history, "team", "box", &s);
        append_to("metrics", "half a record", 13);
        s.time_ns = 2;
        history_sample(history, "team", "box", &s);
        assert_int_equal(history_metrics(history, "team", "box", 0, INT64_MAX, &all), 2);
        assert_int_equal(all[1].time_ns, 2);
        free(all);
}

static void test_metrics(void **state)
{
        (void)state;
        struct sandbox_metrics *all;
        for (int i = 0; i < 20; i++) {
                struct sandbox_metrics s = { .time_ns = i * 5 * NSEC_PER_SEC, .cpu_count = 2, .cpu_used_pct = i, .mem_used = (uint64_t)i, .mem_total = 99 };
                history_sample(history, "team", "box", &s);
        }
        assert_int_equal(history_metrics(history, "team", "box", 0, INT64_MAX, &all), 20);
        free(all);
        assert_int_equal(history_metrics(history, "team", "box", 10 * NSEC_PER_SEC, 20 * NSEC_PER_SEC, &all), 3);
        free(all);
        assert_int_equal(history_metrics(history, "team", "box", 0, INT64_MAX, &all), 20);
        assert_int_equal(sandbox_metrics_thin(all, 20, 0), 20);
        assert_int_equal(sandbox_metrics_thin(all, 20, 30 * NSEC_PER_SEC), 4);
        assert_int_equal(all[0].mem_used, 2);
        assert_true(all[0].cpu_used_pct > 2.49 && all[0].cpu_used_pct < 2.51);
        assert_int_equal(all[1].mem_used, 8);
        free(all);
        assert_int_equal(history_metrics(history, "team", "nobody", 0, INT64_MAX, &all), 0);
        free(all);
}

/* Files are bounded, and the newest entries are those that stay. */
static void test_bounds(void **state)
{
        (void)state;
        CLEANUP_FREE char *log = file("log"), *old = file("log.old"), *text = xcalloc(1, 60001);
        struct history_query q = { .to_ns = INT64_MAX, .limit = 1, .backward = true };
        struct stat st;
        memset(text, 'z', 60000);
        CLEANUP_JSON json_t *fields = json_pack("{s:s}", "text", text);
        for (int i = 0; i < 200; i++) {
                CLEANUP_FREE char *message = xasprintf("m%d", i);
                history_log(history, "team", "box", "info", message, fields);
        }
        assert_int_equal(stat(log, &st), 0);
        assert_true(st.st_size <= HISTORY_FILE_MAX);
        assert_int_equal(stat(old, &st), 0);
        assert_true(st.st_size <= HISTORY_FILE_MAX && st.st_size > HISTORY_FILE_MAX - 70000);
        assert_messages(&q, "m199");
        q = (struct history_query)ALL;
        json_t *found = history_logs(history, "team", "box", &q);
        assert_true(json_array_size(found) >= HISTORY_FILE_MAX / 61000);
        json_decref(found);
}

static void age(const char *id, int64_t seconds)
{
        CLEANUP_FREE char *path = xasprintf("%s/history/team/%s/log", work, id);
        struct utimbuf t = { .actime = time(NULL) - seconds, .modtime = time(NULL) - seconds };
        assert_int_equal(utime(path, &t), 0);
}

static bool kept(const char *id)
{
        CLEANUP_FREE char *path = xasprintf("%s/history/team/%s", work, id);
        return path_exists(path);
}

static void test_trim(void **state)
{
        (void)state;
        const char *const ids[] = { "a", "b", "c", "d" };
        history_trim(history, 1);
        for (int i = 0; i < 4; i++)
                history_log(history, "team", ids[i], "info", "x", NULL);
        age("a", HISTORY_SECONDS + 10);
        age("b", 100);
        age("c", 200);
        history_trim(history, 0);
        assert_false(kept("a"));
        assert_true(kept("b") && kept("c") && kept("d"));
        history_trim(history, 8192); /* of three files of a block each */
        assert_false(kept("c"));
        assert_true(kept("b") && kept("d"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = { TEST(test_filters), TEST(test_agent), TEST(test_torn), TEST(test_metrics), TEST(test_bounds), TEST(test_trim) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
