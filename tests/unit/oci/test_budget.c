/* The byte budget of the image cache: which images go first, and which never. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/oci.h"
#include "oci/record.h"

#define BLOB (256 * 1024)
#define HOUR 3600

static char *cache;

static char *digest(char digit)
{
        char hex[65] = {};

        memset(hex, digit, 64);
        return xasprintf("sha256:%s", hex);
}

static void set_age(const char *path, int64_t age_s)
{
        const struct timespec then = { .tv_sec = time(NULL) - age_s }, times[2] = { then, then };

        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void make_blob(char digit, int64_t age_s)
{
        CLEANUP_FREE char *d = digest(digit), *path = blob_path(cache, d), *data = xcalloc(1, BLOB);

        memset(data, digit, BLOB);
        assert_int_equal(file_write_atomic(path, data, BLOB, 0600, NULL), 0);
        set_age(path, age_s);
}

static bool has_blob(char digit)
{
        CLEANUP_FREE char *d = digest(digit), *path = blob_path(cache, d);

        return path_exists(path);
}

/* An image of the given blobs, last resolved so long ago. */
static void make_image(const char *name, const char *digits, int64_t age_s, bool imported)
{
        char *blobs[8] = {};
        size_t n = 0;
        struct image_record r = { .reference = (char *)name, .architecture = (char *)"amd64", .blobs = blobs, .imported = imported };
        CLEANUP_FREE char *path = NULL, *reference_digest = NULL;
        char hex[DIGEST_TEXT_MAX];

        for (; digits[n]; n++) {
                blobs[n] = digest(digits[n]);
                make_blob(digits[n], age_s);
        }
        r.digest = r.config_digest = blobs[0];
        r.layer_count = n;
        assert_int_equal(image_record_save(cache, &r, NULL), 0);
        digest_of(name, strlen(name), hex);
        path = xasprintf("%s/images/%s", cache, digest_hex(hex));
        set_age(path, age_s);
        while (n)
                free(blobs[--n]);
}

static char seen[512];

static void found(void *data, const char *what, const char *reason, uint64_t bytes)
{
        size_t n = strlen(seen);

        (void)data;
        (void)reason;
        snprintf(seen + n, sizeof(seen) - n, "%.8s:%llu ", what, (unsigned long long)(bytes / BLOB));
}

static const char *trim(uint64_t blobs, bool dry_run)
{
        struct error err;

        seen[0] = '\0';
        assert_int_equal(oci_cache_trim(cache, blobs * BLOB + BLOB / 2, HOUR, dry_run, found, NULL, &err), 0);
        return seen;
}

static int setup(void **state)
{
        char template[] = "/tmp/vmon-oci-XXXXXX";

        (void)state;
        cache = xstrdup(mkdtemp(template));
        return blob_cache_prepare(cache, NULL);
}

static int teardown(void **state)
{
        (void)state;
        tree_remove(cache, NULL);
        free(cache);
        return 0;
}

static void least_recently_used_first(void **state)
{
        (void)state;
        make_image("old", "ab", 5 * HOUR, false);
        make_image("middle", "bc", 4 * HOUR, false); /* shares b */
        make_image("new", "d", 2 * HOUR, false);
        assert_string_equal(trim(4, false), "");
        assert_string_equal(trim(3, true), "old:1 ");
        assert_true(has_blob('a'));
        assert_string_equal(trim(3, false), "old:1 ");
        assert_false(has_blob('a'));
        assert_true(has_blob('b')); /* the other image's too */
        assert_string_equal(trim(3, false), "");
        assert_string_equal(trim(1, false), "middle:2 ");
        assert_false(has_blob('b'));
        assert_true(has_blob('d'));
        assert_string_equal(trim(0, false), "new:1 ");
}

static void never_what_a_build_may_use(void **state)
{
        (void)state;
        make_image("now", "ab", HOUR / 2, false);
        make_image("byhand", "c", 9 * HOUR, true);
        make_blob('d', HOUR / 2); /* of a pull that is under way: no record names it yet */
        assert_string_equal(trim(0, false), "");
        assert_true(has_blob('a') && has_blob('b') && has_blob('c') && has_blob('d'));
}

static void strays_go_before_images(void **state)
{
        CLEANUP_FREE char *d = digest('f'), *partial = NULL, *data = xcalloc(1, BLOB);

        (void)state;
        partial = blob_partial_path(cache, d);
        assert_int_equal(file_write_atomic(partial, data, BLOB, 0600, NULL), 0);
        set_age(partial, 2 * HOUR);
        make_image("old", "a", 5 * HOUR, false);
        make_blob('e', 2 * HOUR);
        assert_string_equal(trim(2, false), "ffffffff:1 ");
        assert_string_equal(trim(1, false), "eeeeeeee:1 ");
        assert_true(has_blob('a'));
}

/* A build resolves the image between the listing and the removal: its mark wins. */
static void a_mark_keeps_it(void **state)
{
        (void)state;
        make_image("old", "a", 5 * HOUR, false);
        assert_string_equal(trim(0, true), "old:1 ");
        make_image("old", "a", 0, false);
        assert_string_equal(trim(0, false), "");
        assert_true(has_blob('a'));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(least_recently_used_first), TEST(never_what_a_build_may_use), TEST(strays_go_before_images), TEST(a_mark_keeps_it),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
