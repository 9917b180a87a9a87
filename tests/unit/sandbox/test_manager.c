/* The sandbox manager over machines and a store of the test's own: every function of vm.h and of records.h that the manager
 * calls is defined here. A machine is a pipe (its read end is the exit descriptor) and a line in a table that survives the
 * manager, as real shims survive `vmon serve`.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"

#define MACHINES 32

struct machine {
        char *dir;
        int exit_read, exit_write; /* write end closed = dead */
        int64_t expires_ns;
        bool alive, kill_fails;
};
struct vm {
        struct machine *machine;
};
struct vm_template {
        int unused;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct machine machines[MACHINES];
static size_t machine_count;
static json_t *store;           /* id -> record */
static json_t *last_wake;
static bool restore_fails, put_fails, dead_on_arrival;
static char data_dir[64];

static void machine_die(struct machine *m)
{
        pthread_mutex_lock(&lock);
        if (m->alive) {
                m->alive = false;
                close(m->exit_write);
        }
        pthread_mutex_unlock(&lock);
}

static size_t alive_machines(void)
{
        size_t n = 0;
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < machine_count; i++)
                n += machines[i].alive;
        pthread_mutex_unlock(&lock);
        return n;
}

int vm_template_open(const char *build_dir, const char *kit_root, const char *backend, struct vm_template **ret, struct error *err)
{
        (void)kit_root, (void)backend;
        if (strstr(build_dir, "old-format"))
                return error_set(err, ERROR_CONFLICT, "recapture required");
        *ret = xcalloc(1, sizeof **ret);
        return 0;
}

void vm_template_close(struct vm_template *t)
{
        free(t);
}

int vm_restore(const struct vm_fork *f, struct vm **ret, struct error *err)
{
        int fds[2];
        if (restore_fails)
                return error_set(err, ERROR_INTERNAL, "the machine did not wake");
        assert_true(path_exists(f->dir));
        assert_int_equal(pipe(fds), 0);
        pthread_mutex_lock(&lock);
        assert_true(machine_count < MACHINES);
        struct machine *m = &machines[machine_count++];
        *m = (struct machine){ .dir = xstrdup(f->dir), .exit_read = fds[0], .exit_write = fds[1], .expires_ns = f->expires_at_ns, .alive = true };
        json_decref(last_wake);
        last_wake = json_deep_copy(f->wake);
        pthread_mutex_unlock(&lock);
        if (dead_on_arrival)
                machine_die(m);
        *ret = xcalloc(1, sizeof **ret);
        (*ret)->machine = m;
        return 0;
}

int vm_adopt(const char *dir, struct vm **ret, struct error *err)
{
        for (size_t i = 0; i < machine_count; i++)
                if (machines[i].alive && streq(machines[i].dir, dir)) {
                        *ret = xcalloc(1, sizeof **ret);
                        (*ret)->machine = &machines[i];
                        return 0;
                }
        return error_set(err, ERROR_NOT_FOUND, "its supervisor is gone");
}

int vm_set_expiry(struct vm *vm, int64_t expires_at_ns, struct error *err)
{
        (void)err;
        vm->machine->expires_ns = expires_at_ns;
        return 0;
}

int vm_connect(struct vm *vm, int port, int *ret_fd, struct error *err)
{
        (void)err;
        assert_true(vm->machine->alive);
        if (port != VM_AGENT_PORT)
                return -ECONNREFUSED;
        *ret_fd = dup(vm->machine->exit_read);
        return 0;
}

int vm_exit_fd(const struct vm *vm)
{
        return vm->machine->exit_read;
}

int vm_kill(struct vm *vm, struct error *err)
{
        if (vm->machine->kill_fails)
                return error_set(err, ERROR_INTERNAL, "the machine does not die");
        machine_die(vm->machine);
        return 0;
}

void vm_close(struct vm *vm)
{
        free(vm);
}

int records_sandbox_put(struct records *r, const char *id, const json_t *j, struct error *err)
{
        (void)r;
        if (put_fails)
                return error_set(err, ERROR_UNAVAILABLE, "the store is full");
        pthread_mutex_lock(&lock);
        json_object_set_new(store, id, json_deep_copy(j));
        pthread_mutex_unlock(&lock);
        return 0;
}

int records_sandbox_delete(struct records *r, const char *id, struct error *err)
{
        (void)r, (void)err;
        pthread_mutex_lock(&lock);
        json_object_del(store, id);
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        return 0;
}

int records_sandbox_each(struct records *r, int (*fn)(void *data, const char *id, const json_t *j), void *data, struct error *err)
{
        (void)r, (void)err;
        const char *id;
        json_t *j;
        json_object_foreach(store, id, j)
                fn(data, id, j);
        return 0;
}

/* Waits for the watcher's own removal of a record; the limit only guards against a hang. */
static void wait_for_records(size_t n)
{
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 30;
        pthread_mutex_lock(&lock);
        while (json_object_size(store) != n)
                assert_int_equal(pthread_cond_timedwait(&changed, &lock, &limit), 0);
        pthread_mutex_unlock(&lock);
}

static struct team team_a = { .id = "team-a", .max_sandboxes = 2, .max_sandbox_hours = 24 };
static struct team team_b = { .id = "team-b", .max_sandboxes = 100, .max_sandbox_hours = 1 };
static struct template_record template_ = { .id = "template" };
static struct build_record build = { .id = "build", .vcpus = 2, .memory_mb = 512, .disk_mb = 1024, .envd_version = "0.6.13",
                                     .default_user = "user", .workdir = "/home/user" };

static struct sandbox_manager *manager_open(const char *backend)
{
        static const unsigned char secret[ROOT_SECRET_LEN] = { 7 };
        struct sandbox_settings s = { .data_dir = data_dir, .kit_root = "/kit", .backend = backend, .root_secret = secret };
        struct sandbox_manager *m = NULL;
        assert_int_equal(sandbox_manager_new(&s, &m, NULL), 0);
        return m;
}

static int setup(void **state)
{
        log_setup(LOG_LEVEL_ERROR, false);
        strcpy(data_dir, "/tmp/vmon-test-manager-XXXXXX");
        assert_non_null(mkdtemp(data_dir));
        store = json_object();
        machine_count = 0;
        restore_fails = put_fails = dead_on_arrival = false;
        *state = manager_open("tcg");
        return 0;
}

static int teardown(void **state)
{
        sandbox_manager_free(*state);
        for (size_t i = 0; i < machine_count; i++) {
                machine_die(&machines[i]);
                close(machines[i].exit_read);
                free(machines[i].dir);
        }
        json_decref(store);
        json_decref(last_wake);
        last_wake = NULL;
        return tree_remove(data_dir, NULL);
}

static int create(struct sandbox_manager *m, const struct team *team, int64_t timeout_s, struct sandbox_info **ret, struct error *err)
{
        struct sandbox_spec spec = { .team = team, .template_ = &template_, .build = &build, .timeout_s = timeout_s, .secure = true,
                                     .allow_public_traffic = true };
        return sandbox_create(m, &spec, ret, err);
}

static struct sandbox_info *must_create(struct sandbox_manager *m, const struct team *team, int64_t timeout_s)
{
        struct sandbox_info *i = NULL;
        assert_int_equal(create(m, team, timeout_s, &i, NULL), 0);
        return i;
}

static bool dir_exists(const char *id)
{
        CLEANUP_FREE char *parent = path_join(data_dir, "sandboxes");
        CLEANUP_FREE char *dir = path_join(parent, id);
        return path_exists(dir);
}

static void assert_gone(struct sandbox_manager *m, const char *id)
{
        struct sandbox_info *i = NULL;
        struct error err = {};
        struct sandbox_route route;
        assert_true(sandbox_get(m, NULL, id, &i, &err) < 0);
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        assert_int_equal(sandbox_route(m, id, &route), -ENOENT);
        assert_false(route.running);
}

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

#define WITH_MANAGER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

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
