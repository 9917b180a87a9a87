/* Teams and keys. */
#include "temporary.h"

#include "base/str.h"

static void creates(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false), *got, **list, copy;
        struct error err;
        size_t count;

        copy = *acme;
        copy.id = (char *)"550e8400-e29b-41d4-a716-446655440000";
        assert_int_equal(records_team_create(t->records, &copy, &err), -EBUSY);
        copy.slug = (char *)"No Slug";
        assert_int_equal(records_team_create(t->records, &copy, &err), -EINVAL);
        copy.slug = (char *)"other";
        copy.id = (char *)"x/y";
        assert_int_equal(records_team_create(t->records, &copy, &err), -EINVAL);
        assert_int_equal(records_team_by_slug(t->records, "acme", &got, &err), 0);
        assert_string_equal(got->id, acme->id);
        assert_int_equal(got->max_vcpus, 8);
        assert_int_equal(got->max_memory_mb, 8192);
        team_free(got);
        assert_int_equal(records_team_by_slug(t->records, "nope", &got, &err), -ENOENT);
        assert_int_equal(records_team_list(t->records, &list, &count, &err), 0);
        assert_int_equal(count, 1);
        team_list_free(list, count);
        team_free(acme);
}

static void updates(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false), *got;
        struct error err;

        acme->blocked = true;
        acme->blocked_reason = xstrdup("unpaid");
        acme->max_vcpus = 4;
        assert_int_equal(records_team_update(t->records, acme, &err), 0);
        temporary_reopen(t);
        assert_int_equal(records_team_get(t->records, acme->id, &got, &err), 0);
        assert_true(got->blocked);
        assert_string_equal(got->blocked_reason, "unpaid");
        assert_int_equal(got->max_vcpus, 4);
        team_free(got);
        free(acme->slug);
        acme->slug = xstrdup("renamed");
        assert_int_equal(records_team_update(t->records, acme, &err), -EINVAL);
        team_free(acme);
}

static void keys(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false), *got;
        char *key, *id, *other, *other_id;
        struct store_value *values;
        struct error err;
        json_t *list;
        size_t count;

        assert_int_equal(records_key_create(t->records, acme->id, &key, &id, &err), 0);
        assert_int_equal(records_key_create(t->records, acme->id, &other, &other_id, &err), 0);
        assert_true(str_starts(key, "e2b_"));
        assert_true(str_is_hex(key + 4, 40));
        assert_string_not_equal(key, other);
        assert_int_equal(records_key_team(t->records, key, &got, &err), 0);
        assert_string_equal(got->id, acme->id);
        team_free(got);
        assert_int_equal(records_key_list(t->records, acme->id, &list, &err), 0);
        assert_int_equal(json_array_size(list), 2);
        json_decref(list);
        assert_int_equal(store_range(t->store, "", NULL, 100, &values, &count, &err), 0);
        for (size_t i = 0; i < count; i++)
                assert_null(strstr(values[i].data, key + 4));
        store_values_free(values, count);
        assert_int_equal(records_key_revoke(t->records, id, &err), 0);
        assert_int_equal(records_key_revoke(t->records, id, &err), -ENOENT);
        assert_int_equal(records_key_team(t->records, key, &got, &err), -EACCES);
        assert_int_equal(records_key_team(t->records, other, &got, &err), 0);
        team_free(got);
        free(key);
        free(id);
        free(other);
        free(other_id);
        team_free(acme);
}

static void wrong_keys(void **state)
{
        struct temporary *t = *state;
        const char *const wrong[] = { "", "e2b_", "e2b_12", "sk_e2b_0123456789012345678901234567890123456789",
                                      "e2b_012345678901234567890123456789012345678z", "e2b_01234567890123456789012345678901234567890" };
        struct team *got;
        struct error err;

        for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
                assert_int_equal(records_key_team(t->records, wrong[i], &got, &err), -EACCES);
                assert_int_equal(err.kind, ERROR_UNAUTHORISED);
                assert_non_null(strstr(err.message, "\nInvalid API key format"));
        }
        assert_int_equal(records_key_team(t->records, "e2b_0123456789012345678901234567890123456789", &got, &err), -EACCES);
        assert_true(str_starts(err.message, "Invalid API key"));
        assert_non_null(strstr(err.message, "\nCannot get the team"));
        assert_int_equal(records_key_create(t->records, "nobody", &(char *){ NULL }, &(char *){ NULL }, &err), -ENOENT);
}

static void deletes(void **state)
{
        struct temporary *t = *state;
        struct team *acme = temporary_team(t, "acme", false), *got;
        struct registered g = {};
        char *key, *id, **builds;
        struct error err;

        assert_int_equal(records_key_create(t->records, acme->id, &key, &id, &err), 0);
        assert_int_equal(temporary_register(t, acme, "web", "v1", &g, &err), 0);
        assert_int_equal(records_team_delete(t->records, acme->id, &err), -EBUSY);
        assert_int_equal(records_template_delete(t->records, g.template->id, &builds, &err), 0);
        assert_int_equal(name_list_len(builds), 1);
        name_list_free(builds);
        assert_int_equal(records_team_delete(t->records, acme->id, &err), 0);
        assert_int_equal(records_key_team(t->records, key, &got, &err), -EACCES);
        assert_int_equal(records_team_get(t->records, acme->id, &got, &err), -ENOENT);
        registered_free(&g);
        free(key);
        free(id);
        team_free(acme);
        team_free(temporary_team(t, "acme", false)); /* the slug is free */
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = { TEST(creates), TEST(updates), TEST(keys), TEST(wrong_keys), TEST(deletes) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
