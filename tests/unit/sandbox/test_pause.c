/* The sandbox manager: pausing, resuming, automatic pauses, what is found after a restart. */
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

static char *path_of(const char *id, const char *name)
{
        return xasprintf("%s/sandboxes/%s/%s", data_dir, id, name);
}

static bool has(const char *id, const char *name)
{
        CLEANUP_FREE char *path = path_of(id, name);
        return path_exists(path);
}

static bool is_paused(struct sandbox_manager *m, const char *id)
{
        struct sandbox_info *i = NULL;
        assert_int_equal(sandbox_get(m, NULL, id, &i, NULL), 0);
        bool paused = i->paused;
        sandbox_info_free(i);
        return paused;
}

/* 1 resumed, 0 it ran, negative. */
static int connect_(struct sandbox_manager *m, const struct team *team, const char *id, struct error *err)
{
        struct sandbox_info *i = NULL;
        bool resumed = false;
        int r = sandbox_connect(m, team, id, &(struct sandbox_connect){30, true, false}, &i, &resumed, err);
        sandbox_info_free(i);
        return r < 0 ? r : resumed;
}

static void test_pause_and_resume(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60), *again = NULL;
        struct sandbox_route route;
        struct error err = {};
        bool resumed;

        assert_int_equal(sandbox_pause(m, &team_b, i->id, true, &err), -ENOENT);
        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, NULL), 0);
        assert_int_equal(alive_machines(), 0);
        assert_true(is_paused(m, i->id));
        assert_true(has(i->id, "paused"));
        assert_true(json_bool(json_object_get(store, i->id), "paused", false));
        assert_int_equal(sandbox_count(m, "team-a"), 0);
        assert_int_equal(sandbox_route(m, i->id, &route), -ENOENT);
        assert_false(route.resumable);
        assert_true(sandbox_build_used(m, "build")); /* its artifacts are what it resumes on */
        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, &err), -EBUSY);
        assert_non_null(strstr(err.message, "already paused"));
        assert_int_equal(sandbox_set_timeout(m, &team_a, i->id, 60, false, NULL, &err), -ENOENT);

        assert_int_equal(sandbox_connect(m, &team_a, i->id, &(struct sandbox_connect){30, true, false}, &again, &resumed, NULL), 0);
        assert_true(resumed);
        assert_false(again->paused);
        assert_string_equal(again->envd_token, i->envd_token);
        assert_true(again->ends_ns == again->started_ns + 30 * NSEC_PER_SEC);
        assert_true(machines[1].expires_ns == again->ends_ns);
        assert_false(has(i->id, "paused") || has(i->id, "resumed"));
        assert_null(json_object_get(last_wake, "env")); /* which the guest has kept */
        assert_int_equal(sandbox_route(m, i->id, &route), 0);
        sandbox_info_free(again);

        assert_int_equal(sandbox_connect(m, &team_a, i->id, &(struct sandbox_connect){30, false, false}, &again, &resumed, &err), -EBUSY);
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 0);
        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, NULL), 0);
        assert_int_equal(sandbox_kill(m, &team_a, i->id, NULL), 0);
        assert_gone(m, i->id);
        assert_false(dir_exists(i->id));
        assert_int_equal(connect_(m, &team_a, i->id, NULL), -ENOENT);
        sandbox_info_free(i);
}

static struct sandbox_info *create_auto(struct sandbox_manager *m, int64_t timeout_s, bool resume)
{
        struct sandbox_spec spec = { .team = &team_a, .template_ = &template_, .build = &build, .timeout_s = timeout_s, .secure = true,
                                     .allow_public_traffic = true, .auto_pause = true, .auto_resume = resume };
        struct sandbox_info *i = NULL;
        assert_int_equal(sandbox_create(m, &spec, &i, NULL), 0);
        return i;
}

static void assert_started(const char *const *commands)
{
        size_t n = 0;

        for (; commands[n]; n++)
                assert_string_equal(json_string_value(json_array_get(started, n)), commands[n]);
        assert_int_equal(json_array_size(started), n);
        json_decref(started);
        started = NULL;
}

/* Without memory there is nothing to go on: it boots, its agent is told everything anew, and its service is started. */
static void test_reboot(void **state)
{
        static const char *const nothing[] = {NULL}, *const service[] = {"serve", "probe", "probe", NULL}, *const only[] = {"serve", NULL};
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60), *again = NULL;
        struct error err = {};
        bool resumed;

        assert_int_equal(sandbox_pause(m, &team_a, i->id, false, NULL), 0);
        assert_true(is_paused(m, i->id));
        assert_int_equal(sandbox_pause(m, &team_a, i->id, false, &err), -EBUSY);
        restore_fails = true; /* a boot that fails takes nothing away */
        assert_true(connect_(m, &team_a, i->id, &err) < 0);
        assert_non_null(strstr(err.message, "it stays paused"));
        restore_fails = false;
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 1);
        assert_non_null(json_object_get(last_wake, "env"));
        assert_string_equal(json_str(last_wake, "default_user"), "user");
        assert_string_equal(json_str(last_wake, "default_workdir"), "/home/user");
        assert_string_equal(json_str(last_wake, "sandbox_id"), i->id);
        assert_started(nothing);

        /* Traffic does not boot it. */
        struct sandbox_info *waking = create_auto(m, 3600, true);
        struct sandbox_route route;
        int fd;
        assert_int_equal(sandbox_pause(m, &team_a, waking->id, false, NULL), 0);
        assert_int_equal(sandbox_route(m, waking->id, &route), -ENOENT);
        assert_false(route.resumable);
        assert_int_equal(sandbox_dial(m, waking->id, VM_AGENT_PORT, &fd), -ENOENT);
        assert_int_equal(connect_(m, &team_a, waking->id, NULL), 1);
        assert_int_equal(sandbox_pause(m, &team_a, waking->id, true, NULL), 0);
        assert_int_equal(sandbox_route(m, waking->id, &route), -ENOENT);
        assert_true(route.resumable);
        assert_int_equal(sandbox_kill(m, &team_a, waking->id, NULL), 0);
        sandbox_info_free(waking);

        /* One that was saved with its memory, when asked to. */
        build.start_cmd = (char *)"serve";
        build.ready_cmd = (char *)"probe";
        ready_after = 1;
        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, NULL), 0);
        assert_int_equal(sandbox_connect(m, &team_a, i->id, &(struct sandbox_connect){30, true, true}, &again, &resumed, NULL), 0);
        assert_true(resumed);
        assert_started(service);
        assert_false(has(i->id, "paused") || has(i->id, "resumed"));
        sandbox_info_free(again);

        /* Running, it is not booted; without a ready command nothing is waited for. */
        assert_int_equal(sandbox_connect(m, &team_a, i->id, &(struct sandbox_connect){30, true, true}, &again, &resumed, NULL), 0);
        assert_false(resumed);
        sandbox_info_free(again);
        assert_started(nothing);
        build.ready_cmd = (char *)BUILD_READY_DEFAULT;
        assert_int_equal(sandbox_pause(m, &team_a, i->id, false, NULL), 0);
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 1);
        assert_started(only);
        build.start_cmd = build.ready_cmd = NULL;

        /* Without the record of its build it boots all the same. */
        assert_int_equal(sandbox_pause(m, &team_a, i->id, false, NULL), 0);
        template_deleted = true;
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 1);
        template_deleted = false;
        assert_int_equal(sandbox_kill(m, &team_a, i->id, NULL), 0);
        sandbox_info_free(i);
}

static void test_failed_pause_goes_on(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);
        struct error err = {};

        pause_fails = true;
        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "it goes on running"));
        assert_false(is_paused(m, i->id));
        assert_true(machines[0].expires_ns == i->ends_ns);
        machine_die(&machines[0]); /* and its death is noticed as ever */
        wait_for_records(0);
        assert_gone(m, i->id);
        sandbox_info_free(i);
}

static void test_failed_resume(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);
        struct error err = {};

        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, NULL), 0);
        restore_fails = true; /* before it has run: nothing is lost */
        assert_true(connect_(m, &team_a, i->id, &err) < 0);
        assert_non_null(strstr(err.message, "it stays paused"));
        assert_true(is_paused(m, i->id));
        assert_true(has(i->id, "paused"));
        restore_fails = false;
        put_fails = true;
        assert_true(connect_(m, &team_a, i->id, &err) < 0);
        assert_true(is_paused(m, i->id));
        put_fails = false;
        resume_fails = true; /* after: there is nothing to go back to */
        assert_true(connect_(m, &team_a, i->id, &err) < 0);
        assert_non_null(strstr(err.message, "it is lost"));
        assert_gone(m, i->id);
        assert_false(dir_exists(i->id));
        assert_int_equal(json_object_size(store), 0);
        sandbox_info_free(i);
}

static void test_limit_counts_what_runs(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *one = must_create(m, &team_a, 60), *two = must_create(m, &team_a, 60);
        struct error err = {};

        assert_int_equal(sandbox_pause(m, &team_a, one->id, true, NULL), 0);
        struct sandbox_info *three = must_create(m, &team_a, 60);
        assert_int_equal(connect_(m, &team_a, one->id, &err), -EDQUOT);
        assert_true(is_paused(m, one->id));
        assert_int_equal(sandbox_kill(m, &team_a, two->id, NULL), 0);
        assert_int_equal(connect_(m, &team_a, one->id, NULL), 1);
        sandbox_info_free(one);
        sandbox_info_free(two);
        sandbox_info_free(three);
}

/* A connect waits for the pause that is due, so this needs no polling. */
static void test_pauses_at_its_end(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = create_auto(m, 3600, false);

        assert_int_equal(machines[0].expires_ns, 0); /* the shim never ends it */
        assert_int_equal(sandbox_set_timeout(m, &team_a, i->id, 0, false, NULL, NULL), 0);
        assert_true(is_paused(m, i->id)); /* shown at once */
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 1);
        assert_int_equal(machine_count, 2);
        assert_int_equal(alive_machines(), 1);
        assert_null(json_object_get(last_wake, "env")); /* with its memory */
        sandbox_info_free(i);
}

static void test_pauses_its_disk_at_its_end(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_spec spec = { .team = &team_a, .template_ = &template_, .build = &build, .timeout_s = 3600, .secure = true,
                                     .allow_public_traffic = true, .auto_pause = true, .auto_pause_disk = true };
        struct sandbox_info *i = NULL;

        assert_int_equal(sandbox_create(m, &spec, &i, NULL), 0);
        assert_true(json_bool(json_object_get(store, i->id), "auto_pause_disk", false));
        assert_int_equal(sandbox_set_timeout(m, &team_a, i->id, 0, false, NULL, NULL), 0);
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 1);
        assert_non_null(json_object_get(last_wake, "env"));
        sandbox_info_free(i);
}

static void test_traffic_resumes(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = create_auto(m, 3600, true), *plain = create_auto(m, 3600, false);
        char signature[FILE_SIGNATURE_MAX], id[SANDBOX_ID_LEN + 1];
        struct sandbox_route route;
        int fd = -1;

        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, NULL), 0);
        assert_int_equal(sandbox_pause(m, &team_a, plain->id, true, NULL), 0);
        assert_int_equal(sandbox_dial(m, plain->id, VM_AGENT_PORT, &fd), -ENOENT);
        assert_int_equal(sandbox_route(m, i->id, &route), -ENOENT);
        assert_true(route.resumable);
        file_signature("a", "read", "user", i->envd_token, NULL, signature);
        assert_int_equal(sandbox_by_signature(m, "a", "read", "user", NULL, signature, id), 0);
        assert_int_equal(sandbox_dial(m, i->id, VM_AGENT_PORT, &fd), 0);
        close(fd);
        assert_false(is_paused(m, i->id));
        struct sandbox_info *now = NULL;
        assert_int_equal(sandbox_get(m, &team_a, i->id, &now, NULL), 0);
        assert_true(now->ends_ns >= now->started_ns + 3600 * NSEC_PER_SEC); /* the timeout of create */
        sandbox_info_free(now);
        sandbox_info_free(i);
        sandbox_info_free(plain);
}

static struct sandbox_manager *restart(void **state)
{
        sandbox_manager_free(*state);
        *state = manager_open("tcg");
        return *state;
}

static void test_restart_keeps_the_paused(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);

        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, NULL), 0);
        m = restart(state);
        assert_true(is_paused(m, i->id));
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 1);
        sandbox_info_free(i);
}

/* Killed after the publication and before the record: the machine stands still beside what was saved. */
static void test_restart_after_publication(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);
        CLEANUP_FREE char *paused = path_of(i->id, "paused");

        assert_int_equal(dir_make(paused, 0700, NULL), 0);
        machines[0].running = false;
        m = restart(state);
        assert_int_equal(alive_machines(), 0);
        assert_true(is_paused(m, i->id));
        assert_true(json_bool(json_object_get(store, i->id), "paused", false));
        sandbox_info_free(i);
}

/* Killed in the middle of a pause, or of a resume that had used the saved state up: the machine goes on. */
static void test_restart_continues(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_a, 60);
        static const char *const leftovers[] = { "paused.tmp", "resumed" };

        for (size_t n = 0; n < 2; n++) {
                CLEANUP_FREE char *dir = path_of(i->id, leftovers[n]);
                assert_int_equal(dir_make(dir, 0700, NULL), 0);
        }
        machines[0].running = false;
        m = restart(state);
        assert_true(machines[0].running);
        assert_false(is_paused(m, i->id));
        assert_false(has(i->id, "paused.tmp") || has(i->id, "resumed"));
        sandbox_info_free(i);
}

/* What it may reach is kept over changes, pauses and restarts. */
static void test_network_rules(void **state)
{
        struct sandbox_manager *m = *state;
        CLEANUP_JSON json_t *deny = json_pack("[s, s]", "0.0.0.0/0", "::/0"), *allow = json_pack("[s]", "9.9.9.9"), *no = json_false();
        struct sandbox_spec spec = { .team = &team_a, .template_ = &template_, .build = &build, .timeout_s = 60, .secure = true,
                                     .allow_internet_access = no };
        struct sandbox_info *i = NULL, *got = NULL;
        struct error err = {};

        assert_int_equal(sandbox_create(m, &spec, &i, NULL), 0);
        assert_string_equal(json_string_value(json_array_get(json_object_get(last_egress, "deny"), 0)), "0.0.0.0/0");
        assert_int_equal(sandbox_set_network(m, &team_a, i->id, allow, deny, NULL, NULL), 0);
        assert_int_equal(json_array_size(json_object_get(last_egress, "deny")), 1); /* guests have no IPv6 */
        assert_string_equal(json_string_value(json_array_get(json_object_get(last_egress, "allow"), 0)), "9.9.9.9");
        assert_int_equal(sandbox_get(m, &team_a, i->id, &got, NULL), 0);
        assert_true(json_equal(json_object_get(got->network, "denyOut"), deny));
        assert_null(got->allow_internet_access);
        sandbox_info_free(got);

        assert_int_equal(sandbox_pause(m, &team_a, i->id, true, NULL), 0);
        assert_int_equal(sandbox_set_network(m, &team_a, i->id, NULL, NULL, NULL, &err), -EBUSY);
        json_decref(last_egress);
        last_egress = NULL;
        assert_int_equal(connect_(m, &team_a, i->id, NULL), 1);
        assert_int_equal(json_array_size(json_object_get(last_egress, "allow")), 1);
        json_decref(last_egress);
        last_egress = NULL;
        m = restart(state);
        assert_int_equal(json_array_size(json_object_get(last_egress, "allow")), 1);
        put_fails = true;
        assert_true(sandbox_set_network(m, &team_a, i->id, NULL, NULL, NULL, NULL) < 0);
        assert_int_equal(sandbox_get(m, &team_a, i->id, &got, NULL), 0);
        assert_true(json_equal(json_object_get(got->network, "denyOut"), deny));
        sandbox_info_free(got);
        put_fails = false;
        assert_int_equal(sandbox_set_network(m, &team_a, i->id, NULL, NULL, NULL, NULL), 0);
        assert_null(last_egress);
        assert_int_equal(sandbox_set_network(m, &team_b, i->id, NULL, NULL, NULL, NULL), -ENOENT);
        sandbox_info_free(i);
}

struct racer {
        struct sandbox_manager *m;
        const char *id;
        int kind, result;
};

static void *race(void *data)
{
        struct racer *r = data;
        r->result = r->kind == 0 ? sandbox_pause(r->m, &team_b, r->id, true, NULL) : connect_(r->m, &team_b, r->id, NULL);
        return NULL;
}

/* Whatever the order, each resume follows a pause, and no machine is left over. */
static void test_concurrent_pauses_and_resumes(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_b, 600);
        int pauses = 0, resumes = 0;

        for (int round = 0; round < 5; round++) {
                struct racer racers[8];
                pthread_t threads[8];
                for (int n = 0; n < 8; n++) {
                        racers[n] = (struct racer){ m, i->id, n % 2, 0 };
                        assert_int_equal(pthread_create(&threads[n], NULL, race, &racers[n]), 0);
                }
                for (int n = 0; n < 8; n++) {
                        pthread_join(threads[n], NULL);
                        if (racers[n].kind == 0)
                                assert_true(racers[n].result == 0 || racers[n].result == -EBUSY);
                        else
                                assert_true(racers[n].result >= 0);
                        pauses += racers[n].kind == 0 && racers[n].result == 0;
                        resumes += racers[n].kind == 1 && racers[n].result == 1;
                }
        }
        assert_int_equal(pauses - resumes, is_paused(m, i->id));
        assert_int_equal(alive_machines(), !is_paused(m, i->id));
        assert_int_equal(machine_count, 1 + resumes);
        sandbox_info_free(i);
}

static void *kill_it(void *data)
{
        struct racer *r = data;
        r->result = sandbox_kill(r->m, &team_b, r->id, NULL);
        return NULL;
}

static void test_kill_waits_for_a_pause(void **state)
{
        struct sandbox_manager *m = *state;
        for (int round = 0; round < 10; round++) {
                struct sandbox_info *i = must_create(m, &team_b, 600);
                struct racer p = { m, i->id, 0, 0 }, k = { m, i->id, 0, 0 };
                pthread_t one, two;
                assert_int_equal(pthread_create(&one, NULL, race, &p), 0);
                assert_int_equal(pthread_create(&two, NULL, kill_it, &k), 0);
                pthread_join(one, NULL);
                pthread_join(two, NULL);
                assert_int_equal(k.result, 0);
                assert_true(p.result == 0 || p.result == -ENOENT);
                assert_gone(m, i->id);
                assert_false(dir_exists(i->id));
                assert_int_equal(alive_machines(), 0);
                sandbox_info_free(i);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                WITH_MANAGER(test_pause_and_resume),
                WITH_MANAGER(test_reboot),
                WITH_MANAGER(test_failed_pause_goes_on),
                WITH_MANAGER(test_failed_resume),
                WITH_MANAGER(test_limit_counts_what_runs),
                WITH_MANAGER(test_pauses_at_its_end),
                WITH_MANAGER(test_pauses_its_disk_at_its_end),
                WITH_MANAGER(test_traffic_resumes),
                WITH_MANAGER(test_restart_keeps_the_paused),
                WITH_MANAGER(test_restart_after_publication),
                WITH_MANAGER(test_restart_continues),
                WITH_MANAGER(test_network_rules),
                WITH_MANAGER(test_concurrent_pauses_and_resumes),
                WITH_MANAGER(test_kill_waits_for_a_pause),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
