/* A power cut at every step of an eviction that merges: this program runs itself again and is killed at each failpoint in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/subprocess.h"
#include "cache_fixture.h"

#define IMAGE_BYTES (16 << 20)
#define CHAIN "abcd"
#define KILLS_MAX 100

/* The run that is killed: room for one more layer under the budget. */
static int evict(char **argv)
{
        struct build_layer l;
        bool kept;

        dir = argv[2];
        scratch = argv[3];
        open_cache(48, strtoull(argv[4], NULL, 10));
        l = image_layer('f', 6, 0);
        kept = put(&l, NULL, false);
        done(&l);
        build_cache_close(cache);
        return kept ? 0 : 1;
}

/* The wait status of such a run. */
static int run(uint64_t budget, const char *name, const char *value)
{
        char limit[32];
        int status;
        pid_t pid;

        snprintf(limit, sizeof(limit), "%llu", (unsigned long long)budget);
        pid = fork();
        if (pid == 0) {
                setenv(name, value, 1);
                execl("/proc/self/exe", "test_cache_crash", "evict", dir, scratch, limit, NULL);
                _exit(127);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return status;
}

static bool there(char name)
{
        char key[BUILD_KEY_LEN + 1] = {};
        CLEANUP_FREE char *path = NULL;

        memset(key, name, BUILD_KEY_LEN);
        path = xasprintf("%s/%s", dir, key);
        return path_exists(path);
}

static size_t files_in(const char *path)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(path);
        struct dirent *de;
        size_t n = 0;

        assert_non_null(d);
        while ((de = readdir(d)))
                n += de->d_name[0] != '.';
        return n;
}

/* Layers and nothing else: each a record and a disk. */
static void no_litter(void)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        uint64_t bytes = 0;
        struct dirent *de;

        assert_non_null(d);
        while ((de = readdir(d))) {
                CLEANUP_FREE char *path = path_join(dir, de->d_name);

                if (de->d_name[0] == '.')
                        continue;
                assert_int_equal(strlen(de->d_name), BUILD_KEY_LEN);
                assert_int_equal(files_in(path), 2);
                bytes += tree_allocated_bytes(path);
        }
        assert_int_equal(files_in(dir), build_cache_count(cache));
        assert_int_equal(bytes, build_cache_bytes(cache));
}

static void close_cache(void)
{
        build_cache_close(cache);
        cache = NULL;
}

/* What each layer's tree has to be: a, b over a, and so on. */
static char *expected[sizeof(CHAIN) - 1];

/* All write the same clusters, and each one of its own. */
static void make_chain(void)
{
        struct build_layer l[sizeof(CHAIN) - 1] = {};
        const char *disks[sizeof(CHAIN)] = {};

        open_cache(48, 1 << 30);
        for (unsigned i = 0; CHAIN[i]; i++) {
                CLEANUP_FREE char *common = xasprintf("write -P %u 0 1M", i + 1), *own = xasprintf("write -P %u %uM 64k", i + 50, i + 4);

                l[i] = layer(CHAIN[i], 1);
                unlink(l[i].disk);
                make_image(l[i].disk, IMAGE_BYTES, (const char *const[]){common, own, NULL});
                assert_true(put(&l[i], i ? &l[i - 1] : NULL, false));
                disks[i] = l[i].disk;
                expected[i] = content(disks);
        }
        for (unsigned i = 0; CHAIN[i]; i++)
                done(&l[i]);
}

static void trees_are_right(void)
{
        for (unsigned i = 0; CHAIN[i]; i++)
                if (there(CHAIN[i])) {
                        char names[sizeof(CHAIN)] = CHAIN;
                        CLEANUP_FREE char *got = NULL;
                        size_t layers;

                        names[i + 1] = '\0';
                        got = content_of(names, &layers);
                        assert_memory_equal(got, expected[i], IMAGE_BYTES);
                }
}

static void copy_tree(const char *from, const char *to)
{
        struct error err = {};

        tree_remove(to, NULL);
        if (subprocess_run((const char *const[]){"cp", "-a", from, to, NULL}, NULL, &err) < 0)
                fail_msg("%s", err.message);
}

/* How many failpoints a whole run passes, and that those of a merge are among them. */
static long passages(uint64_t budget)
{
        static const char *const places[] = {"\nmerge ", "\nmerged ", "\nfsync ", "\nrename ", "\nrenamed ", "\npublished ", "\nunlinked ", "\nremove ", "\nremoved "};
        CLEANUP_FREE char *log = path_join(scratch, "passages");
        CLEANUP_BUF struct buf text = {};
        long n = 0;

        assert_int_equal(run(budget, "VMON_FAILPOINT_LOG", log), 0);
        assert_true(file_read(log, 1 << 20, &text, NULL) >= 0);
        for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
                if (!strstr(buf_str(&text), places[i]))
                        fail_msg("no%s in %s", places[i] + 1, buf_str(&text));
        for (const char *p = buf_str(&text); (p = strchr(p, '\n')); p++)
                n++;
        return n;
}

static void nothing_is_lost_at_any_instant(void **state)
{
        CLEANUP_FREE char *before = path_join(scratch, "before");
        bool kept[sizeof(CHAIN) - 1];
        uint64_t budget;
        unsigned evicted = 0;
        long n;

        (void)state;
        make_chain();
        budget = build_cache_bytes(cache); /* the new layer is smaller than what two merges give back, larger than what one does */
        close_cache();
        copy_tree(dir, before);
        n = passages(budget);
        for (unsigned i = 0; CHAIN[i]; i++) {
                kept[i] = there(CHAIN[i]);
                evicted += !kept[i];
        }
        assert_true(evicted > 0 && there('d') && there('f'));
        assert_in_range(n, 10, KILLS_MAX);
        for (long at = 1; at <= n; at++) {
                CLEANUP_FREE char *spec = xasprintf("@%ld", at);
                int status;

                copy_tree(before, dir);
                status = run(budget, "VMON_FAILPOINT", spec);
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
                open_cache(48, 1 << 30);
                no_litter();
                for (unsigned i = 0; CHAIN[i]; i++)
                        if (kept[i] && !there(CHAIN[i]))
                                fail_msg("killed at %ld of %ld: layer %c is gone", at, n, CHAIN[i]);
                trees_are_right();
                close_cache();
                assert_true(there('f') || run(budget, "VMON_NONE", "") == 0); /* and it goes on from there */
                assert_true(there('f') && there('d'));
        }
        for (unsigned i = 0; CHAIN[i]; i++)
                free(expected[i]);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(nothing_is_lost_at_any_instant, start, stop)};

        if (argc == 5 && streq(argv[1], "evict"))
                return evict(argv);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
