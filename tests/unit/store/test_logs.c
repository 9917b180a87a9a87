/* Build logs: pages, filters, cursors, the cap, long and foreign bytes. */
#include "temporary.h"

#include <stdio.h>

#include "base/str.h"

#define BUILD "6f2f3a0e-6f0d-4a6e-9c1a-0c1f6f6f8a11"

static void append(struct temporary *t, int first, int count)
{
        struct log_entry *entries = xcalloc((size_t)count, sizeof(*entries));
        struct error err;

        for (int i = 0; i < count; i++)
                entries[i] = (struct log_entry){ .time_ns = (first + i) * 1000LL, .level = (first + i) % 4, .step = i % 2 ? NULL : xstrdup("1"),
                                                 .message = xasprintf("line %d", first + i) };
        assert_int_equal(records_log_append(t->records, BUILD, entries, (size_t)count, &err), 0);
        log_entries_free(entries, (size_t)count);
}

/* Reads everything in pages; each must be the next of the filtered lines. */
static void pages(struct temporary *t, int level, size_t limit, int total)
{
        size_t offset = 0, count;
        int n = 0;

        do {
                struct log_entry *entries;
                struct error err;

                assert_int_equal(records_log_read(t->records, BUILD, level, offset, limit, &entries, &count, &err), 0);
                for (size_t i = 0; i < count; i++, n++) {
                        char expected[32];

                        while (n % 4 < level)
                                n++;
                        snprintf(expected, sizeof(expected), "line %d", n);
                        assert_string_equal(entries[i].message, expected);
                        assert_int_equal(entries[i].level, n % 4);
                        assert_int_equal(entries[i].time_ns, n * 1000);
                }
                log_entries_free(entries, count);
                offset += count;
        } while (count > 0);
        assert_int_equal(offset, total / 4 * (4 - level));
}

static void reads_pages(void **state)
{
        struct temporary *t = *state;
        int n = 0;

        for (int size = 1; n < 1000; n += size, size = size % 97 + 8)
                append(t, n, size);
        append(t, n, 4 - n % 4);
        n += 4 - n % 4;
        for (int level = 0; level < 4; level++) {
                pages(t, level, 7, n);
                pages(t, level, 100, n);
        }
        temporary_reopen(t);
        pages(t, 0, 100, n);
}

static void empty_logs(void **state)
{
        struct temporary *t = *state;
        struct log_entry *entries;
        struct error err;
        size_t count, offset;

        assert_int_equal(records_log_read(t->records, BUILD, 0, 0, 100, &entries, &count, &err), 0);
        assert_int_equal(count, 0);
        assert_int_equal(records_log_seek(t->records, BUILD, 0, 5, &offset, &err), 0);
        assert_int_equal(offset, 0);
        append(t, 0, 4);
        assert_int_equal(records_log_read(t->records, BUILD, 0, 1000000, 100, &entries, &count, &err), 0);
        assert_int_equal(count, 0);
        assert_int_equal(records_log_read(t->records, BUILD, 0, 0, 0, &entries, &count, &err), 0);
        assert_int_equal(count, 0);
}

static void seeks(void **state)
{
        struct temporary *t = *state;
        struct error err;

        for (int i = 0; i < 100; i += 10)
                append(t, i, 10);
        for (int i = 0; i <= 100; i++)
                for (int level = 0; level < 4; level++) {
                        size_t offset, expected = 0;

                        for (int k = 0; k < i; k++)
                                expected += k % 4 >= level;
                        assert_int_equal(records_log_seek(t->records, BUILD, level, i * 1000LL, &offset, &err), 0);
                        assert_int_equal(offset, expected);
                }
}

static void splits_long_lines(void **state)
{
        struct temporary *t = *state;
        size_t len = 200 * 1024, at = 0, count;
        char *line = xmalloc(len + 3);
        struct log_entry e = { .level = 1, .message = line }, *entries;
        struct error err;

        for (size_t i = 0; i < len; i += 2)
                memcpy(line + i, "\xc3\xa9", 3);
        assert_int_equal(records_log_append(t->records, BUILD, &e, 1, &err), 0);
        assert_int_equal(records_log_read(t->records, BUILD, 0, 0, 100, &entries, &count, &err), 0);
        assert_true(count > 1);
        for (size_t i = 0; i < count; i++) {
                size_t n = strlen(entries[i].message);

                assert_memory_equal(entries[i].message, line + at, n);
                at += n;
        }
        assert_int_equal(at, len);
        log_entries_free(entries, count);
        free(line);
}

static void scrubs_foreign_bytes(void **state)
{
        struct temporary *t = *state;
        struct log_entry e = { .level = 99, .message = (char *)"a\xff\x01" }, *entries;
        struct error err;
        size_t count;

        assert_int_equal(records_log_append(t->records, BUILD, &e, 1, &err), 0);
        assert_int_equal(records_log_read(t->records, BUILD, 0, 0, 100, &entries, &count, &err), 0);
        assert_string_equal(entries[0].message, "a\xef\xbf\xbd\x01");
        assert_int_equal(entries[0].level, 3);
        log_entries_free(entries, count);
}

static void caps(void **state)
{
        struct temporary *t = *state;
        size_t len = 1 << 20, offset = 0, count, bytes = 0;
        char *line = xmalloc(len + 1);
        struct log_entry noise = { .level = 1, .step = (char *)"1", .message = line },
                         end = { .level = 3, .message = (char *)"Build failed: x" };
        bool notice = false, ended = false;
        struct error err;

        memset(line, 'x', len);
        line[len] = '\0';
        for (int i = 0; i < 20; i++)
                assert_int_equal(records_log_append(t->records, BUILD, &noise, 1, &err), 0);
        assert_int_equal(records_log_append(t->records, BUILD, &end, 1, &err), 0);
        do {
                struct log_entry *entries;

                assert_int_equal(records_log_read(t->records, BUILD, 0, offset, 100, &entries, &count, &err), 0);
                for (size_t i = 0; i < count; i++) {
                        bytes += strlen(entries[i].message);
                        notice |= str_starts(entries[i].message, "[log limit reached");
                        ended |= streq(entries[i].message, end.message);
                }
                log_entries_free(entries, count);
                offset += count;
        } while (count > 0);
        assert_true(notice && ended);
        assert_true(bytes <= RECORDS_LOG_MAX_BYTES + RECORDS_LOG_RESERVE_BYTES);
        assert_true(bytes > RECORDS_LOG_MAX_BYTES / 2);
        free(line);
}

static void times_do_not_go_back(void **state)
{
        struct temporary *t = *state;
        struct log_entry e[] = { { .time_ns = 500, .message = (char *)"a" }, { .time_ns = 400, .message = (char *)"b" } }, *entries;
        struct error err;
        size_t count;

        assert_int_equal(records_log_append(t->records, BUILD, e, 2, &err), 0);
        assert_int_equal(records_log_read(t->records, BUILD, 0, 0, 100, &entries, &count, &err), 0);
        assert_int_equal(entries[1].time_ns, 500);
        log_entries_free(entries, count);
}

static void expires(void **state)
{
        struct temporary *t = *state;
        struct store_value *values;
        struct error err;
        size_t count;

        append(t, 0, 10);
        assert_int_equal(records_logs_expire(t->records, 9000, &err), 0);
        assert_int_equal(records_logs_expire(t->records, 9001, &err), 1);
        assert_int_equal(store_range(t->store, "log", NULL, 10, &values, &count, &err), 0);
        assert_int_equal(count, 0);
        store_values_free(values, count);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(reads_pages), TEST(empty_logs), TEST(seeks), TEST(splits_long_lines), TEST(scrubs_foreign_bytes),
                TEST(caps), TEST(times_do_not_go_back), TEST(expires),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
