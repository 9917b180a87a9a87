/* List queries: metadata decoding as on the wire, cursors, order, filters (sandbox-api 6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/sandbox-query.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

static struct sandbox_query parse(const char *query)
{
        struct sandbox_query q = {};
        struct error err = {};
        if (sandbox_query_parse(query, &q, &err) < 0)
                fail_msg("'%s' was refused: %s", query, err.message);
        return q;
}

static void refuse(const char *query, const char *message)
{
        struct sandbox_query q = {};
        struct error err = {};
        assert_true(sandbox_query_parse(query, &q, &err) < 0);
        assert_int_equal(err.kind, ERROR_INVALID);
        if (!strstr(err.message, message))
                fail_msg("'%s': expected \"%s\", got \"%s\"", query, message, err.message);
}

static void test_defaults(void **state)
{
        (void)state;
        struct sandbox_query q = parse("");
        assert_true(q.running && q.paused);
        assert_null(q.metadata);
        assert_null(q.template_);
        assert_false(q.ascending || q.after);
        assert_int_equal(q.limit, 100);
        sandbox_query_free(&q);
        q = parse("unknown=1&metadata=&nextToken="); /* unknown ones and empty ones are ignored */
        assert_null(q.metadata);
        assert_false(q.after);
        sandbox_query_free(&q);
}

static void test_metadata_as_sdks_send_it(void **state)
{
        (void)state;
        struct sandbox_query q = parse("metadata=a%252520b%3Dx%252526y%25253Dz%26k2%3Dv");
        assert_int_equal(json_object_size(q.metadata), 2);
        assert_string_equal(json_str(q.metadata, "a b"), "x&y=z");
        assert_string_equal(json_str(q.metadata, "k2"), "v");
        sandbox_query_free(&q);
        q = parse("metadata=user%3Dabc"); /* by hand */
        assert_string_equal(json_str(q.metadata, "user"), "abc");
        sandbox_query_free(&q);
        q = parse("metadata=empty%3D");
        assert_string_equal(json_str(q.metadata, "empty"), "");
        sandbox_query_free(&q);
}

static void test_metadata_refused(void **state)
{
        (void)state;
        refuse("metadata=abc", "Error parsing metadata");
        refuse("metadata=a%3Db%3Dc", "Error parsing metadata");
        refuse("metadata=a%3Db%26", "Error parsing metadata");
        refuse("metadata=a%3D%25zz", "Error parsing metadata");
        refuse("metadata=a%3D%2525zz", "Error parsing metadata");
        refuse("metadata=a%3D%2525ff", "Error parsing metadata"); /* not UTF-8 */
        refuse("metadata=%zz", "percent-encoded");
        struct error err = {};
        json_t *ret = NULL;
        struct buf many = {};
        for (int i = 0; i <= 100; i++)
                buf_addf(&many, "%sk%d=v", i ? "&" : "", i);
        assert_true(metadata_decode(buf_str(&many), &ret, &err) < 0);
        buf_free(&many);
}

static void test_metadata_matching(void **state)
{
        (void)state;
        CLEANUP_JSON json_t *have = json_pack("{s:s, s:s}", "a", "1", "b", "2");
        CLEANUP_JSON json_t *subset = json_pack("{s:s}", "b", "2");
        CLEANUP_JSON json_t *other = json_pack("{s:s}", "b", "3");
        assert_true(metadata_matches(have, NULL));
        assert_true(metadata_matches(NULL, NULL));
        assert_true(metadata_matches(have, subset));
        assert_false(metadata_matches(have, other));
        assert_false(metadata_matches(subset, have));
        assert_false(metadata_matches(NULL, subset));
}

static void test_states(void **state)
{
        (void)state;
        struct sandbox_query q = parse("state=running");
        assert_true(q.running && !q.paused);
        sandbox_query_free(&q);
        q = parse("state=running,paused");
        assert_true(q.running && q.paused);
        sandbox_query_free(&q);
        q = parse("state=running%2Cpaused");
        assert_true(q.running && q.paused);
        sandbox_query_free(&q);
        q = parse("state=paused&limit=5&state=running");
        assert_true(q.running && q.paused);
        sandbox_query_free(&q);
        refuse("state=killing", "state must be");
        refuse("state=running,dead", "state must be");
        refuse("state=%zz", "percent-encoded");
}

static void test_other_parameters(void **state)
{
        (void)state;
        struct sandbox_query q = parse("template=%20Team%2FBase%20&startedAfter=2026-08-21T10:00:00.000001Z&order=asc&limit=1");
        assert_string_equal(q.template_, "team/base");
        assert_true(q.ascending);
        assert_int_equal(q.limit, 1);
        assert_int_equal(q.started_after_ns % NSEC_PER_SEC, 1000);
        sandbox_query_free(&q);
        refuse("template=base%3Atag", "Invalid template");
        refuse("template=a%2Fb%2Fc", "Invalid template");
        refuse("template=%20", "Invalid template");
        refuse("template=%2Fx", "Invalid template");
        refuse("template=x%2F", "Invalid template");
        refuse("startedAfter=yesterday", "startedAfter");
        refuse("order=up", "order");
        refuse("limit=0", "limit");
        refuse("limit=101", "limit");
        refuse("limit=-1", "limit");
        refuse("limit=x", "limit");
        refuse("limit=", "limit");
}

static void test_cursor(void **state)
{
        (void)state;
        char cursor[CURSOR_MAX], id[65];
        int64_t started = 0;
        cursor_format(1700000000123456789LL, "i0123456789abcdefghij", false, cursor);
        assert_null(strpbrk(cursor, "+/= "));
        assert_int_equal(cursor_parse(cursor, false, &started, id, NULL), 0);
        assert_true(started == 1700000000123456789LL);
        assert_string_equal(id, "i0123456789abcdefghij");
        struct error err = {};
        assert_true(cursor_parse(cursor, true, &started, id, &err) < 0); /* of the other order */
        assert_string_equal(err.message, "Invalid next token");
        refuse("nextToken=garbage", "Invalid next token");
        refuse("nextToken=%2B%2B", "Invalid next token");
        char query[CURSOR_MAX + 16];
        snprintf(query, sizeof query, "nextToken=%s", cursor);
        struct sandbox_query q = parse(query);
        assert_true(q.after);
        sandbox_query_free(&q);
        char long_token[2048];
        memset(long_token, 'A', sizeof long_token);
        long_token[sizeof long_token - 1] = '\0';
        assert_true(cursor_parse(long_token, false, &started, id, &err) < 0);
}

static void test_every_cut_cursor_is_refused(void **state)
{
        (void)state;
        char cursor[CURSOR_MAX], id[65];
        int64_t started;
        cursor_format(1700000000123456789LL, "iabc", true, cursor);
        for (size_t len = strlen(cursor) - 1; len > 0; len--) {
                cursor[len] = '\0';
                assert_true(cursor_parse(cursor, true, &started, id, NULL) < 0);
        }
}

static void test_order(void **state)
{
        (void)state;
        assert_true(sandbox_order(2, "a", 1, "b", false) < 0); /* the later one first */
        assert_true(sandbox_order(1, "a", 1, "b", false) < 0);
        assert_true(sandbox_order(2, "a", 1, "b", true) > 0);
        assert_true(sandbox_order(1, "a", 1, "b", true) > 0); /* the exact mirror */
        assert_int_equal(sandbox_order(1, "a", 1, "a", false), 0);
}

static void test_filters(void **state)
{
        (void)state;
        char id[] = "ib";
        struct sandbox_info i = { .id = id, .started_ns = 5000999 };
        struct sandbox_query q = { .started_after_ns = 5000000 };
        assert_true(sandbox_query_matches(&q, &i));
        q.started_after_ns = 5000999 + 1; /* the next microsecond */
        assert_false(sandbox_query_matches(&q, &i));
        q.started_after_ns = 5000500; /* the same microsecond: inclusive */
        assert_true(sandbox_query_matches(&q, &i));
        q = (struct sandbox_query){ .after = true, .after_started_ns = 5000999, .after_id = "ia" };
        assert_true(sandbox_query_is_after(&q, &i));
        strcpy(q.after_id, "ib");
        assert_false(sandbox_query_is_after(&q, &i));
        q.after_started_ns = 1;
        assert_false(sandbox_query_is_after(&q, &i));
        q.ascending = true;
        assert_true(sandbox_query_is_after(&q, &i));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_defaults),
                cmocka_unit_test(test_metadata_as_sdks_send_it),
                cmocka_unit_test(test_metadata_refused),
                cmocka_unit_test(test_metadata_matching),
                cmocka_unit_test(test_states),
                cmocka_unit_test(test_other_parameters),
                cmocka_unit_test(test_cursor),
                cmocka_unit_test(test_every_cut_cursor_is_refused),
                cmocka_unit_test(test_order),
                cmocka_unit_test(test_filters),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
