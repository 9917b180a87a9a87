/* The store's contract on SQLite: values, ranges, transactions, limits, a full disk, a crash. */
#include "temporary.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(struct store *s, const char *key, const char *value)
{
        struct error err;

        assert_int_equal(store_put(s, key, value, strlen(value), &err), 0);
}

static void gets_what_was_put(void **state)
{
        struct temporary *t = *state;
        struct store_value v = {};
        struct error err;
        int64_t first;

        put(t->store, "a/b", "one");
        assert_int_equal(store_get(t->store, "a/b", &v, &err), 0);
        assert_string_equal(v.data, "one");
        assert_int_equal(v.len, 3);
        assert_true(v.revision > 0);
        first = v.revision;
        store_value_free(&v);
        put(t->store, "a/b", "two");
        assert_int_equal(store_get(t->store, "a/b", &v, &err), 0);
        assert_string_equal(v.data, "two");
        assert_true(v.revision > first);
        store_value_free(&v);
        assert_int_equal(store_delete(t->store, "a/b", &err), 0);
        assert_int_equal(store_get(t->store, "a/b", &v, &err), -ENOENT);
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        assert_int_equal(store_delete(t->store, "a/b", &err), 0);
}

static void keeps_binary_and_empty(void **state)
{
        struct temporary *t = *state;
        struct store_value v = {};
        struct error err;

        assert_int_equal(store_put(t->store, "k", "a\0b", 3, &err), 0);
        assert_int_equal(store_get(t->store, "k", &v, &err), 0);
        assert_int_equal(v.len, 3);
        assert_memory_equal(v.data, "a\0b", 4);
        store_value_free(&v);
        assert_int_equal(store_put(t->store, "k", "", 0, &err), 0);
        assert_int_equal(store_get(t->store, "k", &v, &err), 0);
        assert_int_equal(v.len, 0);
        store_value_free(&v);
}

static void range_is(struct store *s, const char *prefix, const char *after, size_t limit, const char *expected)
{
        struct store_value *values;
        struct error err;
        char got[256] = "";
        size_t count;

        assert_int_equal(store_range(s, prefix, after, limit, &values, &count, &err), 0);
        for (size_t i = 0; i < count; i++) {
                strcat(got, values[i].key);
                strcat(got, " ");
        }
        assert_string_equal(got, expected);
        store_values_free(values, count);
}

static void ranges(void **state)
{
        struct temporary *t = *state;

        put(t->store, "a", "0");
        put(t->store, "a/2", "2");
        put(t->store, "a/1", "1");
        put(t->store, "a/10", "3");
        put(t->store, "a0", "4");
        put(t->store, "b/1", "5");
        range_is(t->store, "a/", NULL, 10, "a/1 a/10 a/2 ");
        range_is(t->store, "a/", NULL, 2, "a/1 a/10 ");
        range_is(t->store, "a/", "a/10", 10, "a/2 ");
        range_is(t->store, "a/", "a/2", 10, "");
        range_is(t->store, "a/", "A", 10, "a/1 a/10 a/2 ");
        range_is(t->store, "a/", "z", 10, "");
        range_is(t->store, "c", NULL, 10, "");
        range_is(t->store, "", NULL, 10, "a a/1 a/10 a/2 a0 b/1 schema ");
        range_is(t->store, "a/", NULL, 0, "");
}

static void transactions(void **state)
{
        struct temporary *t = *state;
        struct store_txn *txn = store_txn_new();
        struct store_value v = {};
        struct error err;

        put(t->store, "x", "1");
        assert_int_equal(store_get(t->store, "x", &v, &err), 0);
        store_txn_expect(txn, "x", v.revision);
        store_txn_expect(txn, "y", 0);
        store_txn_put(txn, "y", "2", 1);
        store_txn_delete(txn, "x");
        assert_int_equal(store_commit(t->store, txn, &err), 0);
        range_is(t->store, "", NULL, 10, "schema y ");
        /* Again: both conditions fail, nothing happens. */
        assert_int_equal(store_commit(t->store, txn, &err), -EBUSY);
        assert_int_equal(err.kind, ERROR_CONFLICT);
        store_txn_free(txn);
        store_value_free(&v);
        txn = store_txn_new();
        store_txn_put(txn, "z", "3", 1);
        store_txn_expect(txn, "y", 0);
        assert_int_equal(store_commit(t->store, txn, &err), -EBUSY);
        range_is(t->store, "", NULL, 10, "schema y ");
        store_txn_free(txn);
}

/* A key that was deleted and made again has not its old revision. */
static void revisions_never_return(void **state)
{
        struct temporary *t = *state;
        struct store_value a = {}, b = {};
        struct error err;

        put(t->store, "k", "1");
        assert_int_equal(store_get(t->store, "k", &a, &err), 0);
        assert_int_equal(store_delete(t->store, "k", &err), 0);
        temporary_reopen(t);
        put(t->store, "k", "1");
        assert_int_equal(store_get(t->store, "k", &b, &err), 0);
        assert_true(b.revision > a.revision);
        store_value_free(&a);
        store_value_free(&b);
}

static void limits(void **state)
{
        struct temporary *t = *state;
        struct store_txn *txn = store_txn_new();
        char *big = xcalloc(1, STORE_VALUE_MAX + 1), key[16];
        struct error err;

        assert_int_equal(store_put(t->store, "k", big, STORE_VALUE_MAX, &err), 0);
        assert_int_equal(store_put(t->store, "k", big, STORE_VALUE_MAX + 1, &err), -EDQUOT);
        free(big);
        for (int i = 0; i < STORE_TXN_MAX; i++) {
                snprintf(key, sizeof(key), "k%d", i);
                store_txn_put(txn, key, "v", 1);
        }
        assert_int_equal(store_commit(t->store, txn, &err), 0);
        store_txn_put(txn, "more", "v", 1);
        assert_int_equal(store_commit(t->store, txn, &err), -EDQUOT);
        assert_int_equal(err.kind, ERROR_LIMIT);
        store_txn_free(txn);
}

static void full_is_unavailable(void **state)
{
        struct temporary *t = *state;
        char *url = xasprintf("sqlite:%s/small.db?max-mb=1", t->dir), key[16];
        char *big = xcalloc(1, 100000);
        struct store *s;
        struct error err = {};
        int r = 0, i;

        assert_int_equal(store_open(url, &s, &err), 0);
        for (i = 0; r == 0 && i < 100; i++) {
                snprintf(key, sizeof(key), "k%02d", i);
                r = store_put(s, key, big, 100000, &err);
        }
        assert_int_equal(r, -EAGAIN);
        assert_int_equal(err.kind, ERROR_UNAVAILABLE);
        assert_non_null(strstr(err.message, "full"));
        /* Deleting makes room, and the store goes on. */
        assert_int_equal(store_delete(s, "k00", &err), 0);
        assert_int_equal(store_delete(s, "k01", &err), 0);
        assert_int_equal(store_put(s, "again", big, 100000, &err), 0);
        store_close(s);
        free(big);
        free(url);
}

static void bad_urls(void **state)
{
        struct temporary *t = *state;
        char *text = xasprintf("%s/text", t->dir), *url = xasprintf("sqlite:%s", text), *quota = xasprintf("%s?max-mb=x", t->url);
        struct store *s;
        struct error err;

        assert_int_equal(store_open("redis:x", &s, &err), -EINVAL);
        assert_int_equal(store_open("sqlite:/nonexistent/x/y.db", &s, &err), -ENOENT);
        assert_int_equal(store_open(quota, &s, &err), -EINVAL);
        assert_int_equal(file_write_atomic(text, "this is no database, but quite a text", 37, 0600, &err), 0);
        assert_true(store_open(url, &s, &err) < 0);
        free(text);
        free(url);
        free(quota);
}

struct other {
        struct temporary *t;
        const char *text;
};

static void *put_other(void *data)
{
        const struct other *o = data;
        struct error err;
        assert_int_equal(store_put(o->t->store, "k", o->text, strlen(o->text), &err), 0);
        return NULL;
}

static void another_thread_puts(struct temporary *t, const char *text)
{
        struct other o = { t, text };
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, put_other, &o), 0);
        pthread_join(thread, NULL);
}

static void reads(struct temporary *t, const char *text)
{
        struct store_value v, *list;
        struct error err;
        size_t count;
        assert_int_equal(store_get(t->store, "k", &v, &err), 0);
        assert_string_equal(v.data, text);
        store_value_free(&v);
        assert_int_equal(store_range(t->store, "k", NULL, 10, &list, &count, &err), 0);
        assert_int_equal(count, 1);
        assert_string_equal(list[0].data, text);
        store_values_free(list, count);
}

static void snapshots_are_of_one_moment(void **state)
{
        struct temporary *t = *state;
        struct error err;
        another_thread_puts(t, "one");
        store_snapshot_begin(t->store);
        reads(t, "one");
        another_thread_puts(t, "two");
        reads(t, "one");
        store_snapshot_end(t->store);
        reads(t, "two");
        store_snapshot_begin(t->store);
        reads(t, "two");
        another_thread_puts(t, "three");
        assert_int_equal(store_put(t->store, "k", "mine", 4, &err), 0); /* ends it */
        reads(t, "mine");
        another_thread_puts(t, "four");
        reads(t, "four");
        store_snapshot_end(t->store);
        store_snapshot_end(t->store);
        for (int i = 0; i < 100; i++) { /* none keeps a connection */
                store_snapshot_begin(t->store);
                reads(t, "four");
                store_snapshot_end(t->store);
        }
}

static void set_tables_version(const char *path, const char *pragma)
{
        sqlite3 *db;

        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, pragma, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
}

static void tables_of_other_versions(void **state)
{
        struct temporary *t = *state;
        char *path = xasprintf("%s/other.db", t->dir), *url = xasprintf("sqlite:%s", path);
        struct store_value v = {};
        struct store *s = NULL;
        struct error err;

        assert_int_equal(store_open(url, &s, &err), 0);
        put(s, "k", "kept");
        store_close(s);
        s = NULL;
        set_tables_version(path, "PRAGMA user_version = 3");
        assert_int_equal(store_open(url, &s, &err), -EBUSY);
        assert_null(s);
        assert_non_null(strstr(err.message, "version 3"));
        assert_null(strchr(err.message, '\n'));
        set_tables_version(path, "PRAGMA user_version = 0"); /* from before versions */
        assert_int_equal(store_open(url, &s, &err), 0);
        assert_int_equal(store_get(s, "k", &v, &err), 0);
        assert_string_equal(v.data, "kept");
        store_value_free(&v);
        store_close(s);
        free(path);
        free(url);
}

static void is_private(void **state)
{
        struct temporary *t = *state;
        char *path = path_join(t->dir, "vmon.db");
        struct stat st;

        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        free(path);
}

#define THREADS 4
#define INCREMENTS 25

static void *increment(void *data)
{
        struct store *s = data;

        for (int done = 0; done < INCREMENTS;) {
                struct store_txn *txn = store_txn_new();
                struct store_value v = {};
                struct error err;
                char text[16];
                int r;

                store_get(s, "n", &v, &err);
                snprintf(text, sizeof(text), "%d", atoi(v.data) + 1);
                store_txn_expect(txn, "n", v.revision);
                store_txn_put(txn, "n", text, strlen(text));
                r = store_commit(s, txn, &err);
                done += r == 0;
                store_txn_free(txn);
                store_value_free(&v);
                if (r < 0 && err.kind != ERROR_CONFLICT)
                        return (void *)1;
        }
        return NULL;
}

static void threads_lose_nothing(void **state)
{
        struct temporary *t = *state;
        pthread_t threads[THREADS];
        struct store_value v = {};
        struct error err;
        void *failed;

        put(t->store, "n", "0");
        for (int i = 0; i < THREADS; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, increment, t->store), 0);
        for (int i = 0; i < THREADS; i++) {
                pthread_join(threads[i], &failed);
                assert_null(failed);
        }
        assert_int_equal(store_get(t->store, "n", &v, &err), 0);
        assert_int_equal(atoi(v.data), THREADS * INCREMENTS);
        store_value_free(&v);
}

/* A child commits and says so by a byte, until it is killed; what it said must be there, and nothing half. */
static void write_until_killed(const char *url, int fd)
{
        struct store *s;
        struct error err;

        if (store_open(url, &s, &err) < 0)
                _exit(1);
        for (int i = 0;; i++) {
                struct store_txn *txn = store_txn_new();
                char a[16], b[16];

                snprintf(a, sizeof(a), "a/%06d", i);
                snprintf(b, sizeof(b), "b/%06d", i);
                store_txn_put(txn, a, "1", 1);
                store_txn_put(txn, b, "1", 1);
                if (store_commit(s, txn, &err) < 0 || write(fd, "x", 1) != 1)
                        _exit(1);
                store_txn_free(txn);
        }
}

static void survives_kill(void **state)
{
        struct temporary *t = *state;
        struct store_value *a, *b;
        size_t acknowledged = 0, na, nb;
        struct error err;
        char buffer[64];
        int fds[2];
        pid_t pid;

        records_close(t->records);
        store_close(t->store);
        t->store = NULL;
        t->records = NULL;
        assert_int_equal(pipe(fds), 0);
        pid = fork();
        if (pid == 0)
                write_until_killed(t->url, fds[1]);
        close(fds[1]);
        while (acknowledged < 20) {
                ssize_t n = read(fds[0], buffer, sizeof(buffer));

                assert_true(n > 0);
                acknowledged += (size_t)n;
        }
        kill(pid, SIGKILL);
        for (ssize_t n; (n = read(fds[0], buffer, sizeof(buffer))) > 0;)
                acknowledged += (size_t)n;
        waitpid(pid, NULL, 0);
        close(fds[0]);
        temporary_reopen(t);
        assert_int_equal(store_range(t->store, "a/", NULL, 1000000, &a, &na, &err), 0);
        assert_int_equal(store_range(t->store, "b/", NULL, 1000000, &b, &nb, &err), 0);
        assert_true(na >= acknowledged);
        assert_int_equal(na, nb);
        store_values_free(a, na);
        store_values_free(b, nb);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(gets_what_was_put), TEST(keeps_binary_and_empty), TEST(ranges), TEST(transactions), TEST(revisions_never_return),
                TEST(limits), TEST(full_is_unavailable), TEST(bad_urls), TEST(tables_of_other_versions), TEST(snapshots_are_of_one_moment), TEST(is_private), TEST(threads_lose_nothing), TEST(survives_kill),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
