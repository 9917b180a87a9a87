/* What is evicted, against a model: random trees of layers, used by builds that overlap, under both limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cache_fixture.h"

#define CLUSTER 65536
#define CLUSTERS 64
#define NODES 20
#define BUILDS 2 /* at the same time */
#define STEPS 50
#define CHAIN_MAX (NODES + 1)

/* A layer that a build may make: what it stands on, and which clusters it writes (0 is left alone, ZEROED is zeroes). */
#define ZEROED 255
struct node {
        int parent; /* or -1 */
        bool no_disk;
        unsigned char writes[CLUSTERS];
        int64_t used;  /* when, in steps */
        bool present;
};

struct running {
        bool active;
        struct build_layer layers[2 * CHAIN_MAX];
        int nodes[2 * CHAIN_MAX];
        size_t count;
};

static struct model {
        struct node nodes[NODES];
        struct running builds[BUILDS];
        unsigned seed, max_layers;
        uint64_t max_bytes;
        int64_t now;
} model;
static struct {
        unsigned leaves, merged, merged_in_use, refused;
} seen;

static unsigned pick(unsigned n)
{
        model.seed = model.seed * 1103515245 + 12345;
        return (model.seed >> 16) % n;
}

/* Few places, so that layers overwrite one another. */
static void write_some(struct node *n)
{
        for (unsigned i = 0, times = 1 + pick(3); i < times; i++) {
                unsigned at = 8 * pick(CLUSTERS / 8), count = 1 + pick(8);
                unsigned char what = pick(6) ? (unsigned char)(1 + pick(250)) : ZEROED;

                memset(n->writes + at, what, count);
        }
}

static void make_nodes(void)
{
        for (int i = 0; i < NODES; i++) {
                struct node *n = &model.nodes[i];

                *n = (struct node){.parent = i < 2 ? -1 : pick(3) ? i - 1 : (int)pick((unsigned)i), .no_disk = i >= 2 && pick(6) == 0};
                if (!n->no_disk)
                        write_some(n);
        }
}

static void key_of(int node, char key[BUILD_KEY_LEN + 1])
{
        snprintf(key, BUILD_KEY_LEN + 1, "%0*x", BUILD_KEY_LEN, (unsigned)node + 1);
}

static bool on_disk(int node)
{
        char key[BUILD_KEY_LEN + 1];
        CLEANUP_FREE char *path = NULL;

        key_of(node, key);
        path = path_join(dir, key);
        return path_exists(path);
}

/* From the root to `node`. */
static size_t path_to(int node, int path[CHAIN_MAX])
{
        size_t n = 0;

        for (int i = node; i >= 0; i = model.nodes[i].parent)
                n++;
        for (int i = node, at = (int)n; i >= 0; i = model.nodes[i].parent)
                path[--at] = i;
        return n;
}

static bool in_use(int node)
{
        for (int b = 0; b < BUILDS; b++)
                for (size_t i = 0; i < model.builds[b].count; i++)
                        if (model.builds[b].nodes[i] == node && model.builds[b].layers[i].kept)
                                return true;
        return false;
}

static bool on_top(int node)
{
        for (int b = 0; b < BUILDS; b++) {
                const struct running *r = &model.builds[b];

                if (r->count && r->nodes[r->count - 1] == node && r->layers[r->count - 1].kept)
                        return true;
        }
        return false;
}

static bool has_descendant(int node)
{
        for (int i = node + 1; i < NODES; i++)
                for (int p = model.nodes[i].parent; p >= 0 && model.nodes[i].present; p = model.nodes[p].parent)
                        if (p == node)
                                return true;
        return false;
}

static uint64_t bytes_on_disk(void)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        uint64_t bytes = 0;
        struct dirent *de;

        assert_non_null(d);
        while ((de = readdir(d))) {
                CLEANUP_FREE char *path = path_join(dir, de->d_name);

                if (de->d_name[0] != '.')
                        bytes += tree_allocated_bytes(path);
        }
        return bytes;
}

/* `gone` went while everything now present, but for `fresh`, stayed. */
static void expect_right_victim(int gone, int fresh)
{
        if (on_top(gone))
                fail_msg("layer %d was evicted while a build stood on it", gone);
        for (int i = 0; i < NODES; i++)
                if (i != fresh && model.nodes[i].present && !in_use(i) && model.nodes[i].used < model.nodes[gone].used)
                        fail_msg("layer %d went, though %d was used before it and by no build now", gone, i);
}

/* After a step; `fresh` is what it may have added, or -1. */
static void compare(int fresh)
{
        bool before[NODES];

        for (int i = 0; i < NODES; i++) {
                before[i] = model.nodes[i].present;
                model.nodes[i].present = on_disk(i);
                if (i != fresh && !before[i] && model.nodes[i].present)
                        fail_msg("layer %d came from nowhere", i);
        }
        for (int i = 0; i < NODES; i++)
                if (before[i] && !model.nodes[i].present) {
                        bool inner = has_descendant(i);

                        expect_right_victim(i, fresh);
                        seen.merged += inner && !in_use(i);
                        seen.merged_in_use += inner && in_use(i);
                        seen.leaves += !inner;
                }
        assert_true(build_cache_count(cache) <= model.max_layers);
        assert_true(build_cache_bytes(cache) <= model.max_bytes);
        assert_int_equal(build_cache_bytes(cache), bytes_on_disk());
}

/* The tree of `node` as the links of this build have it. */
static void expect_content(const struct running *r)
{
        const char *disks[2 * CHAIN_MAX + 1] = {};
        unsigned char expected[CLUSTERS] = {};
        int path[CHAIN_MAX] = {};
        size_t n = 0, depth = path_to(r->nodes[r->count - 1], path);
        CLEANUP_FREE char *got = NULL;

        for (size_t i = 0; i < r->count; i++)
                if (r->layers[i].disk)
                        disks[n++] = r->layers[i].disk;
        if (n == 0)
                return;
        got = content(disks);
        for (size_t i = 0; i < depth; i++)
                for (size_t at = 0; at < CLUSTERS; at++)
                        if (model.nodes[path[i]].writes[at])
                                expected[at] = model.nodes[path[i]].writes[at] == ZEROED ? 0 : model.nodes[path[i]].writes[at];
        for (size_t at = 0; at < CLUSTERS * CLUSTER; at++)
                if ((unsigned char)got[at] != expected[at / CLUSTER])
                        fail_msg("layer %d: cluster %zu is %d, not %d", path[depth - 1], at / CLUSTER, got[at], expected[at / CLUSTER]);
}

static void end_build(struct running *r)
{
        expect_content(r);
        for (size_t i = 0; i < r->count; i++) {
                if (r->layers[i].disk)
                        unlink(r->layers[i].disk);
                done(&r->layers[i]);
        }
        *r = (struct running){};
        compare(-1);
}

/* What the cache has of the way to `target`. */
static void begin_build(struct running *r, int target)
{
        CLEANUP_FREE char *prefix = xasprintf("%s/build-%d", scratch, serial++);
        char keys[CHAIN_MAX][BUILD_KEY_LEN + 1];
        const char *list[CHAIN_MAX] = {};
        struct build_cache_hit h = {};
        int path[CHAIN_MAX] = {};
        size_t n = path_to(target, path);
        bool known = false;

        r->active = true;
        for (size_t i = 0; i < n; i++) {
                key_of(path[i], keys[i]);
                list[i] = keys[i];
                known |= model.nodes[path[i]].present;
        }
        assert_int_equal(build_cache_get(cache, list, n, prefix, &h, NULL), 0);
        assert_int_equal(h.damaged, 0);
        assert_true(known == (h.layer_count > 0));
        for (size_t i = 0; i < h.layer_count; i++) {
                int node = (int)strtol(h.layers[i].key + BUILD_KEY_LEN - 4, NULL, 16) - 1;

                assert_true(model.nodes[node].present);
                model.nodes[node].used = model.now;
                r->nodes[r->count] = node;
                r->layers[r->count++] = h.layers[i];
        }
        if (h.layer_count)
                assert_int_equal(r->nodes[r->count - 1], path[h.depth]);
        build_cache_hit_free(&h);
        compare(-1);
        if (r->count)
                expect_content(r);
}

static struct build_layer make_layer(int node)
{
        struct build_layer l = layer('0', 1);
        char *commands[CLUSTERS + 1] = {};
        size_t n = 0;

        key_of(node, l.key);
        unlink(l.disk);
        for (size_t at = 0, end; at < CLUSTERS; at = end) {
                unsigned char what = model.nodes[node].writes[at];

                for (end = at; end < CLUSTERS && model.nodes[node].writes[end] == what; end++)
                        ;
                if (what)
                        commands[n++] = what == ZEROED ? xasprintf("write -z -u %zuk %zuk", at * 64, (end - at) * 64)
                                                       : xasprintf("write -P %d %zuk %zuk", what, at * 64, (end - at) * 64);
        }
        if (model.nodes[node].no_disk) {
                free(l.disk);
                l.disk = NULL;
        } else {
                make_image(l.disk, CLUSTERS * CLUSTER, (const char *const *)commands);
        }
        while (n)
                free(commands[--n]);
        return l;
}

static void add_layer(struct running *r, int node)
{
        struct build_layer l = make_layer(node);
        bool kept = put(&l, r->count ? &r->layers[r->count - 1] : NULL, false);

        seen.refused += !kept;
        compare(node);
        assert_true(!kept || model.nodes[node].present);
        r->nodes[r->count] = node;
        r->layers[r->count++] = l;
        if (!kept)
                return;
        for (size_t i = 0; i < r->count; i++)
                if (r->layers[i].kept)
                        model.nodes[r->nodes[i]].used = model.now;
}

static void build(struct running *r)
{
        int path[CHAIN_MAX] = {}, target = (int)pick(NODES);
        size_t n = path_to(target, path), at = 0;

        begin_build(r, target);
        while (r->count && path[at] != r->nodes[r->count - 1])
                at++;
        for (at = r->count ? at + 1 : 0; at < n; at++) {
                model.now++;
                add_layer(r, path[at]);
        }
}

static void reopen(void)
{
        uint64_t bytes;
        unsigned count;

        for (int b = 0; b < BUILDS; b++)
                if (model.builds[b].active)
                        end_build(&model.builds[b]);
        bytes = build_cache_bytes(cache);
        count = build_cache_count(cache);
        build_cache_close(cache);
        cache = NULL;
        open_cache(model.max_layers, model.max_bytes);
        assert_int_equal(build_cache_bytes(cache), bytes);
        assert_int_equal(build_cache_count(cache), count);
        compare(-1);
}

static void run_model(unsigned seed, unsigned max_layers, uint64_t max_bytes)
{
        model = (struct model){.seed = seed, .max_layers = max_layers, .max_bytes = max_bytes};
        tree_remove(dir, NULL);
        open_cache(max_layers, max_bytes);
        make_nodes();
        for (int step = 0; step < STEPS; step++) {
                struct running *r = &model.builds[pick(BUILDS)];

                model.now++;
                if (r->active)
                        end_build(r);
                else
                        build(r);
                if (step % 20 == 19)
                        reopen();
        }
        reopen();
        build_cache_close(cache);
        cache = NULL;
}

static void both_limits_hold_and_the_oldest_goes(void **state)
{
        const char *soak = getenv("VMON_SOAK");
        unsigned seeds = soak ? 100 : 1;

        (void)state;
        for (unsigned seed = 1; seed <= seeds; seed++) {
                run_model(seed, 48, 4 << 20);
                run_model(seed + 1000, 5, 1 << 30);
                run_model(seed + 2000, 7, 5 << 20);
        }
        print_message("%u leaves and %u inner layers evicted, %u inner ones in use; %u layers not kept\n", seen.leaves, seen.merged,
                      seen.merged_in_use, seen.refused);
        assert_true(seen.leaves > 0 && seen.merged > 0 && seen.merged_in_use > 0 && seen.refused > 0);
}

/* a, b and c were last used together for c. What b wrote again is given back by merging; where nothing was, the leaf goes. */
static bool evicts_inner_layer(unsigned second_at)
{
        struct build_layer a = image_layer('a', 1, 0), b = image_layer('b', 2, second_at), c = image_layer('c', 3, 100), d = image_layer('d', 4, 0);
        CLEANUP_FREE char *before = NULL, *after = NULL, *leaf = NULL;
        uint64_t budget;
        bool inner;
        size_t layers = 0;

        open_cache(48, 1 << 30);
        assert_true(put(&a, NULL, false) && put(&b, &a, false) && put(&c, &b, false));
        build_cache_release(cache, &a);
        build_cache_release(cache, &b);
        build_cache_release(cache, &c);
        before = content_of("abc", &layers);
        assert_int_equal(layers, 3);
        budget = build_cache_bytes(cache) + (512 << 10);
        build_cache_close(cache);
        open_cache(48, budget);
        assert_true(put(&d, NULL, false));
        assert_true(build_cache_bytes(cache) <= budget);
        done(&d);
        assert_int_equal(build_cache_count(cache), 3);
        leaf = xasprintf("%s/%s", dir, c.key);
        inner = path_exists(leaf);
        after = inner ? content_of("abc", &layers) : NULL;
        if (inner)
                assert_memory_equal(after, before, 16 << 20);
        build_cache_close(cache);
        cache = NULL;
        build_layer_free(&a);
        build_layer_free(&b);
        build_layer_free(&c);
        return inner && layers == 2;
}

static void an_inner_layer_goes_for_bytes_when_that_frees_half_of_it(void **state)
{
        (void)state;
        assert_true(evicts_inner_layer(1)); /* 7 of a's 8 clusters */
}

static void a_leaf_goes_when_a_merge_would_free_little(void **state)
{
        (void)state;
        assert_false(evicts_inner_layer(6)); /* 2 of 8 */
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(an_inner_layer_goes_for_bytes_when_that_frees_half_of_it), T(a_leaf_goes_when_a_merge_would_free_little),
                T(both_limits_hold_and_the_oldest_goes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
