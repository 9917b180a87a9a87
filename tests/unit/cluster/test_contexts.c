/* Which build contexts go, and when: a real store, files with chosen times. */
#include "../store/temporary.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cluster/contexts.h"

#define NOW 2000000000LL
#define DAY (24 * 3600)
#define SIZE 65536

static char *context_path(struct temporary *t, const char *slug, char digit)
{
        char hash[65];

        memset(hash, digit, 64);
        hash[64] = '\0';
        return xasprintf("%s/files/%s/%s", t->dir, slug, hash);
}

static void make(struct temporary *t, const char *slug, char digit, int64_t age_s)
{
        CLEANUP_FREE char *path = context_path(t, slug, digit), *dir = xasprintf("%s/files/%s", t->dir, slug), *data = xcalloc(1, SIZE);
        const struct timespec times[2] = { { .tv_sec = NOW - age_s }, { .tv_sec = NOW - age_s } };

        memset(data, 'x', SIZE);
        assert_int_equal(dir_make(dir, 0700, NULL), 0);
        assert_int_equal(file_write_atomic(path, data, SIZE, 0600, NULL), 0);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static bool there(struct temporary *t, const char *slug, char digit)
{
        CLEANUP_FREE char *path = context_path(t, slug, digit);

        return path_exists(path);
}

static char seen[512];

static void found(void *data, const char *slug, const char *hash, const char *reason, uint64_t bytes)
{
        size_t n = strlen(seen);

        (void)data;
        assert_true(bytes >= SIZE);
        snprintf(seen + n, sizeof(seen) - n, "%s/%c: %s; ", slug, hash[0], reason);
}

static const char *collect(struct temporary *t, bool dry_run)
{
        struct error err;

        seen[0] = '\0';
        assert_int_equal(contexts_collect(t->dir, t->records, dry_run, NOW, found, NULL, &err), 0);
        return seen;
}

static void unused_for_a_week(void **state)
{
        struct temporary *t = *state;
        struct registered g = {};
        struct team *team = temporary_team(t, "acme", false);
        struct error err;

        assert_string_equal(collect(t, false), "");
        make(t, "acme", 'a', 8 * DAY);
        make(t, "acme", 'b', 6 * DAY);
        assert_string_equal(collect(t, true), "acme/a: no build has used it for a week; ");
        assert_true(there(t, "acme", 'a'));
        /* A build under way may be about to use any of them. */
        assert_int_equal(temporary_register(t, team, "web", "default", &g, &err), 0);
        assert_string_equal(collect(t, false), "");
        temporary_finish(t, g.build->id);
        assert_string_equal(collect(t, false), "acme/a: no build has used it for a week; ");
        assert_false(there(t, "acme", 'a'));
        assert_true(there(t, "acme", 'b'));
        registered_free(&g);
        team_free(team);
}

static void of_a_deleted_team(void **state)
{
        struct temporary *t = *state;
        struct team *team = temporary_team(t, "acme", false);
        CLEANUP_FREE char *dir = xasprintf("%s/files/acme", t->dir);
        struct error err;

        make(t, "acme", 'a', 0);
        assert_string_equal(collect(t, false), "");
        assert_int_equal(records_team_delete(t->records, team->id, &err), 0);
        assert_string_equal(collect(t, false), "acme/a: its team was deleted; ");
        assert_false(path_exists(dir));
        team_free(team);
}

static void make_room(void **state)
{
        struct temporary *t = *state;
        CLEANUP_FREE char *dir = xasprintf("%s/files/acme", t->dir);
        uint64_t held;

        make(t, "acme", 'a', 3 * DAY);
        make(t, "acme", 'b', 2 * DAY);
        make(t, "acme", 'c', DAY / 2);
        held = contexts_make_room(dir, 3 * SIZE, 0, NOW); /* only counts */
        assert_true(held >= 3 * SIZE);
        assert_true(there(t, "acme", 'a'));
        held = contexts_make_room(dir, 3 * SIZE, SIZE, NOW);
        assert_false(there(t, "acme", 'a'));
        assert_true(there(t, "acme", 'b'));
        assert_in_range(held, 2 * SIZE, 3 * SIZE);
        /* What was used within a day stays, whatever is asked for. */
        held = contexts_make_room(dir, 3 * SIZE, 3 * SIZE, NOW);
        assert_false(there(t, "acme", 'b'));
        assert_true(there(t, "acme", 'c'));
        assert_true(held >= SIZE);
        assert_int_equal(contexts_make_room("/nonexistent", SIZE, SIZE, NOW), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = { TEST(unused_for_a_week), TEST(of_a_deleted_team), TEST(make_room) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
