/* Header lists, percent-encoding and queries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "http/message.h"

static void test_headers(void **state)
{
        struct http_headers h = {}, copy = {};

        (void)state;
        http_headers_add(&h, "X-A", "  one \t");
        http_headers_add(&h, "x-a", "two");
        http_headers_addf(&h, "X-N", "%d", 7);
        assert_string_equal(http_headers_get(&h, "X-a"), "one");
        assert_null(http_headers_get(&h, "X"));
        http_headers_set(&h, "X-A", http_headers_get(&h, "x-a"));
        assert_int_equal(h.count, 2);
        assert_string_equal(http_headers_get(&h, "x-a"), "one");
        http_headers_copy(&copy, &h);
        http_headers_remove(&h, "x-n");
        assert_int_equal(h.count, 1);
        assert_string_equal(http_headers_get(&copy, "x-N"), "7");
        http_headers_free(&h);
        http_headers_free(&copy);
}

static void test_tokens(void **state)
{
        struct http_headers h = {};

        (void)state;
        http_headers_add(&h, "Connection", "keep-alive , Upgrade;x=1");
        http_headers_add(&h, "connection", "TE");
        assert_true(http_headers_has_token(&h, "Connection", "upgrade"));
        assert_true(http_headers_has_token(&h, "Connection", "te"));
        assert_true(http_headers_has_token(&h, "Connection", "Keep-Alive"));
        assert_false(http_headers_has_token(&h, "Connection", "keep"));
        assert_false(http_headers_has_token(&h, "Connection", "close"));
        http_headers_free(&h);
}

static void check_decode(const char *in, bool plus, const char *want)
{
        CLEANUP_FREE char *out = url_decode(in, strlen(in), plus);

        if (!want)
                assert_null(out);
        else
                assert_string_equal(out, want);
}

static void test_decode(void **state)
{
        (void)state;
        check_decode("a%2Fb%3ac", false, "a/b:c");
        check_decode("a+b", false, "a+b");
        check_decode("a+b%2B", true, "a b+");
        check_decode("", false, "");
        check_decode("%", false, NULL);
        check_decode("%4", false, NULL);
        check_decode("%zz", false, NULL);
        check_decode("%-1", false, NULL);
        check_decode("a%00b", false, NULL);
        check_decode("%25%32%35", false, "%25");
}

static void test_encode(void **state)
{
        CLEANUP_FREE char *all = url_encode("a b/ü~", false), *path = url_encode("/a/%", true);

        (void)state;
        assert_string_equal(all, "a%20b%2F%C3%BC~");
        assert_string_equal(path, "/a/%25");
}

static void test_query(void **state)
{
        bool bad = false;
        char *v;

        (void)state;
        v = query_get("a=1&b=x+y%26&b=2&c&=e", "b", &bad);
        assert_string_equal(v, "x y&");
        free(v);
        v = query_get("a=1&c&d=", "c", &bad);
        assert_string_equal(v, "");
        free(v);
        v = query_get("%61=5", "a", &bad);
        assert_string_equal(v, "5");
        free(v);
        v = query_get("a=b=c", "a", &bad);
        assert_string_equal(v, "b=c");
        free(v);
        assert_null(query_get("a=1", "b", &bad));
        assert_null(query_get("", "b", &bad));
        assert_false(bad);
        assert_null(query_get("b=%g0", "b", &bad));
        assert_true(bad);
        assert_null(query_get("b=%g0", "b", NULL));
}

static void test_status(void **state)
{
        (void)state;
        assert_string_equal(http_status_text(201), "Created");
        assert_string_equal(http_status_text(299), "Unknown");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_headers), cmocka_unit_test(test_tokens), cmocka_unit_test(test_decode),
                cmocka_unit_test(test_encode),  cmocka_unit_test(test_query),  cmocka_unit_test(test_status),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
