/* The sandbox manager: create, kill, expiry, limits, restarts. */
#include "machines.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

static void test_create_and_kill(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60), *got = NULL;
        assert_int_equal(strlen(i->id), SANDBOX_ID_LEN);
        assert_int_equal(strlen(i->envd_token), 64);
        assert_null(i->traffic_token);
        assert_true(i->ends_ns == i->started_ns + 60 * NSEC_PER_SEC);
        assert_true(machines[0].expires_ns == i->ends_ns);
        assert_non_null(json_object_get(store, i->id));
        assert_string_equal(json_str(last_wake, "sandbox_id"), i->id);
        assert_string_equal(json_str(last_wake, "access_token"), i->envd_token);
        assert_string_equal(json_str(last_wake, "default_user"), "user");
        assert_int_equal(sandbox_get(m, &team_a, i->id, &got, NULL), 0);
        assert_string_equal(got->envd_token, i->envd_token);
        sandbox_info_free(got);

        struct error err = {};
        assert_true(sandbox_kill(m, &team_b, i->id, &err) < 0); /* another team's is unknown */
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        CLEANUP_FREE char *text = xasprintf("Sandbox \"%s\" doesn't exist or you don't have access to it", i->id);
        assert_string_equal(err.message, text);

        assert_int_equal(sandbox_kill(m, &team_a, i->id, NULL), 0);
        assert_gone(m, i->id);
        assert_int_equal(alive_machines(), 0);
        assert_int_equal(json_object_size(store), 0);
        assert_false(dir_exists(i->id));
        assert_true(sandbox_kill(m, &team_a, i->id, &err) < 0);
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        sandbox_info_free(i);
}

static void test_limit(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *a = must_create(m, &team_a, 60), *b = must_create(m, &team_a, 60), *c = NULL;
        struct error err = {};
        assert_true(create(m, &team_a, 60, &c, &err) < 0);
        assert_int_equal(err.kind, ERROR_LIMIT);
        assert_non_null(strstr(err.message, "you have reached the maximum number of concurrent E2B sandboxes (2)"));
        assert_int_equal(sandbox_count(m, "team-a"), 2);
        sandbox_info_free(must_create(m, &team_b, 60)); /* others are not concerned */
        assert_int_equal(sandbox_kill(m, &team_a, a->id, NULL), 0);
        c = must_create(m, &team_a, 60);
        sandbox_info_free(a);
        sandbox_info_free(b);
        sandbox_info_free(c);
}

static void test_failed_create_leaves_nothing(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = NULL;
        struct error err = {};
        restore_fails = true;
        assert_true(create(m, &team_a, 60, &i, &err) < 0);
        assert_non_null(strstr(err.message, "the machine did not wake"));
        restore_fails = false;
        put_fails = true;
        assert_true(create(m, &team_a, 60, &i, &err) < 0);
        assert_int_equal(err.kind, ERROR_UNAVAILABLE);
        put_fails = false;
        template_deleted = true; /* since it was resolved */
        assert_true(create(m, &team_a, 60, &i, &err) < 0);
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        template_deleted = false;
        build.id = "old-format";
        assert_true(create(m, &team_a, 60, &i, &err) < 0);
        build.id = "build";
        assert_int_equal(err.kind, ERROR_CONFLICT);
        assert_non_null(strstr(err.message, "recapture required"));
        assert_null(i);
        assert_int_equal(alive_machines(), 0);
        assert_int_equal(json_object_size(store), 0);
        assert_int_equal(sandbox_count(m, NULL), 0);
        CLEANUP_FREE char *parent = path_join(data_dir, "sandboxes");
        assert_int_equal(rmdir(parent), 0); /* empty */
}

static void test_timeout_checks(void **state)
{
        struct sandbox_info *i = NULL;
        struct error err = {};
        assert_true(create(*state, &team_a, 0, &i, &err) < 0);
        assert_string_equal(err.message, "Timeout must be greater than 0");
        assert_true(create(*state, &team_b, 3601, &i, &err) < 0);
        assert_string_equal(err.message, "Timeout cannot be greater than 1 hours");
}

static void test_without_kit(void **state)
{
        sandbox_manager_free(*state);
        *state = manager_open(NULL);
        struct sandbox_info *i = NULL;
        struct error err = {};
        assert_true(create(*state, &team_a, 60, &i, &err) < 0);
        assert_int_equal(err.kind, ERROR_UNAVAILABLE);
        assert_non_null(strstr(err.message, "vmon kit"));
}

static void test_death_is_noticed(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);
        machine_die(&machines[0]);
        wait_for_records(0);
        assert_gone(m, i->id);
        sandbox_info_free(i);

        dead_on_arrival = true; /* between the restore and the watch */
        i = must_create(m, &team_a, 60);
        wait_for_records(0);
        assert_gone(m, i->id);
        sandbox_info_free(i);
}

static void test_expiry_shows_at_once(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);
        assert_int_equal(sandbox_set_timeout(m, &team_a, i->id, 0, false, NULL, NULL), 0);
        assert_gone(m, i->id); /* although its machine still lives */
        assert_int_equal(alive_machines(), 1);
        assert_int_equal(sandbox_count(m, "team-a"), 0);
        wait_for_records(0); /* the fake shim does nothing: the manager ends it after the grace period */
        assert_int_equal(alive_machines(), 0);
        sandbox_info_free(i);
}

static void test_set_timeout(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60), *longer = NULL, *same = NULL;
        struct error err = {};
        assert_int_equal(sandbox_set_timeout(m, &team_a, i->id, 600, false, &longer, NULL), 0);
        assert_true(longer->ends_ns > i->ends_ns);
        assert_true(machines[0].expires_ns == longer->ends_ns);
        assert_true(json_int(json_object_get(store, i->id), "ends_ns", 0) == longer->ends_ns);
        assert_int_equal(sandbox_set_timeout(m, &team_a, i->id, 5, true, &same, NULL), 0);
        assert_true(same->ends_ns == longer->ends_ns);
        assert_true(sandbox_set_timeout(m, &team_b, i->id, 5, true, NULL, &err) < 0);
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        put_fails = true; /* nothing changes when it cannot be made durable */
        assert_true(sandbox_set_timeout(m, &team_a, i->id, 6000, false, NULL, &err) < 0);
        assert_true(machines[0].expires_ns == longer->ends_ns);
        sandbox_info_free(i);
        sandbox_info_free(longer);
        sandbox_info_free(same);
}

static void test_failed_kill_can_be_repeated(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);
        struct error err = {};
        machines[0].kill_fails = true;
        assert_true(sandbox_kill(m, &team_a, i->id, &err) < 0);
        assert_non_null(strstr(err.message, "the machine does not die"));
        machines[0].kill_fails = false;
        assert_int_equal(sandbox_kill(m, &team_a, i->id, NULL), 0);
        assert_gone(m, i->id);
        sandbox_info_free(i);
}

static void test_restart_adopts(void **state)
{
        struct sandbox_info *lives = must_create(*state, &team_a, 60), *dies = must_create(*state, &team_a, 60), *got = NULL;
        sandbox_manager_free(*state); /* the machines live on */
        assert_int_equal(alive_machines(), 2);
        machine_die(&machines[1]);
        machines[0].expires_ns = 1; /* as if the crash had come between store and shim */
        *state = manager_open("tcg");
        assert_int_equal(sandbox_get(*state, &team_a, lives->id, &got, NULL), 0);
        assert_string_equal(got->envd_token, lives->envd_token);
        assert_true(got->ends_ns == lives->ends_ns);
        assert_true(machines[0].expires_ns == lives->ends_ns);
        assert_gone(*state, dies->id);
        assert_false(dir_exists(dies->id));
        assert_int_equal(json_object_size(store), 1);
        machine_die(&machines[0]); /* watched again */
        wait_for_records(0);
        sandbox_info_free(lives);
        sandbox_info_free(dies);
        sandbox_info_free(got);
}

static void test_restart_removes_remains(void **state)
{
        struct sandbox_info *unrecorded = must_create(*state, &team_a, 60), *damaged = must_create(*state, &team_a, 60);
        sandbox_manager_free(*state);
        json_object_del(store, unrecorded->id);
        json_object_set_new(store, damaged->id, json_object());
        json_object_set_new(store, "../../etc", json_object());
        CLEANUP_FREE char *stray = xasprintf("%s/sandboxes/istray", data_dir);
        assert_int_equal(dir_make(stray, 0700, NULL), 0);
        *state = manager_open("tcg");
        assert_gone(*state, unrecorded->id);
        assert_gone(*state, damaged->id);
        assert_int_equal(alive_machines(), 0);
        assert_int_equal(json_object_size(store), 0);
        assert_false(path_exists(stray));
        sandbox_info_free(unrecorded);
        sandbox_info_free(damaged);
}

static void test_list(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *a = must_create(m, &team_a, 60), *b = must_create(m, &team_b, 60), **list = NULL;
        size_t n = 0;
        assert_int_equal(sandbox_list(m, &team_a, &list, &n, NULL), 0);
        assert_int_equal(n, 1);
        assert_string_equal(list[0]->id, a->id);
        sandbox_info_free(list[0]);
        free(list);
        assert_int_equal(sandbox_list(m, NULL, &list, &n, NULL), 0);
        assert_int_equal(n, 2);
        for (size_t i = 0; i < n; i++)
                sandbox_info_free(list[i]);
        free(list);
        sandbox_info_free(a);
        sandbox_info_free(b);
}

static void test_routes(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_spec spec = { .team = &team_a, .template_ = &template_, .build = &build, .timeout_s = 60, .secure = true };
        struct sandbox_info *i = NULL, *open_ = must_create(m, &team_a, 60);
        assert_int_equal(sandbox_create(m, &spec, &i, NULL), 0);
        struct sandbox_route route;
        assert_int_equal(sandbox_route(m, i->id, &route), 0);
        assert_true(route.running);
        assert_false(route.public_traffic);
        assert_string_equal(route.traffic_token, i->traffic_token);
        assert_string_equal(route.envd_token, i->envd_token);
        assert_int_equal(sandbox_route(m, open_->id, &route), 0);
        assert_true(route.public_traffic);

        int fd = -1;
        assert_int_equal(sandbox_dial(m, i->id, VM_AGENT_PORT, &fd), 0);
        close(fd);
        assert_int_equal(sandbox_dial(m, i->id, 1, &fd), -ECONNREFUSED);
        assert_int_equal(sandbox_dial(m, "inone", 1, &fd), -ENOENT);

        char signature[FILE_SIGNATURE_MAX], id[SANDBOX_ID_LEN + 1];
        file_signature("a b", "read", "user", i->envd_token, NULL, signature);
        assert_int_equal(sandbox_by_signature(m, "a b", "read", "user", NULL, signature, id), 0);
        assert_string_equal(id, i->id);
        assert_int_equal(sandbox_by_signature(m, "a b", "write", "user", NULL, signature, id), -ENOENT);
        sandbox_info_free(i);
        sandbox_info_free(open_);
}

static void *churn(void *data)
{
        for (int i = 0; i < 3; i++) {
                struct sandbox_info *info = must_create(data, &team_b, 60);
                if (i % 2 == 0)
                        assert_int_equal(sandbox_kill(data, &team_b, info->id, NULL), 0);
                sandbox_info_free(info);
        }
        return NULL;
}

static void test_concurrent_use(void **state)
{
        pthread_t threads[6];
        for (int i = 0; i < 6; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, churn, *state), 0);
        for (int i = 0; i < 6; i++)
                pthread_join(threads[i], NULL);
        assert_int_equal(sandbox_count(*state, "team-b"), 6);
        assert_int_equal(json_object_size(store), 6);
        assert_int_equal(alive_machines(), 6);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                WITH_MANAGER(test_create_and_kill),
                WITH_MANAGER(test_limit),
                WITH_MANAGER(test_failed_create_leaves_nothing),
                WITH_MANAGER(test_timeout_checks),
                WITH_MANAGER(test_without_kit),
                WITH_MANAGER(test_death_is_noticed),
                WITH_MANAGER(test_expiry_shows_at_once),
                WITH_MANAGER(test_set_timeout),
                WITH_MANAGER(test_failed_kill_can_be_repeated),
                WITH_MANAGER(test_restart_adopts),
                WITH_MANAGER(test_restart_removes_remains),
                WITH_MANAGER(test_list),
                WITH_MANAGER(test_routes),
                WITH_MANAGER(test_concurrent_use),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
