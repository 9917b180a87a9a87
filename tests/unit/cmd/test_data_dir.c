/* The data directory: made once, locked against a second server; the default team and its key survive a cut-off first start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cmd/data_dir.h"

static char dir[64];
static struct store *store;
static struct records *records;

static char *in_dir(const char *name)
{
        return path_join(dir, name);
}

static mode_t mode_of(const char *name)
{
        struct stat st;
        CLEANUP_FREE char *path = in_dir(name);
        assert_int_equal(stat(path, &st), 0);
        return st.st_mode & 07777;
}

static char *content_of(const char *name)
{
        struct buf b = {};
        CLEANUP_FREE char *path = in_dir(name);
        assert_int_equal(file_read(path, 4096, &b, NULL), 0);
        return buf_steal(&b);
}

static int setup(void **state)
{
        (void)state;
        strcpy(dir, "/tmp/vmon-test-data-XXXXXX");
        assert_non_null(mkdtemp(dir));
        CLEANUP_FREE char *url = xasprintf("sqlite:%s/vmon.db", dir);
        assert_int_equal(store_open(url, &store, NULL), 0);
        assert_int_equal(records_open(store, &records, NULL), 0);
        return 0;
}

static int teardown(void **state)
{
        (void)state;
        records_close(records);
        store_close(store);
        return tree_remove(dir, NULL);
}

static void test_lock(void **state)
{
        (void)state;
        struct error err = {};
        int first = -1, second = -1;
        assert_int_equal(data_dir_open(dir, &first, NULL), 0);
        assert_true(data_dir_open(dir, &second, &err) < 0);
        assert_int_equal(err.kind, ERROR_CONFLICT);
        CLEANUP_FREE char *pid = xasprintf("process %d", getpid());
        assert_non_null(strstr(err.message, pid));
        assert_int_equal(second, -1);
        close(first);
        assert_int_equal(data_dir_open(dir, &second, NULL), 0);
        close(second);
        assert_int_equal(mode_of("sandboxes"), 0711);
        mode_of("cache/oci");
}

static void test_cluster_token(void **state)
{
        (void)state;
        struct error err = {};
        CLEANUP_FREE char *path = in_dir("cluster-token"), *made = NULL, *again = NULL, *none = NULL;
        assert_int_equal(cluster_token_load(path, &made, NULL), 0);
        assert_true(str_is_hex(made, 64));
        assert_int_equal(mode_of("cluster-token"), 0600);
        assert_int_equal(cluster_token_load(path, &again, NULL), 0);
        assert_string_equal(made, again);
        assert_int_equal(file_write_atomic(path, "short\n", 6, 0600, NULL), 0);
        assert_true(cluster_token_load(path, &none, &err) < 0);
        assert_int_equal(err.kind, ERROR_INVALID);
        assert_null(strstr(err.message, "short\n"));
}

static void assert_key_works(const char *key)
{
        struct team *team = NULL;
        assert_int_equal(records_key_team(records, key, &team, NULL), 0);
        assert_string_equal(team->slug, "default");
        assert_int_equal(team->max_sandboxes, 100);
        assert_int_equal(team->max_sandbox_hours, 24);
        team_free(team);
}

static void test_first_start(void **state)
{
        (void)state;
        CLEANUP_FREE char *key = NULL, *again = NULL;
        assert_int_equal(default_team_ensure(records, dir, &key, NULL), 0);
        assert_true(str_starts(key, "e2b_") && str_is_hex(key + 4, 40));
        assert_int_equal(mode_of("default-key"), 0600);
        CLEANUP_FREE char *content = content_of("default-key");
        assert_string_equal(str_trim(content), key);
        assert_key_works(key);
        assert_int_equal(default_team_ensure(records, dir, &again, NULL), 0);
        assert_null(again); /* shown once */
}

static void test_cut_off_first_start(void **state)
{
        (void)state;
        CLEANUP_FREE char *lost = NULL, *key = NULL, *marker = in_dir("default-key.pending"), *file = in_dir("default-key");
        assert_int_equal(default_team_ensure(records, dir, &lost, NULL), 0);
        assert_false(path_exists(marker));
        assert_int_equal(unlink(file), 0); /* as if the crash had come before the key was written */
        assert_int_equal(file_write_atomic(marker, "", 0, 0600, NULL), 0);
        assert_int_equal(default_team_ensure(records, dir, &key, NULL), 0);
        assert_non_null(key);
        assert_key_works(key);
        assert_true(path_exists(file));
        assert_false(path_exists(marker));
}

static void test_other_teams_only(void **state)
{
        (void)state;
        char id[] = "8f0e6d0a-0000-4000-8000-000000000001", name[] = "mine";
        struct team t = { .id = id, .name = name, .slug = name };
        CLEANUP_FREE char *key = NULL;
        team_defaults(&t);
        assert_int_equal(records_team_create(records, &t, NULL), 0);
        assert_int_equal(default_team_ensure(records, dir, &key, NULL), 0);
        assert_null(key); /* a store that is in use gets no team by itself */
}

#define WITH_STORE(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = { WITH_STORE(test_lock), WITH_STORE(test_cluster_token), WITH_STORE(test_first_start),
                                            WITH_STORE(test_cut_off_first_start), WITH_STORE(test_other_teams_only) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
