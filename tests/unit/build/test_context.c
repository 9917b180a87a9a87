#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "build/context.h"

static void image_env_drops_what_means_nothing(void **state)
{
        char *list[] = {"A=1", "B", "C=", "=d", "E=x=y", NULL};
        struct build_context c = {};

        (void)state;
        build_context_init(&c, list);
        assert_string_equal(c.user, "root");
        assert_null(c.workdir);
        assert_int_equal(json_object_size(c.env), 2);
        assert_string_equal(json_str(c.env, "A"), "1");
        assert_string_equal(json_str(c.env, "E"), "x=y");
        build_context_free(&c);
}

static void survives_json(void **state)
{
        struct build_context a = {}, b = {};
        json_t *j;

        (void)state;
        build_context_init(&a, (char *[]){"A=1", NULL});
        build_context_set_user(&a, "bob");
        j = build_context_to_json(&a);
        assert_true(build_context_from_json(j, &b));
        assert_string_equal(b.user, "bob");
        assert_null(b.workdir);
        assert_true(json_equal(a.env, b.env));
        json_decref(j);
        build_context_free(&b);
        build_context_set_workdir(&a, "/app");
        j = build_context_to_json(&a);
        assert_true(build_context_from_json(j, &b));
        assert_string_equal(b.workdir, "/app");
        json_decref(j);
        build_context_free(&a);
        build_context_free(&b);
}

static void refuses_other_shapes(void **state)
{
        static const char *const bad[] = {"{}", "[]", "{\"user\":1,\"env\":{}}", "{\"user\":\"a\"}",
                                          "{\"user\":\"a\",\"env\":{\"A\":1}}"};
        struct build_context c = {};

        (void)state;
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                json_t *j = NULL;

                assert_int_equal(json_parse(bad[i], strlen(bad[i]), &j, NULL), 0);
                assert_false(build_context_from_json(j, &c));
                json_decref(j);
        }
}

static void commands_keep_standard_directories(void **state)
{
        json_t *env = json_pack("{s:s,s:s}", "PATH", "/x", "A", "1");
        char **list = build_env_list(env, true);
        bool path = false, handed = false;
        size_t n = 0;

        (void)state;
        for (; list[n]; n++) {
                path |= !strcmp(list[n], "PATH=/x:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
                handed |= !strncmp(list[n], "VMON_BUILD_PATH=/x:", 19);
        }
        assert_int_equal(n, 3);
        assert_true(path && handed);
        build_env_free(list);
        list = build_env_list(env, false);
        assert_string_equal(list[0], "PATH=/x");
        assert_string_equal(list[1], "A=1");
        assert_null(list[2]);
        build_env_free(list);
        json_decref(env);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(image_env_drops_what_means_nothing), cmocka_unit_test(survives_json),
                cmocka_unit_test(refuses_other_shapes), cmocka_unit_test(commands_keep_standard_directories),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
