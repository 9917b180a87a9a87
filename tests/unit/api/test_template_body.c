/* Bodies, queries and page tokens of the template API (template-api 4.1, 18.3). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/template-body.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

static int parse(const char *text, bool v2, struct create_body *ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;

        *err = (struct error){};
        assert_int_equal(json_parse(text, strlen(text), &j, err), 0);
        return create_body_parse(j, v2, "acme", ret, err);
}

static void accepts(const char *text, const char *alias, const char *tags, unsigned vcpus, unsigned memory_mb)
{
        struct create_body b = {};
        struct error err;
        char got[256] = "";

        if (parse(text, false, &b, &err) < 0)
                fail_msg("%s: %s", text, err.message);
        assert_string_equal(b.name.alias, alias);
        for (char **t = b.tags; *t; t++) {
                strcat(got, *t);
                strcat(got, " ");
        }
        assert_string_equal(got, tags);
        assert_int_equal(b.vcpus, vcpus);
        assert_int_equal(b.memory_mb, memory_mb);
        create_body_clear(&b);
}

static void refuses(const char *text, const char *message)
{
        struct create_body b = {};
        struct error err;

        assert_int_equal(parse(text, false, &b, &err), -EINVAL);
        assert_int_equal(err.kind, ERROR_INVALID);
        if (!str_starts(err.message, message))
                fail_msg("%s: '%s' instead of '%s'", text, err.message, message);
        assert_null(b.name.alias);
}

static void good_bodies(void **state)
{
        (void)state;
        accepts("{\"name\":\"web\"}", "web", "default ", 2, 1024);
        accepts("{\"name\":\"Web\",\"cpuCount\":8,\"memoryMB\":512}", "web", "default ", 8, 512);
        accepts("{\"name\":\"  web  :  v1  \"}", "web", "v1 ", 2, 1024);
        accepts("{\"name\":\"web:v1\",\"tags\":[\"stable\",\"V1\",\"stable\"]}", "web", "v1 stable ", 2, 1024);
        accepts("{\"name\":\"web:default\"}", "web", "default ", 2, 1024);
        accepts("{\"name\":\"web:default\",\"tags\":[\"v1\"]}", "web", "default v1 ", 2, 1024);
        accepts("{\"name\":\"web\",\"tags\":[\"v9\"]}", "web", "v9 ", 2, 1024);
        accepts("{\"name\":\"web\",\"tags\":[]}", "web", "default ", 2, 1024);
        accepts("{\"name\":\"web\",\"tags\":null,\"cpuCount\":null}", "web", "default ", 2, 1024);
        accepts("{\"name\":\"acme/web\"}", "web", "default ", 2, 1024);
        accepts("{\"alias\":\"web\"}", "web", "default ", 2, 1024);
        accepts("{\"name\":\"a1\",\"alias\":\"b1\"}", "a1", "default ", 2, 1024);
        accepts("{\"name\":\"web:v1.0_x-y\"}", "web", "v1.0_x-y ", 2, 1024);
        accepts("{\"name\":\"web\",\"minFreeDiskMb\":5000,\"teamID\":\"x\",\"foo\":{}}", "web", "default ", 2, 1024);
}

static void bad_bodies(void **state)
{
        char *longer = xmalloc(200), *text;

        (void)state;
        memset(longer, 'a', 129);
        longer[129] = '\0';
        text = xasprintf("{\"name\":\"%s\"}", longer);
        refuses(text, "validation error");
        free(text);
        free(longer);
        refuses("{}", "Name is required");
        refuses("{\"name\":null}", "Name is required");
        refuses("{\"name\":\"\"}", "Invalid name: ");
        refuses("{\"name\":\"web:\"}", "Invalid name: invalid tag: ");
        refuses("{\"name\":\"/web\"}", "Invalid name: invalid namespace: ");
        refuses("{\"name\":\"a/b/c\"}", "Invalid name: ");
        refuses("{\"name\":\"web!\"}", "Invalid name: invalid template ID: web!");
        refuses("{\"name\":\"w\\u00e9b\"}", "Invalid name: ");
        refuses("{\"name\":\"web\\u0000x\"}", "validation error");
        refuses("{\"name\":7}", "validation error");
        refuses("{\"name\":\"globex/web\"}", "namespace 'globex' must match your team 'acme'");
        refuses("{\"name\":\"web:550e8400-e29b-41d4-a716-446655440000\"}", "Invalid tag: tag cannot be a UUID");
        refuses("{\"name\":\"web\",\"tags\":[\"550e8400-e29b-41d4-a716-446655440000\"]}", "Invalid tag: tag cannot be a UUID");
        refuses("{\"name\":\"web\",\"tags\":[\"\"]}", "Invalid tag: invalid tag: ");
        refuses("{\"name\":\"web\",\"tags\":[\"a b\"]}", "Invalid tag: invalid tag: a b");
        refuses("{\"name\":\"web\",\"tags\":[1]}", "validation error");
        refuses("{\"name\":\"web\",\"tags\":\"v1\"}", "validation error");
        refuses("{\"name\":\"web\",\"cpuCount\":0}", "validation error");
        refuses("{\"name\":\"web\",\"cpuCount\":\"2\"}", "validation error");
        refuses("{\"name\":\"web\",\"cpuCount\":2.5}", "validation error");
        refuses("{\"name\":\"web\",\"cpuCount\":99999999999}", "validation error");
        refuses("{\"name\":\"web\",\"memoryMB\":32}", "validation error");
        refuses("{\"name\":\"web\",\"minFreeDiskMb\":-1}", "validation error");
}

static void old_bodies(void **state)
{
        struct create_body b = {};
        struct error err;

        (void)state;
        assert_int_equal(parse("{\"alias\":\"web:v1\",\"name\":\"x\",\"tags\":[\"y\"]}", true, &b, &err), 0);
        assert_string_equal(b.name.alias, "web");
        assert_string_equal(b.tags[0], "v1");
        assert_null(b.tags[1]);
        create_body_clear(&b);
        assert_int_equal(parse("{\"name\":\"web\"}", true, &b, &err), -EINVAL);
        assert_true(str_starts(err.message, "validation error"));
}

static void integers(void **state)
{
        const struct {
                const char *query;
                int64_t expected; /* -1: refused */
        } cases[] = {
                { "", 7 }, { "limit=1", 1 }, { "limit=100", 100 }, { "limit=0", -1 }, { "limit=101", -1 }, { "limit=-1", -1 },
                { "limit=", -1 }, { "limit=1x", -1 }, { "limit=%31", 1 }, { "limit=99999999999999999999", -1 }, { "x=1&limit=5", 5 },
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                int64_t got = 7;
                struct error err;
                int r = query_integer(cases[i].query, "limit", 1, 100, &got, &err);

                assert_int_equal(r, cases[i].expected < 0 ? -EINVAL : 0);
                if (r == 0)
                        assert_int_equal(got, cases[i].expected);
                else
                        assert_true(str_starts(err.message, "validation error"));
        }
}

static void choices(void **state)
{
        static const char *const levels[] = { "debug", "info", NULL };
        struct error err;
        int got = 5;

        (void)state;
        assert_int_equal(query_choice("", "level", levels, &got, &err), 0);
        assert_int_equal(got, 5);
        assert_int_equal(query_choice("level=info", "level", levels, &got, &err), 0);
        assert_int_equal(got, 1);
        assert_int_equal(query_choice("level=trace", "level", levels, &got, &err), -EINVAL);
}

static void tokens(void **state)
{
        const char *const wrong[] = { "", "zzz", "!", "MjAyNg", "MjAyNi0wOS0wMVQxMDowMDowMFpfXw", "eF9feA" };
        int64_t time = 0;
        struct error err;
        char *id;

        (void)state;
        for (int64_t ns = 1000; ns < 1000000000000000000LL; ns = ns * 7 / 1000 * 1000 + 1000) {
                char *token = page_token(ns, "k3v9q0m2x7c1b8n4d5f6");

                assert_int_equal(page_token_parse(token, &time, &id, &err), 0);
                assert_int_equal(time, ns);
                assert_string_equal(id, "k3v9q0m2x7c1b8n4d5f6");
                free(id);
                free(token);
        }
        for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
                assert_int_equal(page_token_parse(wrong[i], &time, &id, &err), -EINVAL);
                assert_string_equal(err.message, "Invalid next token");
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(good_bodies), cmocka_unit_test(bad_bodies), cmocka_unit_test(old_bodies),
                cmocka_unit_test(integers),    cmocka_unit_test(choices),    cmocka_unit_test(tokens),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
