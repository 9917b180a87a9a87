/* Registration, states, tags, deletion, lists. */
#include "temporary.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

static void state_is(struct temporary *t, const char *id, enum build_state state, const char *reason)
{
        struct build_record *b;
        struct error err;

        assert_int_equal(records_build_get(t->records, id, &b, &err), 0);
        assert_int_equal(b->state, state);
        assert_true(streq(b->reason, reason));
        build_record_free(b);
}

static void registers(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false), *globex = temporary_team(t, "globex", false);
        struct registered a = {}, b = {}, c = {};
        struct error err;
        char **names;

        assert_int_equal(temporary_register(t, acme, "web", "default", &a, &err), 0);
        assert_true(name_is_template_id(a.template->id));
        assert_true(uuid_valid(a.build->id));
        assert_int_equal(a.template->build_count, 1);
        assert_int_equal(temporary_register(t, acme, "web", "default", &b, &err), 0);
        assert_string_equal(a.template->id, b.template->id);
        assert_string_not_equal(a.build->id, b.build->id);
        assert_int_equal(b.template->build_count, 2);
        assert_string_equal(b.template->latest_default, b.build->id);
        state_is(t, a.build->id, BUILD_ERROR, BUILD_REASON_SUPERSEDED);
        state_is(t, b.build->id, BUILD_WAITING, NULL);
        assert_int_equal(temporary_register(t, globex, "web", "default", &c, &err), 0);
        assert_string_not_equal(a.template->id, c.template->id);
        assert_int_equal(records_template_names(t->records, c.template, &names, &err), 0);
        assert_string_equal(names[0], "globex/web");
        assert_null(names[1]);
        name_list_free(names);
        registered_free(&a);
        registered_free(&b);
        registered_free(&c);
        team_free(acme);
        team_free(globex);
}

static void rebuilds_by_id(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false), *globex = temporary_team(t, "globex", false);
        struct registered a = {}, b = {}, c = {};
        struct error err;
        char **builds;

        assert_int_equal(temporary_register(t, acme, "web", "v1", &a, &err), 0);
        assert_int_equal(temporary_register(t, acme, a.template->id, "v2", &b, &err), 0);
        assert_string_equal(b.template->id, a.template->id);
        assert_string_equal(b.template->aliases[0], "web");
        assert_null(b.template->aliases[1]);
        assert_int_equal(temporary_register(t, globex, a.template->id, "v2", &c, &err), -EBUSY);
        assert_int_equal(err.kind, ERROR_CONFLICT);
        assert_int_equal(records_template_delete(t->records, a.template->id, &builds, &err), 0);
        assert_int_equal(name_list_len(builds), 2);
        name_list_free(builds);
        assert_int_equal(temporary_register(t, acme, a.template->id, "v2", &c, &err), -EBUSY);
        assert_int_equal(temporary_register(t, acme, "web", "v2", &c, &err), 0);
        assert_string_not_equal(c.template->id, a.template->id);
        registered_free(&a);
        registered_free(&b);
        registered_free(&c);
        team_free(acme);
        team_free(globex);
}

static void limits_builds(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        struct registered a = {}, b = {}, c = {}, d = {};
        struct error err;

        acme->max_concurrent_builds = 2;
        assert_int_equal(temporary_register(t, acme, "one", "default", &a, &err), 0);
        assert_int_equal(temporary_register(t, acme, "one", "v1", &b, &err), 0);
        assert_int_equal(temporary_register(t, acme, "two", "default", &c, &err), -EDQUOT);
        assert_int_equal(err.kind, ERROR_LIMIT);
        assert_non_null(strstr(err.message, "(2)"));
        /* What is superseded does not count. */
        assert_int_equal(temporary_register(t, acme, "one", "v1", &c, &err), 0);
        assert_int_equal(records_build_fail(t->records, a.build->id, "no", "base", &err), 0);
        assert_int_equal(temporary_register(t, acme, "two", "default", &d, &err), 0);
        registered_free(&a);
        registered_free(&b);
        registered_free(&c);
        registered_free(&d);
        team_free(acme);
}

static void checks_resources(void **state)
{
        const struct {
                unsigned vcpus, memory_mb;
                const char *message;
        } cases[] = {
                { 1, 128, NULL },
                { 8, 8192, NULL },
                { 3, 1024, "CPU count must be 1 or an even number" },
                { 33, 1024, "CPU count must be at most 32" },
                { 1024, 1024, "CPU count must be at most 32" },
                { 16, 1024, "CPU count can't be higher than 8" },
                { 2, 1001, "Memory must be divisible by 2" },
                { 2, 8194, "Memory can't be higher than 8192 MiB" },
        };
        struct team team = {};

        (void)state;
        team_defaults(&team);
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                struct error err = {};
                int r = team_check_resources(&team, cases[i].vcpus, cases[i].memory_mb, &err);

                assert_int_equal(r, cases[i].message ? -EINVAL : 0);
                if (r < 0)
                        assert_true(str_starts(err.message, cases[i].message));
        }
}

static void moves_through_states(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        struct registered g = {};
        struct build_record result = { .envd_version = (char *)"0.5.20", .default_user = (char *)"user", .disk_bytes = 7 }, *b;
        struct error err;

        assert_int_equal(temporary_register(t, acme, "web", "v1", &g, &err), 0);
        result.id = g.build->id;
        result.env = json_pack("{s:s}", "A", "1");
        assert_int_equal(records_build_ready(t->records, &result, &err), -EBUSY);
        assert_int_equal(records_build_start(t->records, g.build->id, &err), 0);
        assert_int_equal(records_build_start(t->records, g.build->id, &err), -EBUSY);
        assert_string_equal(err.message, "build is not in waiting state");
        assert_int_equal(records_build_ready(t->records, &result, &err), 0);
        assert_int_equal(records_build_ready(t->records, &result, &err), -EBUSY);
        assert_int_equal(records_build_fail(t->records, g.build->id, "late", NULL, &err), 0);
        assert_int_equal(records_build_get(t->records, g.build->id, &b, &err), 0);
        assert_int_equal(b->state, BUILD_READY);
        assert_string_equal(b->envd_version, "0.5.20");
        assert_string_equal(b->default_user, "user");
        assert_null(b->workdir);
        assert_string_equal(json_string_value(json_object_get(b->env, "A")), "1");
        assert_int_equal(b->disk_bytes, 7);
        assert_true(b->finished_ns > b->started_ns && b->started_ns > b->created_ns);
        build_record_free(b);
        assert_int_equal(records_build_start(t->records, "550e8400-e29b-41d4-a716-446655440000", &err), -ENOENT);
        json_decref(result.env);
        registered_free(&g);
        team_free(acme);
}

static void cancels_overlapping_only(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        struct registered a = {}, b = {}, c = {}, other = {};
        struct error err;
        char **ids;

        assert_int_equal(temporary_register(t, acme, "web", "v1", &a, &err), 0);
        assert_int_equal(records_build_start(t->records, a.build->id, &err), 0);
        assert_int_equal(temporary_register(t, acme, "web", "v2", &b, &err), 0);
        assert_int_equal(records_build_start(t->records, b.build->id, &err), 0);
        assert_int_equal(temporary_register(t, acme, "other", "v1", &other, &err), 0);
        assert_int_equal(records_build_start(t->records, other.build->id, &err), 0);
        assert_int_equal(temporary_register(t, acme, "web", "v1", &c, &err), 0);
        assert_int_equal(records_build_overlapping(t->records, c.build->id, &ids, &err), 0);
        assert_int_equal(name_list_len(ids), 1);
        assert_string_equal(ids[0], a.build->id);
        name_list_free(ids);
        registered_free(&a);
        registered_free(&b);
        registered_free(&c);
        registered_free(&other);
        team_free(acme);
}

static void interrupts_and_expires(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        struct registered a = {}, b = {};
        struct error err;

        assert_int_equal(temporary_register(t, acme, "a", "v1", &a, &err), 0);
        assert_int_equal(temporary_register(t, acme, "b", "v1", &b, &err), 0);
        assert_int_equal(records_build_start(t->records, a.build->id, &err), 0);
        temporary_reopen(t);
        assert_int_equal(records_builds_interrupted(t->records, "cut off", &err), 1);
        state_is(t, a.build->id, BUILD_ERROR, "cut off");
        state_is(t, b.build->id, BUILD_WAITING, NULL);
        assert_int_equal(records_builds_expire(t->records, b.build->created_ns, &err), 0);
        assert_int_equal(records_builds_expire(t->records, b.build->created_ns + 1, &err), 1);
        state_is(t, b.build->id, BUILD_ERROR, BUILD_REASON_WAITED);
        registered_free(&a);
        registered_free(&b);
        team_free(acme);
}

/* What a process leaves that was killed behind the first transaction of a deletion. */
static void ends_builds_of_a_cut_off_deletion(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        struct registered gone = {}, kept = {};
        struct store_value v;
        struct error err;

        assert_int_equal(temporary_register(t, acme, "gone", "v1", &gone, &err), 0);
        assert_int_equal(temporary_register(t, acme, "kept", "v1", &kept, &err), 0);
        CLEANUP_FREE char *key = xasprintf("template/%s", gone.template->id);
        assert_int_equal(store_get(t->store, key, &v, &err), 0);
        CLEANUP_JSON json_t *j = json_loadb(v.data, v.len, 0, NULL);
        json_object_set_new(j, "deleted", json_true());
        CLEANUP_FREE char *text = json_dumps(j, 0);
        assert_int_equal(store_put(t->store, key, text, strlen(text), &err), 0);
        store_value_free(&v);
        assert_int_equal(records_builds_expire(t->records, 0, &err), 1);
        state_is(t, gone.build->id, BUILD_ERROR, BUILD_REASON_CANCELLED);
        state_is(t, kept.build->id, BUILD_WAITING, NULL);
        assert_int_equal(records_builds_expire(t->records, 0, &err), 0);
        registered_free(&gone);
        registered_free(&kept);
        team_free(acme);
}

static void deletes_for_good(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        struct build_record result = {};
        struct template_record *template;
        struct tag_record *tags;
        struct registered g = {};
        char *ready = temporary_ready(t, acme, "web", "v1"), **builds;
        struct error err;
        size_t count;

        assert_int_equal(temporary_register(t, acme, "web", "v2", &g, &err), 0);
        assert_int_equal(records_build_start(t->records, g.build->id, &err), 0);
        assert_int_equal(records_template_delete(t->records, g.template->id, &builds, &err), 0);
        assert_int_equal(name_list_len(builds), 1);
        assert_string_equal(builds[0], g.build->id);
        name_list_free(builds);
        state_is(t, g.build->id, BUILD_ERROR, BUILD_REASON_CANCELLED);
        result.id = g.build->id;
        assert_int_equal(records_build_ready(t->records, &result, &err), -EBUSY);
        assert_int_equal(records_template_delete(t->records, g.template->id, &builds, &err), -ENOENT);
        assert_int_equal(records_template_get(t->records, g.template->id, &template, &err), -ENOENT);
        assert_int_equal(records_tags_list(t->records, g.template->id, &tags, &count, &err), 0);
        assert_int_equal(count, 0);
        tag_records_free(tags, count);
        assert_int_equal(records_tags_assign(t->records, g.template->id, ready, (char *[]){ (char *)"v3", NULL }, &err), -ENOENT);
        registered_free(&g);
        free(ready);
        team_free(acme);
}

static void tags_by_hand(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        char *one = temporary_ready(t, acme, "web", "v1"), *two = temporary_ready(t, acme, "web", "v2"),
             *foreign = temporary_ready(t, acme, "other", "v1");
        char *names[] = { (char *)"prod", (char *)"default", NULL }, *gone[] = { (char *)"prod", (char *)"nope", NULL };
        struct build_record *b;
        struct tag_record *tags;
        struct error err;
        size_t count;

        assert_int_equal(records_build_get(t->records, one, &b, &err), 0);
        assert_int_equal(records_tags_assign(t->records, b->template_id, two, names, &err), 0);
        assert_int_equal(records_tags_assign(t->records, b->template_id, foreign, names, &err), -ENOENT);
        assert_int_equal(records_tags_delete(t->records, b->template_id, gone, &err), 0);
        assert_int_equal(records_tags_list(t->records, b->template_id, &tags, &count, &err), 0);
        assert_int_equal(count, 3);
        assert_string_equal(tags[0].tag, "default");
        assert_string_equal(tags[0].build_id, two);
        assert_string_equal(tags[1].tag, "v1");
        assert_string_equal(tags[1].build_id, one);
        assert_string_equal(tags[2].tag, "v2");
        tag_records_free(tags, count);
        build_record_free(b);
        free(one);
        free(two);
        free(foreign);
        team_free(acme);
}

static void lists_in_pages(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false), *globex = temporary_team(t, "globex", false);
        struct template_record **page;
        struct registered g[5] = {}, foreign = {};
        struct list_cursor after;
        struct error err;
        size_t count;
        bool more;

        for (int i = 0; i < 5; i++) {
                char alias[] = { (char)('a' + i), 0 };

                assert_int_equal(temporary_register(t, acme, alias, "v1", &g[i], &err), 0);
        }
        assert_int_equal(temporary_register(t, globex, "x", "v1", &foreign, &err), 0);
        assert_int_equal(records_template_list(t->records, acme->id, NULL, 2, &page, &count, &more, &err), 0);
        assert_int_equal(count, 2);
        assert_true(more);
        assert_string_equal(page[0]->id, g[4].template->id);
        assert_string_equal(page[1]->id, g[3].template->id);
        after = (struct list_cursor){ page[1]->created_ns, g[3].template->id };
        template_records_free(page, count);
        assert_int_equal(records_template_list(t->records, acme->id, &after, 3, &page, &count, &more, &err), 0);
        assert_int_equal(count, 3);
        assert_false(more);
        assert_string_equal(page[2]->id, g[0].template->id);
        template_records_free(page, count);
        for (int i = 0; i < 5; i++)
                registered_free(&g[i]);
        registered_free(&foreign);
        team_free(acme);
        team_free(globex);
}

static void lists_builds(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false);
        struct registered a = {}, b = {};
        struct build_record **page;
        struct list_cursor after;
        struct error err;
        size_t count;
        bool more;

        assert_int_equal(temporary_register(t, acme, "web", "v1", &a, &err), 0);
        assert_int_equal(temporary_register(t, acme, "web", "v2", &b, &err), 0);
        assert_int_equal(records_build_list(t->records, a.template->id, NULL, 1, &page, &count, &more, &err), 0);
        assert_int_equal(count, 1);
        assert_true(more);
        assert_string_equal(page[0]->id, b.build->id);
        after = (struct list_cursor){ page[0]->created_ns, b.build->id };
        build_records_free(page, count);
        assert_int_equal(records_build_list(t->records, a.template->id, &after, 1, &page, &count, &more, &err), 0);
        assert_int_equal(count, 1);
        assert_false(more);
        assert_string_equal(page[0]->id, a.build->id);
        build_records_free(page, count);
        registered_free(&a);
        registered_free(&b);
        team_free(acme);
}

static int collect(void *data, const char *id, const json_t *j)
{
        strcat(data, id);
        strcat(data, json_string_value(json_object_get(j, "k")));
        return 0;
}

static void keeps_sandboxes(void **state)
{
        struct temporary *t = *state;
        json_t *j = json_pack("{s:s}", "k", "=1 ");
        char got[64] = "";
        struct error err;

        assert_int_equal(records_sandbox_put(t->records, "b", j, &err), 0);
        assert_int_equal(records_sandbox_put(t->records, "a", j, &err), 0);
        assert_int_equal(records_sandbox_put(t->records, "c", j, &err), 0);
        assert_int_equal(records_sandbox_delete(t->records, "c", &err), 0);
        temporary_reopen(t);
        assert_int_equal(records_sandbox_each(t->records, collect, got, &err), 0);
        assert_string_equal(got, "a=1 b=1 ");
        json_decref(j);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(registers), TEST(rebuilds_by_id), TEST(limits_builds), TEST(checks_resources), TEST(moves_through_states),
                TEST(cancels_overlapping_only), TEST(interrupts_and_expires), TEST(ends_builds_of_a_cut_off_deletion), TEST(deletes_for_good), TEST(tags_by_hand),
                TEST(lists_in_pages), TEST(lists_builds), TEST(keeps_sandboxes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
