/* Watches and leases: what every store implementation has to do. Waits are for events; what must not happen is asked for after the event that
 * would have come behind it. */
#include "temporary.h"

#include <pthread.h>
#include <sqlite3.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

#define HANG_MS 30000 /* guard only */

static void put(struct temporary *t, const char *key, const char *text)
{
        struct error err;
        assert_int_equal(store_put(t->store, key, text, strlen(text), &err), 0);
}

static struct store_watch *watch(struct temporary *t, const char *prefix)
{
        struct store_watch *w;
        struct error err;
        assert_int_equal(store_watch_new(t->store, prefix, &w, &err), 0);
        return w;
}

/* The next event is this one; `text` NULL: a deletion. Returns its revision. */
static int64_t expect(struct store_watch *w, const char *key, const char *text)
{
        struct store_event e;
        assert_int_equal(store_watch_next(w, HANG_MS, &e), 1);
        assert_int_equal(e.kind, text ? STORE_EVENT_PUT : STORE_EVENT_DELETE);
        assert_string_equal(e.value.key, key);
        if (text)
                assert_string_equal(e.value.data, text);
        int64_t revision = e.value.revision;
        store_value_free(&e.value);
        return revision;
}

static void nothing_more(struct store_watch *w)
{
        struct store_event e;
        assert_int_equal(store_watch_next(w, 0, &e), 0);
}

static bool has(struct temporary *t, const char *key)
{
        struct store_value v;
        struct error err;
        int r = store_get(t->store, key, &v, &err);
        if (r == 0)
                store_value_free(&v);
        return r == 0;
}

static void sees_what_is_committed_after_it(void **state)
{
        struct temporary *t = *state;
        struct error err;
        put(t, "a/before", "0");
        struct store_watch *all = watch(t, ""), *some = watch(t, "a/"), *again;
        put(t, "a/1", "one");
        put(t, "b/1", "other");
        assert_int_equal(store_delete(t->store, "a/1", &err), 0);
        struct store_txn *txn = store_txn_new();
        store_txn_put(txn, "a/2", "two", 3);
        store_txn_put(txn, "b/2", "x", 1);
        store_txn_delete(txn, "a/before");
        assert_int_equal(store_commit(t->store, txn, &err), 0);
        store_txn_free(txn);
        txn = store_txn_new(); /* refused: no event */
        store_txn_expect(txn, "a/2", 1);
        store_txn_put(txn, "a/3", "three", 5);
        assert_int_equal(store_commit(t->store, txn, &err), -EBUSY);
        store_txn_free(txn);

        int64_t first = expect(some, "a/1", "one"), second = expect(some, "a/1", NULL), third = expect(some, "a/2", "two");
        assert_true(first < second && second < third);
        assert_int_equal(expect(some, "a/before", NULL), third); /* of the same transaction */
        nothing_more(some);
        expect(all, "a/1", "one");
        expect(all, "b/1", "other");
        store_watch_free(all); /* with events that nobody has read */
        again = watch(t, "a/");
        nothing_more(again);
        struct store_value v;
        assert_int_equal(store_get(t->store, "a/2", &v, &err), 0);
        assert_int_equal(v.revision, third);
        store_value_free(&v);
        store_watch_free(some);
        store_watch_free(again);
        store_watch_free(NULL);
}

static void says_that_it_lost_some(void **state)
{
        struct temporary *t = *state;
        struct store_watch *w = watch(t, "many/");
        struct store_event e;
        char *large = xmalloc(STORE_VALUE_MAX + 1);
        memset(large, 'x', STORE_VALUE_MAX);
        large[STORE_VALUE_MAX] = '\0';
        for (int i = 0; i < 40; i++) /* 20 MiB, read by nobody */
                put(t, "many/large", large);
        assert_int_equal(store_watch_next(w, HANG_MS, &e), 1);
        assert_int_equal(e.kind, STORE_EVENT_LOST);
        nothing_more(w);
        put(t, "many/small", "after");
        expect(w, "many/small", "after");
        store_watch_free(w);
        free(large);
}

struct writer {
        struct temporary *t;
        int number;
};

static void *write_many(void *data)
{
        struct writer *w = data;
        for (int i = 0; i < 100; i++) {
                CLEANUP_FREE char *key = xasprintf("w/%d/%d", w->number, i);
                put(w->t, key, "x");
        }
        return NULL;
}

/* Each commit once, in the order of the revisions, whoever writes. */
static void keeps_the_order_of_commits(void **state)
{
        struct temporary *t = *state;
        struct store_watch *w = watch(t, "w/");
        struct writer writers[4];
        pthread_t threads[4];
        int seen[4] = {};
        int64_t last = 0;
        for (int i = 0; i < 4; i++) {
                writers[i] = (struct writer){ t, i };
                assert_int_equal(pthread_create(&threads[i], NULL, write_many, &writers[i]), 0);
        }
        for (int i = 0; i < 400; i++) {
                struct store_event e;
                int number, n;
                assert_int_equal(store_watch_next(w, HANG_MS, &e), 1);
                assert_int_equal(e.kind, STORE_EVENT_PUT);
                assert_int_equal(sscanf(e.value.key, "w/%d/%d", &number, &n), 2);
                assert_int_equal(n, seen[number]++);
                assert_true(e.value.revision > last);
                last = e.value.revision;
                store_value_free(&e.value);
        }
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        nothing_more(w);
        store_watch_free(w);
}

static int64_t lease(struct temporary *t, int ttl_ms)
{
        int64_t id;
        struct error err;
        assert_int_equal(store_lease_new(t->store, ttl_ms, &id, &err), 0);
        assert_true(id > 0);
        return id;
}

static int put_leased(struct temporary *t, const char *key, int64_t id, const char *beside)
{
        struct store_txn *txn = store_txn_new();
        struct error err;
        store_txn_put_leased(txn, key, "leased", 6, id);
        if (beside)
                store_txn_put(txn, beside, "x", 1);
        int r = store_commit(t->store, txn, &err);
        store_txn_free(txn);
        return r;
}

static void a_lease_ends(void **state)
{
        struct temporary *t = *state;
        struct store_watch *w = watch(t, "n/");
        struct error err;
        int64_t none, id = lease(t, 60000), other = lease(t, 60000);
        assert_int_equal(store_lease_new(t->store, 0, &none, &err), -EINVAL);
        assert_int_equal(store_lease_new(t->store, STORE_TTL_MAX_MS + 1, &none, &err), -EINVAL);
        assert_true(other != id);
        for (int i = 0; i < 250; i++) { /* more than a transaction holds */
                CLEANUP_FREE char *key = xasprintf("n/%03d", i);
                assert_int_equal(put_leased(t, key, id, NULL), 0);
                expect(w, key, "leased");
        }
        assert_int_equal(put_leased(t, "n/other", other, "n/beside"), 0);
        expect(w, "n/other", "leased");
        expect(w, "n/beside", "x");
        put(t, "n/000", "kept"); /* without the lease */
        expect(w, "n/000", "kept");
        assert_int_equal(store_lease_end(t->store, id, &err), 0);
        for (int i = 1; i < 250; i++) {
                CLEANUP_FREE char *key = xasprintf("n/%03d", i);
                assert_false(has(t, key));
                expect(w, key, NULL);
        }
        nothing_more(w);
        assert_true(has(t, "n/000") && has(t, "n/other"));
        assert_int_equal(store_lease_end(t->store, id, &err), -ENOENT);
        assert_int_equal(store_lease_renew(t->store, id, &err), -ENOENT);
        assert_int_equal(put_leased(t, "n/late", id, "n/late-beside"), -ENOENT);
        assert_false(has(t, "n/late") || has(t, "n/late-beside"));
        nothing_more(w);
        store_watch_free(w);
}

/* By itself, and only when it was not renewed. */
static void a_lease_runs_out(void **state)
{
        struct temporary *t = *state;
        struct store_watch *w = watch(t, "n/");
        struct error err;
        int64_t began = clock_monotonic_ns(), shorter = lease(t, 300), renewed = lease(t, 20000);
        assert_int_equal(put_leased(t, "n/renewed", renewed, NULL), 0);
        assert_int_equal(put_leased(t, "n/short", shorter, NULL), 0);
        expect(w, "n/renewed", "leased");
        expect(w, "n/short", "leased");
        expect(w, "n/short", NULL);
        assert_true(clock_monotonic_ns() - began >= 300 * NSEC_PER_MSEC);
        assert_int_equal(store_lease_renew(t->store, shorter, &err), -ENOENT);
        assert_int_equal(store_lease_renew(t->store, renewed, &err), 0);
        assert_true(has(t, "n/renewed"));
        /* A key that moves from one lease to another lives as long as that. */
        int64_t first = lease(t, 60000), last = lease(t, 60000);
        assert_int_equal(put_leased(t, "n/moved", first, NULL), 0);
        assert_int_equal(put_leased(t, "n/moved", last, NULL), 0);
        assert_int_equal(store_lease_end(t->store, first, &err), 0);
        assert_true(has(t, "n/moved"));
        assert_int_equal(store_lease_end(t->store, last, &err), 0);
        assert_false(has(t, "n/moved"));
        store_watch_free(w);
}

static void leases_outlive_the_process(void **state)
{
        struct temporary *t = *state;
        struct error err;
        int64_t longer = lease(t, 60000), shorter = lease(t, 500);
        assert_int_equal(put_leased(t, "n/long", longer, NULL), 0);
        assert_int_equal(put_leased(t, "n/short", shorter, NULL), 0);
        temporary_reopen(t);
        struct store_watch *w = watch(t, "n/");
        assert_true(has(t, "n/short")); /* its whole time again */
        expect(w, "n/short", NULL);
        assert_int_equal(store_lease_renew(t->store, longer, &err), 0);
        assert_true(lease(t, 1000) > shorter); /* no number twice */
        store_watch_free(w);

        /* What is left when a process is killed between the end of a lease and that of its keys. */
        sqlite3 *db;
        assert_int_equal(sqlite3_open(t->url + strlen("sqlite:"), &db), SQLITE_OK);
        CLEANUP_FREE char *sql = xasprintf("DELETE FROM lease WHERE id = %lld", (long long)longer);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        temporary_reopen(t);
        assert_int_equal(store_lease_renew(t->store, longer, &err), -ENOENT);
        for (int64_t limit = clock_monotonic_ns() + HANG_MS * NSEC_PER_MSEC; has(t, "n/long");)
                assert_true(clock_monotonic_ns() < limit);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(sees_what_is_committed_after_it), TEST(says_that_it_lost_some), TEST(keeps_the_order_of_commits), TEST(a_lease_ends),
                TEST(a_lease_runs_out), TEST(leases_outlive_the_process),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
