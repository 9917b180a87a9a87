#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/build.h"
#include "build/limits.h"

#define HASH "2b2ef6e85f720df2024cea51e12d1503c60ab9e91e19accf7dd5a1668a932091"

static int parse(const char *text, struct build_plan *p, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;

        if (json_parse(text, strlen(text), &j, err) < 0)
                fail_msg("test input: %s", err->message);
        return build_plan_parse(j, p, err);
}

static int parse_step(const char *step, struct build_plan *p, struct error *err)
{
        CLEANUP_FREE char *text = xasprintf("{\"fromImage\":\"a\",\"steps\":[%s]}", step);

        return parse(text, p, err);
}

static void whole_body(void **state)
{
        struct build_plan p = {};
        struct error err = {};

        (void)state;
        assert_int_equal(parse("{\"fromImage\":\"python:3.13\",\"force\":true,\"x\":{},\"startCmd\":\"s\",\"readyCmd\":\"r\","
                               "\"steps\":[{\"type\":\"run\",\"args\":[\"a\",\"root\"],\"force\":true,\"gzip\":1},"
                               "{\"type\":\"ADD\",\"args\":[\"s\",\"/d\",\"\",\"0755\"],\"force\":false,\"filesHash\":\"" HASH
                               "\"},{\"type\":\"ARG\",\"args\":[\"K\",\"v\"]}]}",
                               &p, &err), 0);
        assert_string_equal(p.from_image, "python:3.13");
        assert_null(p.from_template);
        assert_true(p.force);
        assert_int_equal(p.step_count, 3);
        assert_string_equal(p.steps[0].type, "RUN");
        assert_true(p.steps[0].force);
        assert_string_equal(p.steps[0].args[1], "root");
        assert_null(p.steps[0].args[2]);
        assert_string_equal(p.steps[1].type, "COPY");
        assert_string_equal(p.steps[1].files_hash, HASH);
        assert_string_equal(p.steps[2].type, "ENV");
        assert_string_equal(p.start_cmd, "s");
        assert_string_equal(p.ready_cmd, "r");
        build_plan_free(&p);
}

static void empty_commands_are_unset(void **state)
{
        struct build_plan p = {};
        struct error err = {};

        (void)state;
        assert_int_equal(parse("{\"fromTemplate\":\"t\",\"fromImage\":\"\",\"startCmd\":\"\",\"readyCmd\":null}", &p, &err), 0);
        assert_null(p.start_cmd);
        assert_null(p.ready_cmd);
        assert_null(p.from_image);
        assert_int_equal(p.step_count, 0);
        build_plan_free(&p);
}

static void bad_steps(void **state)
{
        static const struct {
                const char *step, *message;
        } cases[] = {
                {"{\"type\":\"VOLUME\",\"args\":[\"x\"]}", "command type VOLUME is not implemented"},
                {"{\"type\":\"volume\"}", "command type VOLUME is not implemented"},
                {"{\"args\":[\"x\"]}", "validation error: steps[0].type is required"},
                {"{\"type\":7}", "validation error: type must be a string"},
                {"7", "validation error: steps[0] must be an object"},
                {"{\"type\":\"RUN\"}", "RUN requires command argument"},
                {"{\"type\":\"RUN\",\"args\":[]}", "RUN requires command argument"},
                {"{\"type\":\"RUN\",\"args\":\"x\"}", "validation error: steps[0].args must be an array of strings"},
                {"{\"type\":\"RUN\",\"args\":[1]}", "validation error: steps[0].args[0] must be a string"},
                {"{\"type\":\"RUN\",\"args\":[\"x\"],\"force\":\"y\"}", "validation error: force must be a boolean"},
                {"{\"type\":\"WORKDIR\",\"args\":[]}", "WORKDIR requires a path argument"},
                {"{\"type\":\"USER\",\"args\":[]}", "USER requires a username argument"},
                {"{\"type\":\"ENV\",\"args\":[]}", "ENV does not support passing no arguments"},
                {"{\"type\":\"ARG\"}", "ARG does not support passing no arguments"},
                {"{\"type\":\"ENV\",\"args\":[\"a\",\"b\",\"c\"]}", "ENV requires both a key and value arguments"},
                {"{\"type\":\"COPY\",\"args\":[\"a\"]}", "COPY requires a local path and a container path argument"},
                {"{\"type\":\"COPY\",\"args\":[\"a\",\"b\"]}", "COPY requires files hash to be set"},
                {"{\"type\":\"add\",\"args\":[\"a\",\"b\"]}", "ADD requires files hash to be set"},
                {"{\"type\":\"COPY\",\"args\":[\"a\",\"b\"],\"filesHash\":\"../x\"}",
                 "Invalid files hash: 64 lower-case hex digits expected"},
                {"{\"type\":\"COPY\",\"args\":[\"../a\",\"b\"],\"filesHash\":\"" HASH "\"}",
                 "COPY source '../a' leaves the build context"},
                {"{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"u+x\"],\"filesHash\":\"" HASH "\"}",
                 "COPY mode 'u+x' is not an octal number such as 0755"},
                {"{\"type\":\"COPY\",\"args\":[\"a\",\"\"],\"filesHash\":\"" HASH "\"}",
                 "COPY requires a local path and a container path argument"},
                {"{\"type\":\"COPY\",\"args\":[\"a\",\"b\"],\"filesHash\":\"" HASH "0\"}",
                 "Invalid files hash: 64 lower-case hex digits expected"},
                {"{\"type\":\"COPY\",\"args\":[\"a\",\"b\"],\"filesHash\":\"2B" HASH "\"}",
                 "Invalid files hash: 64 lower-case hex digits expected"},
                {"{\"type\":\"ENV\",\"args\":[\"\",\"v\"]}", "ENV key '' must be a name"},
                {"{\"type\":\"ENV\",\"args\":[\"=b\",\"v\"]}", "ENV key '=b' must be a name"},
                {"{\"type\":\"WORKDIR\",\"args\":[\"\"]}", "WORKDIR requires a path argument"},
                {"{\"type\":\"WORKDIR\",\"args\":[\"/a\\n/b\"]}", "WORKDIR path must be one line"},
                {"{\"type\":\"USER\",\"args\":[\"a\\nroot\"]}", "USER username must be one line"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct build_plan p = {};
                struct error err = {};

                assert_int_equal(parse_step(cases[i].step, &p, &err), -22);
                assert_int_equal(err.kind, ERROR_INVALID);
                assert_string_equal(err.message, cases[i].message);
                assert_null(p.from_image); /* untouched on failure */
        }
}

/* The hash names a file on the host: one that is not checked must not be kept. */
static void only_copy_has_a_hash(void **state)
{
        static const char *const types[] = {"RUN", "ENV", "WORKDIR", "USER"};

        (void)state;
        for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
                CLEANUP_FREE char *step = xasprintf("{\"type\":\"%s\",\"args\":[\"a\",\"b\"],\"filesHash\":\"../../x\"}", types[i]);
                struct build_plan p = {};
                struct error err = {};

                assert_int_equal(parse_step(step, &p, &err), 0);
                assert_null(p.steps[0].files_hash);
                build_plan_free(&p);
        }
}

static void bad_bodies(void **state)
{
        static const char *const cases[] = {
                "[]",
                "{}",
                "{\"fromImage\":\"\"}",
                "{\"fromImage\":\"a\",\"fromTemplate\":\"b\"}",
                "{\"fromImage\":1}",
                "{\"fromImage\":\"a\",\"steps\":{}}",
                "{\"fromImage\":\"a\",\"force\":1}",
                "{\"fromImage\":\"a\",\"startCmd\":1}",
                "{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"foo\"}}",
                "{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"u\"}}",
                "{\"fromImage\":\"a\",\"fromImageRegistry\":7}",
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct build_plan p = {};
                struct error err = {};

                if (parse(cases[i], &p, &err) != -22)
                        fail_msg("%s was accepted", cases[i]);
                assert_true(strlen(err.message) > 0);
        }
}

static void stale_registry_with_template(void **state)
{
        struct build_plan p = {};
        struct error err = {};

        (void)state;
        assert_int_equal(parse("{\"fromTemplate\":\"t\",\"fromImageRegistry\":{\"type\":\"foo\"}}", &p, &err), 0);
        assert_int_equal(p.auth.kind, OCI_AUTH_NONE);
        build_plan_free(&p);
}

static void limits(void **state)
{
        CLEANUP_JSON json_t *j = json_pack("{s:s,s:[]}", "fromImage", "a", "steps");
        CLEANUP_FREE char *big = xmalloc(BUILD_ARG_MAX + 2);
        struct build_plan p = {};
        struct error err = {};

        (void)state;
        for (int i = 0; i < BUILD_STEPS_MAX; i++)
                json_array_append_new(json_object_get(j, "steps"), json_pack("{s:s,s:[s]}", "type", "RUN", "args", "x"));
        assert_int_equal(build_plan_parse(j, &p, &err), 0);
        assert_int_equal(p.step_count, BUILD_STEPS_MAX);
        build_plan_free(&p);
        json_array_append_new(json_object_get(j, "steps"), json_pack("{s:s,s:[s]}", "type", "RUN", "args", "x"));
        assert_int_equal(build_plan_parse(j, &p, &err), -22);
        memset(big, 'x', BUILD_ARG_MAX + 1);
        big[BUILD_ARG_MAX + 1] = 0;
        json_object_set_new(j, "steps", json_pack("[{s:s,s:[s]}]", "type", "RUN", "args", big));
        assert_int_equal(build_plan_parse(j, &p, &err), -22);
        big[BUILD_ENV_NAME_MAX + 1] = 0;
        json_object_set_new(j, "steps", json_pack("[{s:s,s:[s,s]}]", "type", "ENV", "args", big, "v"));
        assert_int_equal(build_plan_parse(j, &p, &err), -22);
        big[BUILD_ENV_NAME_MAX] = 0;
        json_object_set_new(j, "steps", json_pack("[{s:s,s:[s,s]}]", "type", "ENV", "args", big, "v"));
        assert_int_equal(build_plan_parse(j, &p, &err), 0);
        build_plan_free(&p);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(whole_body), cmocka_unit_test(empty_commands_are_unset),
                cmocka_unit_test(bad_steps),  cmocka_unit_test(bad_bodies), cmocka_unit_test(only_copy_has_a_hash),
                cmocka_unit_test(stale_registry_with_template), cmocka_unit_test(limits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
