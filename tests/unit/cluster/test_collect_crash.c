/* Housekeeping that is killed at each step of its work and runs again: whatever is in use stays whole, and what should go is gone in the end,
 * with its room. */
#include "../store/temporary.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "cluster/housekeeping.h"

#define PARTS 3
#define PART_BYTES 100000

static char *kept;

static bool in_use(void *data, const char *build_id)
{
        (void)data;
        return streq(build_id, kept);
}

static void write_part(const char *dir, int i)
{
        CLEANUP_FREE char *file = xasprintf("%s/part%d", dir, i), *data = xcalloc(1, PART_BYTES);

        memset(data, 'x', PART_BYTES);
        assert_int_equal(file_write_atomic(file, data, PART_BYTES, 0644, NULL), 0);
}

static void make_artifacts(struct temporary *t, const char *build_id)
{
        CLEANUP_FREE char *dir = xasprintf("%s/builds/%s", t->dir, build_id);

        assert_int_equal(dir_make(dir, 0755, NULL), 0);
        for (int i = 0; i < PARTS; i++)
                write_part(dir, i);
}

static void make_old_context(struct temporary *t)
{
        CLEANUP_FREE char *dir = xasprintf("%s/files/acme", t->dir), *file = NULL;
        char hash[65] = {};
        const struct timespec times[2] = {};

        memset(hash, 'a', 64);
        file = path_join(dir, hash);
        assert_int_equal(dir_make(dir, 0700, NULL), 0);
        assert_int_equal(file_write_atomic(file, "x", 1, 0600, NULL), 0);
        assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
}

static void delete_template_of(struct temporary *t, const char *build_id)
{
        struct build_record *b;
        struct error err;
        char **builds;

        assert_int_equal(records_build_get(t->records, build_id, &b, &err), 0);
        assert_int_equal(records_template_delete(t->records, b->template_id, &builds, &err), 0);
        name_list_free(builds);
        build_record_free(b);
}

/* In a process of its own: VMON_FAILPOINT is read once. */
static int collect(const char *dir, const char *url)
{
        struct store *store;
        struct records *records;
        struct garbage *items;
        struct error err;
        size_t count;

        if (store_open(url, &store, &err) < 0 || records_open(store, &records, &err) < 0)
                return 2;
        const struct housekeeping_settings s = { .data_dir = dir, .records = records, .in_use = in_use };

        int r = housekeeping_collect(&s, false, &items, &count, &err);

        free(items);
        records_close(records);
        store_close(store);
        return r < 0 ? 3 : 0;
}

/* True when the run ended by itself. */
static bool run_killed_at(const struct temporary *t, int step)
{
        char spec[32];
        int status;
        pid_t pid = fork();

        if (pid == 0) {
                snprintf(spec, sizeof(spec), "@%d", step);
                setenv("VMON_FAILPOINT", spec, 1);
                execl("/proc/self/exe", "test", "--collect", t->dir, t->url, kept, (char *)NULL);
                _exit(4);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status)) {
                assert_int_equal(WTERMSIG(status), SIGKILL);
                return false;
        }
        assert_int_equal(WEXITSTATUS(status), 0);
        return true;
}

static void close_store(struct temporary *t)
{
        records_close(t->records);
        store_close(t->store);
        t->records = NULL;
        t->store = NULL;
}

static void check_whole(struct temporary *t, const char *build_id)
{
        for (int i = 0; i < PARTS; i++) {
                CLEANUP_FREE char *file = xasprintf("%s/builds/%s/part%d", t->dir, build_id, i);
                struct stat st;

                assert_int_equal(stat(file, &st), 0);
                assert_int_equal(st.st_size, PART_BYTES);
        }
}

static void killed_at_each_step(void **state)
{
        struct temporary *t = *state;
        struct team *team = temporary_team(t, "acme", false);
        CLEANUP_FREE char *live = temporary_ready(t, team, "live", "default"), *used = temporary_ready(t, team, "used", "default");
        CLEANUP_FREE char *builds = path_join(t->dir, "builds"), *files = path_join(t->dir, "files");
        int step = 1;
        uint64_t before;

        kept = used;
        make_artifacts(t, live);
        make_artifacts(t, used);
        delete_template_of(t, used);
        before = tree_allocated_bytes(builds);
        for (bool ended = false; !ended; step++) {
                CLEANUP_FREE char *gone = temporary_ready(t, team, "gone", "default"), *path = NULL;

                make_artifacts(t, gone);
                make_old_context(t);
                delete_template_of(t, gone);
                close_store(t);
                ended = run_killed_at(t, step);
                path = xasprintf("%s/builds/%s", t->dir, gone);
                /* Under its name it is whole or not there. */
                temporary_reopen(t);
                if (path_exists(path))
                        check_whole(t, gone);
                close_store(t);
                assert_true(run_killed_at(t, 1000));
                assert_false(path_exists(path));
                temporary_reopen(t);
                check_whole(t, live);
                check_whole(t, used);
                assert_int_equal(tree_allocated_bytes(builds), before); /* the room is back */
                assert_true(tree_allocated_bytes(files) < 3 * 4096);
        }
        assert_true(step > 5); /* there were steps to be killed at */
        team_free(team);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(killed_at_each_step, temporary_setup, temporary_teardown) };

        if (argc == 5 && streq(argv[1], "--collect")) {
                kept = argv[4];
                return collect(argv[2], argv[3]);
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
