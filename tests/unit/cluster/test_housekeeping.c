/* Which artifacts housekeeping removes, over a real store and a fake DATA/builds. */
#include "../store/temporary.h"

#include <unistd.h>

#include "base/str.h"
#include "cluster/housekeeping.h"

static const char *used; /* the build that is in use */
static char forgotten[64];

static bool in_use(void *data, const char *build_id)
{
        (void)data;
        return streq(used, build_id);
}

static void forget(void *data, const char *build_id)
{
        (void)data;
        snprintf(forgotten, sizeof(forgotten), "%s", build_id);
}

static struct housekeeping_settings settings_of(struct temporary *t)
{
        return (struct housekeeping_settings){.data_dir = t->dir, .records = t->records, .in_use = in_use, .forget = forget};
}

static void make_artifacts(struct temporary *t, const char *name)
{
        CLEANUP_FREE char *dir = xasprintf("%s/builds/%s", t->dir, name), *file = xasprintf("%s/manifest.json", dir);

        assert_int_equal(dir_make(dir, 0755, NULL), 0);
        assert_int_equal(file_write_atomic(file, "{}", 2, 0644, NULL), 0);
}

static bool there(struct temporary *t, const char *name)
{
        CLEANUP_FREE char *dir = xasprintf("%s/builds/%s", t->dir, name);

        return path_exists(dir);
}

/* One run; the number of what was removed, and the reason of the last. */
static size_t run(struct temporary *t, bool dry_run, const char **ret_reason)
{
        const struct housekeeping_settings s = settings_of(t);
        struct garbage *items;
        struct error err = {};
        size_t count;

        if (housekeeping_collect(&s, dry_run, &items, &count, &err) < 0)
                fail_msg("%s", err.message);
        *ret_reason = count ? items[count - 1].reason : "";
        if (count)
                assert_true(items[0].bytes > 0);
        free(items);
        return count;
}

static int setup(void **state)
{
        used = NULL;
        forgotten[0] = '\0';
        return temporary_setup(state);
}

static void delete_template(struct temporary *t, const char *build_id)
{
        struct build_record *b;
        struct error err;
        char **builds;

        assert_int_equal(records_build_get(t->records, build_id, &b, &err), 0);
        assert_int_equal(records_template_delete(t->records, b->template_id, &builds, &err), 0);
        name_list_free(builds);
        build_record_free(b);
}

static void of_deleted_templates(void **state)
{
        struct temporary *t = *state;
        struct team *team = temporary_team(t, "acme", false);
        CLEANUP_FREE char *live = temporary_ready(t, team, "live", "default"), *gone = temporary_ready(t, team, "gone", "default");
        const char *reason;

        make_artifacts(t, live);
        make_artifacts(t, gone);
        assert_int_equal(run(t, false, &reason), 0);
        delete_template(t, gone);

        used = gone; /* a sandbox of it runs */
        assert_int_equal(run(t, false, &reason), 0);
        assert_true(there(t, gone));

        used = NULL;
        assert_int_equal(run(t, true, &reason), 1);
        assert_true(there(t, gone));
        assert_string_equal(forgotten, "");

        assert_int_equal(run(t, false, &reason), 1);
        assert_string_equal(reason, "its template was deleted");
        assert_string_equal(forgotten, gone);
        assert_false(there(t, gone));
        assert_true(there(t, live));
        assert_int_equal(run(t, false, &reason), 0);
        team_free(team);
}

static void of_unfinished_builds(void **state)
{
        struct temporary *t = *state;
        struct team *team = temporary_team(t, "acme", false);
        struct registered g = {};
        struct error err;
        const char *reason;

        assert_int_equal(temporary_register(t, team, "web", "default", &g, &err), 0);
        assert_int_equal(records_build_start(t->records, g.build->id, &err), 0);
        make_artifacts(t, g.build->id); /* published, its record not yet written */
        assert_int_equal(run(t, false, &reason), 0);
        assert_int_equal(records_build_fail(t->records, g.build->id, "no", NULL, &err), 0);
        used = g.build->id; /* still in the queue */
        assert_int_equal(run(t, false, &reason), 0);
        used = NULL;
        assert_int_equal(run(t, false, &reason), 1);
        assert_string_equal(reason, "the build failed");
        registered_free(&g);
        team_free(team);
}

static void of_nobody(void **state)
{
        static const char unknown[] = "01234567-89ab-4cde-8f01-23456789abcd", temporary[] = "01234567-89ab-4cde-8f01-23456789abce.tmp";
        struct temporary *t = *state;
        const char *reason;

        make_artifacts(t, unknown);
        make_artifacts(t, temporary);
        make_artifacts(t, "lost+found");
        make_artifacts(t, "my-copy");
        used = unknown;
        assert_int_equal(run(t, false, &reason), 1);
        assert_string_equal(reason, "no record knows it");
        assert_false(there(t, temporary));
        used = NULL;
        assert_int_equal(run(t, false, &reason), 1);
        assert_false(there(t, unknown));
        assert_true(there(t, "lost+found") && there(t, "my-copy"));
}

static void an_unreadable_store_proves_nothing(void **state)
{
        static const char build[] = "01234567-89ab-4cde-8f01-23456789abcd";
        struct temporary *t = *state;
        const struct housekeeping_settings s = settings_of(t);
        CLEANUP_FREE char *key = xasprintf("build/%s", build);
        struct garbage *items;
        struct error err = {};
        size_t count;

        make_artifacts(t, build);
        assert_int_equal(store_put(t->store, key, "{", 1, &err), 0);
        assert_true(housekeeping_collect(&s, false, &items, &count, &err) < 0);
        assert_int_equal(count, 0);
        assert_true(there(t, build));
        free(items);
}

static void by_itself(void **state)
{
        static const char unknown[] = "01234567-89ab-4cde-8f01-23456789abcd";
        struct temporary *t = *state;
        const struct housekeeping_settings s = settings_of(t);
        struct housekeeping *h;
        struct garbage *items;
        struct error err = {};
        size_t count;

        make_artifacts(t, unknown);
        assert_int_equal(housekeeping_new(&s, &h, &err), 0);
        /* The thread's first run is before or after this one. */
        assert_int_equal(housekeeping_run(h, false, &items, &count, &err), 0);
        free(items);
        assert_false(there(t, unknown));
        housekeeping_free(h);
        housekeeping_free(NULL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(of_deleted_templates, setup, temporary_teardown),
                cmocka_unit_test_setup_teardown(of_unfinished_builds, setup, temporary_teardown),
                cmocka_unit_test_setup_teardown(of_nobody, setup, temporary_teardown),
                cmocka_unit_test_setup_teardown(an_unreadable_store_proves_nothing, setup, temporary_teardown),
                cmocka_unit_test_setup_teardown(by_itself, setup, temporary_teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
