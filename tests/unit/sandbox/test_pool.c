/* The warm pool: what is entitled to members, and that each is handed out once, ended when it is no use, and never lost. */
#include "machines.h"

#include <dirent.h>
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

static const int64_t second = NSEC_PER_SEC;

static void test_wanted(void **state)
{
        int64_t now = 10000 * second, none[3] = {}, old[3] = { now - 599 * second, now - 700 * second }, some[3] = { now - 59 * second, now - 61 * second, now };
        int64_t many[2 * POOL_BUILD_MAX];
        (void)state;
        assert_int_equal(pool_wanted(none, 3, now), 0);
        assert_int_equal(pool_wanted(none, 0, now), 0);
        assert_int_equal(pool_wanted(old, 3, now), 1);
        assert_int_equal(pool_wanted(old, 3, now + second), 0);
        assert_int_equal(pool_wanted(some, 3, now), 2);
        assert_int_equal(pool_wanted(some, 3, now + 60 * second), 1);
        for (size_t i = 0; i < 2 * POOL_BUILD_MAX; i++)
                many[i] = now;
        assert_int_equal(pool_wanted(many, 2 * POOL_BUILD_MAX, now), POOL_BUILD_MAX);
}

static int setup_pool(void **state)
{
        pool_max = 4;
        pool_mib = 4 * (POOL_GUESS_BYTES >> 20);
        return setup(state);
}

static int teardown_pool(void **state)
{
        int r = teardown(state);
        pool_max = pool_mib = 0;
        return r;
}

/* Until the pool holds `n`; its thread works on its own. The limit only guards against a hang. */
static void wait_for_pool(struct sandbox_manager *m, const char *build_id, size_t n)
{
        int64_t limit = clock_monotonic_ns() + 30 * second;
        while (pool_count(m->pool, build_id) != n) {
                assert_true(clock_monotonic_ns() < limit);
                usleep(1000);
        }
}

static void test_a_member_becomes_a_sandbox(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *first = must_create(m, &team_b, 60);
        assert_ptr_equal(machine_of(first->id), &machines[0]); /* the direct way */
        wait_for_pool(m, "build", 1);
        assert_int_equal(json_object_size(store), 1); /* a member has no record, and nobody sees it */
        struct sandbox_info **list;
        size_t count;
        assert_int_equal(sandbox_list(m, NULL, &list, &count, NULL), 0);
        assert_int_equal(count, 1);
        sandbox_info_free(list[0]);
        free(list);

        const struct machine *member = &machines[1];
        assert_true(member->warm);
        struct sandbox_info *second_ = must_create(m, &team_b, 60);
        assert_ptr_equal(machine_of(second_->id), member);
        assert_false(member->warm);
        assert_true(member->running);
        assert_int_equal(member->expires_ns, second_->ends_ns);
        assert_string_equal(json_str(last_wake, "sandbox_id"), second_->id);
        assert_non_null(json_object_get(store, second_->id));
        wait_for_pool(m, "build", 2); /* two in the last minute */
        assert_int_equal(sandbox_kill(m, NULL, second_->id, NULL), 0);
        assert_gone(m, second_->id);
        sandbox_info_free(first);
        sandbox_info_free(second_);
}

static void test_a_member_that_is_no_use(void **state)
{
        struct sandbox_manager *m = *state;
        sandbox_info_free(must_create(m, &team_b, 60));
        wait_for_pool(m, "build", 1);
        struct machine *dead = &machines[1];
        assert_true(dead->warm);
        machine_die(dead);
        struct sandbox_info *i = must_create(m, &team_b, 60); /* died unnoticed */
        assert_ptr_not_equal(machine_of(i->id), dead);
        sandbox_info_free(i);
        wait_for_pool(m, "build", 2);
        hand_over_fails = true;
        i = must_create(m, &team_b, 60); /* dies as it is handed over: made anew, under the same id */
        hand_over_fails = false;
        assert_false(machine_of(i->id)->alive);
        assert_int_equal(alive_machines() - warm_machines(), 3);
        assert_true(dir_exists(i->id));
        sandbox_info_free(i);
}

static void test_the_limit_gives_it_back(void **state)
{
        struct sandbox_manager *m = *state;
        sandbox_info_free(must_create(m, &team_a, 60));
        sandbox_info_free(must_create(m, &team_a, 60));
        wait_for_pool(m, "build", 2);
        size_t alive = alive_machines();
        struct sandbox_info *none = NULL;
        assert_true(create(m, &team_a, 60, &none, NULL) < 0);
        wait_for_pool(m, "build", 3); /* it was wanted */
        assert_int_equal(warm_machines(), 3);
        assert_int_equal(alive_machines(), alive + 1);
}

static void test_the_budget(void **state)
{
        struct sandbox_manager *m = *state;
        for (int i = 0; i < 7; i++)
                sandbox_info_free(must_create(m, &team_b, 60));
        wait_for_pool(m, "build", 4);
        assert_int_equal(pool_count(m->pool, NULL), 4);
        /* Another build is wanted more: it gets its share of what there is for all. */
        build.id = (char *)"other";
        sandbox_info_free(must_create(m, &team_b, 60));
        build.id = (char *)"build";
        wait_for_pool(m, "other", 1);
        wait_for_pool(m, "build", 3);
        assert_int_equal(warm_machines(), 4);
        /* What is to be removed has no members. */
        sandbox_build_forget(m, "build");
        assert_int_equal(pool_count(m->pool, "build"), 0);
        assert_int_equal(warm_machines(), 1);
}

static void test_what_cannot_be_warmed(void **state)
{
        struct sandbox_manager *m = *state;
        warm_fails = true;
        sandbox_info_free(must_create(m, &team_b, 60));
        for (int64_t limit = clock_monotonic_ns() + 30 * second; !__atomic_load_n(&warm_tries, __ATOMIC_SEQ_CST); usleep(1000))
                assert_true(clock_monotonic_ns() < limit);
        sandbox_info_free(must_create(m, &team_b, 60));
        sandbox_manager_free(m); /* its thread has ended: what it tried is over */
        assert_int_equal(warm_tries, 1); /* not again at once */
        CLEANUP_FREE char *dir = path_join(data_dir, "sandboxes");
        struct dirent *de;
        size_t dirs = 0;
        DIR *d = opendir(dir);
        while ((de = readdir(d)))
                dirs += de->d_name[0] == 'i';
        closedir(d);
        assert_int_equal(dirs, 2);
        *state = manager_open("tcg");
}

/* Ends with the manager; and what a killed one leaves is removed by the next. */
static void test_the_end(void **state)
{
        struct sandbox_manager *m = *state;
        struct sandbox_info *i = must_create(m, &team_b, 60);
        wait_for_pool(m, "build", 1);
        sandbox_manager_free(m);
        assert_int_equal(alive_machines(), 1);
        assert_true(dir_exists(i->id));

        /* A killed process does not get to that: a machine in a directory without a record. */
        CLEANUP_FREE char *dir = path_join(data_dir, "sandboxes/ileftover0000000000000");
        struct vm_fork fork_ = { .id = "ileftover0000000000000", .dir = dir, .expires_at_ns = 1 };
        struct vm *vm;
        assert_int_equal(dir_make(dir, 0700, NULL), 0);
        assert_int_equal(vm_restore_warm(&fork_, &vm, NULL), 0);
        vm_close(vm);
        *state = m = manager_open("tcg");
        assert_int_equal(alive_machines(), 1);
        assert_false(path_exists(dir));
        sandbox_info_free(i);
}

static void *create_one(void *data)
{
        sandbox_info_free(must_create(data, &team_b, 60));
        return NULL;
}

/* Each member once: vm_hand_over() asserts it. */
static void test_many_at_once(void **state)
{
        struct sandbox_manager *m = *state;
        for (int round = 0; round < 3; round++) {
                pthread_t threads[8];
                for (size_t i = 0; i < 8; i++)
                        assert_int_equal(pthread_create(&threads[i], NULL, create_one, m), 0);
                for (size_t i = 0; i < 8; i++)
                        pthread_join(threads[i], NULL);
                wait_for_pool(m, "build", 4);
        }
        assert_int_equal(json_object_size(store), 24);
        assert_int_equal(alive_machines(), 28);
        assert_int_equal(warm_machines(), 4);
}

#define WITH_POOL(test) cmocka_unit_test_setup_teardown(test, setup_pool, teardown_pool)

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_wanted), WITH_POOL(test_a_member_becomes_a_sandbox), WITH_POOL(test_a_member_that_is_no_use),
                WITH_POOL(test_the_limit_gives_it_back), WITH_POOL(test_the_budget), WITH_POOL(test_what_cannot_be_warmed),
                WITH_POOL(test_the_end), WITH_POOL(test_many_at_once),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
