/* The sandbox's record in the store: what is written is what is read, damage is refused, no secret is in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "sandbox/manager.h"

static struct sandbox_info *sample(void)
{
        struct sandbox_info *i = xcalloc(1, sizeof *i);
        i->id = xstrdup("i0123456789abcdefghij");
        i->team_id = xstrdup("team");
        i->template_id = xstrdup("template");
        i->build_id = xstrdup("build");
        i->envd_version = xstrdup("0.6.13");
        i->envd_token = xstrdup("secret-envd-token");
        i->traffic_token = xstrdup("secret-traffic-token");
        i->started_ns = 1700000000123456789LL;
        i->ends_ns = 1700000300123456789LL;
        i->vcpus = 2;
        i->memory_mb = 1024;
        i->disk_mb = 10240;
        i->nothing_started = true;
        i->metadata = json_pack("{s:s}", "k", "v");
        i->allow_internet_access = json_true();
        return i;
}

static void test_round_trip(void **state)
{
        (void)state;
        struct sandbox_info *i = sample(), *back = NULL;
        bool secure = false, public_traffic = true;
        json_t *j = sandbox_record_write(i, true, false);
        assert_non_null(j);
        assert_int_equal(sandbox_record_read(i->id, j, &back, &secure, &public_traffic, NULL), 0);
        assert_true(secure);
        assert_false(public_traffic);
        assert_string_equal(back->id, i->id);
        assert_string_equal(back->team_id, "team");
        assert_string_equal(back->envd_version, "0.6.13");
        assert_null(back->alias);
        assert_true(back->started_ns == i->started_ns && back->ends_ns == i->ends_ns);
        assert_true(back->nothing_started);
        assert_int_equal(back->vcpus, 2);
        assert_int_equal(back->memory_mb, 1024);
        assert_true(json_equal(back->metadata, i->metadata));
        assert_true(json_is_true(back->allow_internet_access));
        assert_null(back->network);
        json_decref(j);
        sandbox_info_free(i);
        sandbox_info_free(back);
}

static void test_no_secret(void **state)
{
        (void)state;
        struct sandbox_info *i = sample();
        json_t *j = sandbox_record_write(i, true, false);
        CLEANUP_FREE char *text = json_text(j);
        assert_null(strstr(text, "secret-"));
        json_decref(j);
        sandbox_info_free(i);
}

static void test_damage(void **state)
{
        (void)state;
        static const char *const members[] = { "version", "team", "template", "build", "envd_version", "started_ns", "ends_ns",
                                               "vcpus", "memory_mb", "disk_mb" };
        struct sandbox_info *i = sample();
        for (size_t n = 0; n < sizeof members / sizeof *members; n++) {
                struct sandbox_info *back = NULL;
                struct error err = {};
                bool secure, public_traffic;
                json_t *j = sandbox_record_write(i, true, false);
                json_object_del(j, members[n]);
                assert_true(sandbox_record_read(i->id, j, &back, &secure, &public_traffic, &err) < 0);
                assert_int_equal(err.kind, ERROR_INVALID);
                assert_null(back);
                json_decref(j);
        }
        sandbox_info_free(i);
}

static void test_copy(void **state)
{
        (void)state;
        struct sandbox_info *i = sample();
        struct sandbox_info *c = sandbox_info_copy(i);
        json_object_set_new(i->metadata, "k", json_string("changed"));
        assert_string_equal(json_str(c->metadata, "k"), "v");
        assert_string_equal(c->envd_token, i->envd_token);
        sandbox_info_free(i);
        assert_string_equal(c->team_id, "team");
        sandbox_info_free(c);
        sandbox_info_free(NULL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trip),
                cmocka_unit_test(test_no_secret),
                cmocka_unit_test(test_damage),
                cmocka_unit_test(test_copy),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
