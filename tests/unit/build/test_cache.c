#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"
#include "cache_fixture.h"

#define LAYER_BYTES (64 * 1024)

/* Looks for the deepest of the keys whose digits `names` lists, bottom first: its name, or 0. `ret` is it; what it stands on is
 * released at once. `hit` may be NULL. */
static char find_deepest(const char *names, struct build_layer *ret, struct build_cache_hit *hit)
{
        CLEANUP_FREE char *prefix = xasprintf("%s/got-%d", scratch, serial++);
        char keys[16][BUILD_KEY_LEN + 1] = {};
        struct build_cache_hit h = {};
        const char *list[16];
        struct error err = {};
        char found = 0;

        for (size_t i = 0; names[i]; i++) {
                memset(keys[i], names[i], BUILD_KEY_LEN);
                list[i] = keys[i];
        }
        if (build_cache_get(cache, list, strlen(names), prefix, &h, &err) < 0)
                fail_msg("%s", err.message);
        *ret = (struct build_layer){};
        for (size_t i = 0; i < h.layer_count; i++) {
                if (i + 1 == h.layer_count) {
                        *ret = h.layers[i];
                        found = names[h.depth];
                } else {
                        build_cache_release(cache, &h.layers[i]);
                        build_layer_free(&h.layers[i]);
                }
        }
        if (hit)
                *hit = h;
        build_cache_hit_free(&h);
        return found;
}

static bool get(char name, struct build_layer *ret)
{
        return find_deepest((char[]){name, 0}, ret, NULL) == name;
}

static void finds_what_was_put(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), got;

        (void)state;
        open_cache(48, 1 << 30);
        build_context_set_user(&b.context, "bob");
        assert_true(put(&a, NULL, false));
        assert_true(put(&b, &a, false));
        assert_false(get('c', &got));
        assert_true(get('b', &got));
        assert_string_equal(got.context.user, "bob");
        assert_string_equal(got.init, "agent");
        assert_true(str_ends(got.disk, ".qcow2"));
        assert_true(path_exists(got.disk));
        done(&got);
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
        assert_true(get('b', &got));
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
        assert_false(get('b', &got));
        assert_true(get('c', &got));
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
        assert_false(put(&c, &b, false)); /* nor can these images be merged */
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
        assert_false(get('a', &got));
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
        assert_true(get('b', &got));
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
        assert_true(get('b', &got));
        assert_null(got.disk);
        done(&got);
        done(&a);
        done(&b);
}

static void overwrite(const char *path, const char *text)
{
        CLEANUP_CLOSE int fd = open(path, O_WRONLY);

        assert_int_equal(pwrite(fd, text, strlen(text), 100), strlen(text));
}

/* a, b on it, and c on a; then `spoil` gets the directory of a or b. */
static void build_tree(void)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), c = layer('c', LAYER_BYTES);

        open_cache(48, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false) && put(&c, &a, false));
        done(&a);
        done(&b);
        done(&c);
}

static void spoil_and_expect(const char *what, char name, void (*spoil)(const char *path), const char *file, char expected, bool restart)
{
        CLEANUP_FREE char *path = NULL;
        char key[BUILD_KEY_LEN + 1] = {};
        struct build_cache_hit hit;
        struct build_layer got;

        build_tree();
        if (restart) {
                build_cache_close(cache);
                cache = NULL;
        }
        memset(key, name, BUILD_KEY_LEN);
        path = xasprintf("%s/%s/%s", dir, key, file);
        spoil(path);
        if (restart)
                open_cache(48, 1 << 30);
        if (find_deepest("ab", &got, &hit) != expected)
                fail_msg("%s: not the layer that was expected", what);
        done(&got);
        if (name == 'a')
                assert_int_equal(build_cache_count(cache), 0); /* with what stood on it */
        else
                assert_true(get('c', &got)); /* its sister is whole */
        if (name != 'a')
                done(&got);
        build_cache_close(cache);
        cache = NULL;
        tree_remove(dir, NULL);
}

static void spoil_record(const char *path)
{
        overwrite(path, "x");
}

static void spoil_content(const char *path)
{
        overwrite(path, "flipped");
}

/* What bit rot looks like: nothing but the content differs. */
static void spoil_silently(const char *path)
{
        struct timespec times[2];
        struct stat st;

        assert_int_equal(stat(path, &st), 0);
        overwrite(path, "flipped");
        times[0] = st.st_atim;
        times[1] = st.st_mtim;
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void spoil_length(const char *path)
{
        assert_int_equal(truncate(path, LAYER_BYTES / 2), 0);
}

static void spoil_presence(const char *path)
{
        assert_int_equal(unlink(path), 0);
}

static void damage_is_found_and_goes_with_all_on_it(void **state)
{
        (void)state;
        for (int restart = 0; restart < 2; restart++) {
                spoil_and_expect("record", 'b', spoil_record, "context.json", 'a', restart);
                spoil_and_expect("content", 'b', spoil_content, "layer.qcow2", 'a', restart);
                spoil_and_expect("length", 'b', spoil_length, "layer.qcow2", 'a', restart);
                spoil_and_expect("presence", 'b', spoil_presence, "layer.qcow2", 'a', restart);
                spoil_and_expect("no record", 'b', spoil_presence, "context.json", 'a', restart);
                spoil_and_expect("content of the base", 'a', spoil_content, "layer.qcow2", 0, restart);
                spoil_and_expect("presence of the base", 'a', spoil_presence, "layer.qcow2", 0, restart);
        }
        spoil_and_expect("silent", 'b', spoil_silently, "layer.qcow2", 'a', true);
}

static void damage_is_counted(void **state)
{
        CLEANUP_FREE char *path = xasprintf("%s/%.*s/layer.qcow2", dir, BUILD_KEY_LEN,
                                            "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
        struct build_cache_hit hit;
        struct build_layer got;

        (void)state;
        build_tree();
        overwrite(path, "flipped");
        assert_int_equal(find_deepest("ab", &got, &hit), 'a');
        assert_int_equal(hit.damaged, 1);
        done(&got);
        assert_int_equal(find_deepest("ab", &got, &hit), 'a');
        assert_int_equal(hit.damaged, 0);
        done(&got);
}

/* Without fsync, unlike file_write_atomic(): thousands of times. */
static void rewrite(const char *path, const struct buf *b)
{
        CLEANUP_CLOSE int fd = open(path, O_WRONLY | O_TRUNC);

        assert_int_equal(fd_write_all(fd, b->data, b->len), 0);
}

/* Every single flipped bit of a record, or none of its meaning changes. */
static void no_bit_of_a_record_flips_unnoticed(void **state)
{
        CLEANUP_FREE char *path = path_join(scratch, "context.json");
        CLEANUP_BUF struct buf whole = {};
        struct layer_record r = {.instance = "abcdefghijklmnopqrstuvwx", .disk = (char *)"layer.img", .disk_digest = (char *)"00",
                                 .init = (char *)"agent", .context = {.user = (char *)"bob", .workdir = (char *)"/w"}};
        struct error err = {};

        (void)state;
        r.context.env = json_pack("{s:s}", "NAME", "value");
        if (layer_record_write(scratch, &r, &err) < 0 || file_read(path, 1 << 20, &whole, &err) < 0)
                fail_msg("%s", err.message);
        for (size_t bit = 0; bit < whole.len * 8; bit++) {
                struct layer_record got = {};

                whole.data[bit / 8] ^= (char)(1 << bit % 8);
                rewrite(path, &whole);
                if (layer_record_read(scratch, &got, NULL) == 0)
                        fail_msg("bit %zu of %s", bit, whole.data);
                whole.data[bit / 8] ^= (char)(1 << bit % 8);
        }
        json_decref(r.context.env);
}

/* A build of more layers than the cache may hold: a, b (no disk), c, d, e with room for three. */
static void an_inner_layer_is_merged_into_its_child(void **state)
{
        struct build_layer l[5] = {image_layer('a', 1, 0), layer('b', 1), image_layer('c', 3, 4), image_layer('d', 4, 100), image_layer('e', 5, 6)};
        const char *disks[] = {l[0].disk, l[2].disk, l[3].disk, l[4].disk, NULL};
        CLEANUP_FREE char *expected = content(disks), *got = NULL, *again = NULL, *links = NULL;
        size_t layers = 0;

        (void)state;
        free(l[1].disk);
        l[1].disk = NULL;
        open_cache(3, 1 << 30);
        for (size_t i = 0; i < 5; i++)
                assert_true(put(&l[i], i ? &l[i - 1] : NULL, false));
        assert_int_equal(build_cache_count(cache), 3);
        links = content(disks); /* the build's own links are as they were */
        assert_memory_equal(links, expected, 16 << 20);
        got = content_of("abcde", &layers);
        assert_int_equal(layers, 3);
        assert_memory_equal(got, expected, 16 << 20);
        for (size_t i = 0; i < 5; i++)
                build_cache_release(cache, &l[i]);
        build_cache_close(cache);
        open_cache(3, 1 << 30);
        again = content_of("abcde", &layers);
        assert_int_equal(layers, 3);
        assert_memory_equal(again, expected, 16 << 20);
        for (size_t i = 0; i < 5; i++)
                build_layer_free(&l[i]);
}

/* A forced build must not find the blocks of the layer that it replaces inside another. */
static void what_was_merged_goes_with_its_key(void **state)
{
        struct build_layer a = image_layer('a', 1, 0), b = image_layer('b', 2, 4), c = image_layer('c', 3, 8), a2 = image_layer('a', 9, 0), got;
        const char *disks[] = {a.disk, b.disk, NULL};
        CLEANUP_FREE char *expected = content(disks), *merged = NULL;
        size_t layers = 0;

        (void)state;
        open_cache(2, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false) && put(&c, &b, false));
        merged = content_of("ab", &layers);
        assert_int_equal(layers, 1);
        assert_memory_equal(merged, expected, 16 << 20);
        assert_false(get('a', &got));
        done(&a);
        done(&b);
        done(&c);
        assert_true(put(&a2, NULL, true));
        assert_false(get('b', &got));
        assert_false(get('c', &got));
        done(&a2);
}

/* Nothing can be made whole of images that are none: the new layer is not kept, the old ones stay as they are. */
static void a_merge_that_fails_changes_nothing(void **state)
{
        struct build_layer a = layer('a', LAYER_BYTES), b = layer('b', LAYER_BYTES), c = layer('c', LAYER_BYTES), got;

        (void)state;
        open_cache(2, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false));
        assert_false(put(&c, &b, false));
        assert_int_equal(build_cache_count(cache), 2);
        assert_int_equal(find_deepest("ab", &got, NULL), 'b');
        done(&got);
        assert_true(get('a', &got));
        done(&got);
        done(&a);
        done(&b);
        done(&c);
}

static void the_deepest_one_is_found(void **state)
{
        struct build_layer got;

        (void)state;
        build_tree();
        assert_int_equal(find_deepest("abdef", &got, NULL), 'b');
        done(&got);
        assert_int_equal(find_deepest("ac", &got, NULL), 'c');
        done(&got);
        assert_int_equal(find_deepest("def", &got, NULL), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(finds_what_was_put), T(survives_a_restart), T(a_lost_parent_takes_its_children_at_start),
                T(evicts_the_oldest_leaf), T(layers_in_use_stay), T(counts_bytes),
                T(force_replaces_and_drops_what_stood_on_it), T(a_layer_may_have_no_disk), T(the_deepest_one_is_found),
                T(damage_is_found_and_goes_with_all_on_it), T(damage_is_counted), T(no_bit_of_a_record_flips_unnoticed),
                T(an_inner_layer_is_merged_into_its_child), T(what_was_merged_goes_with_its_key), T(a_merge_that_fails_changes_nothing),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
