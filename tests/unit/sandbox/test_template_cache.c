/* The cache of opened snapshots, over a vm_template_open() of the test's own: one opening for many users, a bound on idle
 * ones, failures not remembered.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "sandbox/template-cache.h"

struct vm_template {
        int unused;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opening_may_end = PTHREAD_COND_INITIALIZER;
static int opened, closed, fail;
static bool hold;

int vm_template_open(const char *build_dir, const char *kit_root, const char *backend, struct vm_template **ret, struct error *err)
{
        assert_string_equal(kit_root, "/kit");
        assert_string_equal(backend, "tcg");
        assert_non_null(build_dir);
        pthread_mutex_lock(&lock);
        opened++;
        while (hold)
                pthread_cond_wait(&opening_may_end, &lock);
        int f = fail;
        pthread_mutex_unlock(&lock);
        if (f)
                return error_set(err, ERROR_CONFLICT, "recapture required");
        *ret = xcalloc(1, sizeof **ret);
        return 0;
}

void vm_template_close(struct vm_template *t)
{
        closed++;
        free(t);
}

static int reset(void **state)
{
        opened = closed = fail = 0;
        hold = false;
        *state = template_cache_new("/kit", "tcg", 2);
        return 0;
}

static int release_all(void **state)
{
        template_cache_free(*state);
        return opened - (fail ? opened : 0) == closed ? 0 : -1;
}

static struct vm_template *get(struct template_cache *c, const char *id)
{
        struct vm_template *t = NULL;
        assert_int_equal(template_cache_acquire(c, id, "/builds/x", &t, NULL), 0);
        assert_non_null(t);
        return t;
}

static void test_shared(void **state)
{
        struct template_cache *c = *state;
        struct vm_template *a = get(c, "a"), *again = get(c, "a");
        assert_ptr_equal(a, again);
        assert_int_equal(opened, 1);
        template_cache_release(c, a);
        template_cache_release(c, again);
        assert_ptr_equal(get(c, "a"), a); /* idle ones stay open */
        assert_int_equal(opened, 1);
        template_cache_release(c, a);
}

static void test_bound(void **state)
{
        struct template_cache *c = *state;
        struct vm_template *a = get(c, "a"), *b = get(c, "b"), *d = get(c, "d");
        assert_int_equal(closed, 0); /* in use: above the bound of 2, yet open */
        template_cache_release(c, a);
        template_cache_release(c, b);
        assert_int_equal(closed, 0);
        template_cache_release(c, d);
        assert_int_equal(closed, 1); /* the least recently acquired, a */
        template_cache_release(c, get(c, "b"));
        template_cache_release(c, get(c, "d"));
        assert_int_equal(opened, 3);
        template_cache_release(c, get(c, "a"));
        assert_int_equal(opened, 4);
}

static void test_failure(void **state)
{
        struct template_cache *c = *state;
        struct vm_template *t = NULL;
        struct error err = {};
        fail = 1;
        assert_true(template_cache_acquire(c, "a", "/builds/a", &t, &err) < 0);
        assert_int_equal(err.kind, ERROR_CONFLICT);
        assert_true(template_cache_acquire(c, "a", "/builds/a", &t, &err) < 0);
        assert_int_equal(opened, 2);
}

static void *acquire_thread(void *data)
{
        return get(data, "a");
}

static void test_concurrent_opening(void **state)
{
        struct template_cache *c = *state;
        pthread_t threads[4];
        void *got[4];
        hold = true;
        for (int i = 0; i < 4; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, acquire_thread, c), 0);
        pthread_mutex_lock(&lock);
        hold = false;
        pthread_cond_broadcast(&opening_may_end);
        pthread_mutex_unlock(&lock);
        for (int i = 0; i < 4; i++) {
                pthread_join(threads[i], &got[i]);
                assert_ptr_equal(got[i], got[0]);
        }
        assert_int_equal(opened, 1);
        for (int i = 0; i < 4; i++)
                template_cache_release(c, got[i]);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_shared, reset, release_all),
                cmocka_unit_test_setup_teardown(test_bound, reset, release_all),
                cmocka_unit_test_setup_teardown(test_failure, reset, release_all),
                cmocka_unit_test_setup_teardown(test_concurrent_opening, reset, release_all),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
