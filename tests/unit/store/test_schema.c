/* Versions of the records: an older store is migrated, a newer one refused. */
#include "temporary.h"

#include "store/schema.h"

static int calls[3];
static bool second_fails;

static int first(struct store *s, struct error *err)
{
        calls[0]++;
        return store_put(s, "a", "1", 1, err);
}

static int second(struct store *s, struct error *err)
{
        calls[1]++;
        if (second_fails)
                return error_set(err, ERROR_UNAVAILABLE, "no room");
        return store_put(s, "a", "2", 1, err);
}

static int third(struct store *s, struct error *err)
{
        calls[2]++;
        return store_delete(s, "b", err);
}

static const schema_migration migrations[] = { first, second, third };

static void holds(struct store *s, const char *key, const char *expected)
{
        struct store_value v = {};
        struct error err;
        int r = store_get(s, key, &v, &err);

        if (expected) {
                assert_int_equal(r, 0);
                assert_string_equal(v.data, expected);
        } else {
                assert_int_equal(r, -ENOENT);
        }
        store_value_free(&v);
}

/* A store of the time before versions. */
static void forget_version(struct temporary *t)
{
        struct error err;

        assert_int_equal(store_delete(t->store, SCHEMA_KEY, &err), 0);
        memset(calls, 0, sizeof(calls));
        second_fails = false;
}

static void migrates_in_order_and_once(void **state)
{
        struct temporary *t = *state;
        struct error err;

        forget_version(t);
        assert_int_equal(store_put(t->store, "b", "x", 1, &err), 0);
        assert_int_equal(schema_open(t->store, migrations, 1, &err), 0);
        holds(t->store, "a", "1");
        holds(t->store, SCHEMA_KEY, "1");
        assert_int_equal(schema_open(t->store, migrations, 3, &err), 0);
        holds(t->store, "a", "2");
        holds(t->store, "b", NULL);
        holds(t->store, SCHEMA_KEY, "3");
        assert_int_equal(schema_open(t->store, migrations, 3, &err), 0);
        for (int i = 0; i < 3; i++)
                assert_int_equal(calls[i], 1);
}

static void goes_on_after_a_failure(void **state)
{
        struct temporary *t = *state;
        struct error err;

        forget_version(t);
        second_fails = true;
        assert_int_equal(schema_open(t->store, migrations, 3, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "version"));
        assert_non_null(strstr(err.message, "no room"));
        holds(t->store, SCHEMA_KEY, "1");
        second_fails = false;
        assert_int_equal(schema_open(t->store, migrations, 3, &err), 0);
        assert_int_equal(calls[0], 1);
        assert_int_equal(calls[1], 2);
        holds(t->store, SCHEMA_KEY, "3");
}

static void refuses_a_newer_one(void **state)
{
        struct temporary *t = *state;
        struct records *r = NULL;
        struct error err;

        assert_int_equal(store_put(t->store, SCHEMA_KEY, "99", 2, &err), 0);
        assert_int_equal(records_open(t->store, &r, &err), -EBUSY);
        assert_null(r);
        assert_int_equal(err.kind, ERROR_CONFLICT);
        assert_non_null(strstr(err.message, "version 99"));
        assert_null(strchr(err.message, '\n'));
        holds(t->store, SCHEMA_KEY, "99");
        assert_int_equal(store_put(t->store, SCHEMA_KEY, "new", 3, &err), 0);
        assert_int_equal(records_open(t->store, &r, &err), -EIO);
}

/* The records of a store that has no version yet are all there after the upgrade. */
static void upgrades_real_records(void **state)
{
        struct temporary *t = *state;
        struct team *team = temporary_team(t, "old", false);
        char *build_id = temporary_ready(t, team, "web", "default");
        struct template_record *template;
        struct build_record *build;
        struct error err;

        forget_version(t);
        temporary_reopen(t);
        assert_int_equal(records_resolve(t->records, team, "web", &template, &build, &err), 0);
        assert_string_equal(build->id, build_id);
        holds(t->store, SCHEMA_KEY, "1");
        template_record_free(template);
        build_record_free(build);
        free(build_id);
        team_free(team);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(migrates_in_order_and_once), TEST(goes_on_after_a_failure), TEST(refuses_a_newer_one), TEST(upgrades_real_records),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
