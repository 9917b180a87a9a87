#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/cache.h"
#include "build/context.h"

#define LAYER_BYTES (64 * 1024)

static char *top, *dir, *scratch;
static struct build_cache *cache;
static int serial;

static void open_cache(unsigned layers, uint64_t bytes)
{
        struct error err = {};

        if (build_cache_open(dir, layers, bytes, &cache, &err) < 0)
                fail_msg("%s", err.message);
}

static int start(void **state)
{
        char name[] = "/tmp/test-cache-XXXXXX";

        (void)state;
        top = xstrdup(mkdtemp(name));
        dir = path_join(top, "steps");
        scratch = path_join(top, "scratch");
        return dir_make(scratch, 0700, NULL);
}

static int stop(void **state)
{
        (void)state;
        build_cache_close(cache);
        cache = NULL;
        tree_remove(top, NULL);
        free(top);
        free(dir);
        free(scratch);
        return 0;
}

/* A layer `name` (one hex digit) with a disk of `bytes`. */
static struct build_layer layer(char name, size_t bytes)
{
        struct build_layer l = {.image_env = json_object(), .init = xstrdup("agent")};
        CLEANUP_FREE char *data = xcalloc(1, bytes + 1);

        memset(data, name, bytes);
        memset(l.key, name, BUILD_KEY_LEN);
        build_context_init(&l.context, NULL);
        l.disk = xasprintf("%s/new-%d.qcow2", scratch, serial++);
        assert_int_equal(file_write_atomic(l.disk, data, bytes, 0600, NULL), 0);
        return l;
}

static bool put(struct build_layer *l, const struct build_layer *parent, bool replace)
{
        struct error err = {};

        if (build_cache_put(cache, l, parent, NULL, replace, &err) < 0)
                fail_msg("%s", err.message);
        return l->kept;
}

static bool get(char name, const char *parent_instance, struct build_layer *ret)
{
        CLEANUP_FREE char *prefix = xasprintf("%s/got-%d", scratch, serial++);
        struct error err = {};
        char key[BUILD_KEY_LEN + 1] = {};
        int r;

        memset(key, name, BUILD_KEY_LEN);
        *ret = (struct build_layer){};
        r = build_cache_get(cache, key, parent_instance, prefix, ret, &err);
        if (r < 0)
                fail_msg("%s", err.message);
        return r == 1;
}

static void done(struct build_layer *l)
{
        build_cache_release(cache, l);
        build_layer_free(l);
}

static void finds_what_was_put(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), got;

        (void)state;
        open_cache(48, 1 << 30);
        build_context_set_user(&b.context, "bob");
        assert_true(put(&a, NULL, false));
        assert_true(put(&b, &a, false));
        assert_false(get('c', NULL, &got));
        assert_true(get('b', a.instance, &got));
        assert_string_equal(got.context.user, "bob");
        assert_string_equal(got.init, "agent");
        assert_true(str_ends(got.disk, ".qcow2"));
        assert_true(path_exists(got.disk));
        done(&got);
        assert_false(get('b', "another", &got)); /* stale: gone */
        assert_false(get('b', a.instance, &got));
        done(&a);
        done(&b);
}

static void survives_a_restart(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), got;
        CLEANUP_FREE char *litter = NULL, *half = NULL;

        (void)state;
        open_cache(48, 1 << 30);
        assert_true(put(&a, NULL, false));
        assert_true(put(&b, &a, false));
        build_cache_close(cache);
        litter = xasprintf("%s/%s.x.tmp", dir, a.key);
        assert_int_equal(dir_make(litter, 0700, NULL), 0);
        half = xasprintf("%s/%064d", dir, 7);
        assert_int_equal(dir_make(half, 0700, NULL), 0);
        open_cache(48, 1 << 30);
        assert_int_equal(build_cache_count(cache), 2);
        assert_false(path_exists(litter));
        assert_false(path_exists(half));
        assert_true(get('b', a.instance, &got));
        done(&got);
        build_layer_free(&a);
        build_layer_free(&b);
}

static void a_lost_parent_takes_its_children_at_start(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), c = layer('c', LAYER_BYTES);
        CLEANUP_FREE char *path = xasprintf("%s/%s", dir, a.key);

        (void)state;
        open_cache(48, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false) && put(&c, &b, false));
        build_cache_close(cache);
        assert_int_equal(tree_remove(path, NULL), 0);
        open_cache(48, 1 << 30);
        assert_int_equal(build_cache_count(cache), 0);
        assert_int_equal(build_cache_bytes(cache), 0);
        build_layer_free(&a);
        build_layer_free(&b);
        build_layer_free(&c);
}

static void evicts_the_oldest_leaf(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), c = layer('c', LAYER_BYTES),
                           d = layer('d', LAYER_BYTES), got;

        (void)state;
        open_cache(3, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false) && put(&c, &a, false));
        done(&b);
        done(&c);
        assert_true(put(&d, &a, false)); /* a is older, but a parent and in use */
        assert_int_equal(build_cache_count(cache), 3);
        assert_false(get('b', a.instance, &got));
        assert_true(get('c', a.instance, &got));
        done(&got);
        done(&d);
        done(&a);
}

static void layers_in_use_stay(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), c = layer('c', LAYER_BYTES),
                           d = layer('d', LAYER_BYTES);

        (void)state;
        open_cache(2, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false));
        assert_false(put(&c, &b, false));
        assert_false(put(&d, &c, false)); /* its parent is not there */
        assert_int_equal(build_cache_count(cache), 2);
        done(&a);
        done(&b);
        build_layer_free(&c);
        build_layer_free(&d);
}

static void counts_bytes(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', 16 * LAYER_BYTES), c = layer('c', LAYER_BYTES), got;

        (void)state;
        open_cache(48, 5 * LAYER_BYTES / 2);
        assert_true(put(&a, NULL, false));
        assert_true(build_cache_bytes(cache) >= LAYER_BYTES);
        assert_false(put(&b, NULL, false)); /* larger than the budget; nothing was evicted for it */
        assert_int_equal(build_cache_count(cache), 1);
        assert_true(put(&c, NULL, false));
        assert_int_equal(build_cache_count(cache), 2);
        done(&a);
        done(&c);
        c = layer('d', LAYER_BYTES);
        assert_true(put(&c, NULL, false));
        assert_false(get('a', NULL, &got));
        done(&c);
        build_layer_free(&b);
}

static void force_replaces_and_drops_what_stood_on_it(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), a2 = layer('a', LAYER_BYTES),
                           a3 = layer('a', LAYER_BYTES), b2 = layer('b', LAYER_BYTES), got;

        (void)state;
        open_cache(48, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false));
        assert_true(get('b', a.instance, &got));
        assert_false(put(&a2, NULL, false)); /* the faster one stays … */
        assert_true(put(&a3, NULL, true));   /* … unless the build is forced */
        assert_int_equal(build_cache_count(cache), 1);
        assert_true(path_exists(got.disk)); /* a build that uses the old one is not disturbed */
        assert_false(put(&b2, &a, false));  /* a layer on the old disk must not be found on the new one */
        done(&got);
        done(&a);
        done(&b);
        done(&a2);
        done(&a3);
        done(&b2);
}

static void a_layer_may_have_no_disk(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', 1), got;

        (void)state;
        open_cache(48, 1 << 30);
        free(b.disk);
        b.disk = NULL;
        assert_true(put(&a, NULL, false) && put(&b, &a, false));
        assert_true(get('b', a.instance, &got));
        assert_null(got.disk);
        done(&got);
        done(&a);
        done(&b);
}

static void damage_is_a_miss(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), got;
        CLEANUP_FREE char *path = xasprintf("%s/%s/context.json", dir, a.key);

        (void)state;
        open_cache(48, 1 << 30);
        assert_true(put(&a, NULL, false));
        assert_int_equal(file_write_atomic(path, "{\"format\":", 10, 0600, NULL), 0);
        assert_false(get('a', NULL, &got));
        assert_int_equal(build_cache_count(cache), 0);
        done(&a);
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(finds_what_was_put), T(survives_a_restart), T(a_lost_parent_takes_its_children_at_start),
                T(evicts_the_oldest_leaf), T(layers_in_use_stay), T(counts_bytes),
                T(force_replaces_and_drops_what_stood_on_it), T(a_layer_may_have_no_disk), T(damage_is_a_miss),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
