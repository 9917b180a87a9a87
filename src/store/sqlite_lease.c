/* Leases of the SQLite store. That a lease exists, its time and its keys are in the tables `lease` and `leased`; when it ends is in memory, by
 * the monotonic clock: a clock that is set ends none, a renewal writes nothing, and after a restart each has its whole time again. A thread
 * ends them.
 *
 * Locks: leases.lock guards the list and is never held with the writer's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/sqlite_internal.h"

#define RETRY_MS 1000 /* after the disk was full */

struct lease {
        int64_t id, ends_ns;
        int ttl_ms;
        bool ending; /* could not be ended, and is tried again */
};

struct leases {
        struct sqlite_store *store;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        struct lease *list;
        size_t count, capacity;
        bool stopping;
        pthread_t thread;
};

static void add(struct leases *l, int64_t id, int ttl_ms, int64_t ends_ns, bool ending)
{
        pthread_mutex_lock(&l->lock);
        if (l->count == l->capacity) {
                l->capacity = l->capacity ? l->capacity * 2 : 16;
                l->list = xreallocarray(l->list, l->capacity, sizeof(*l->list));
        }
        l->list[l->count++] = (struct lease){ .id = id, .ttl_ms = ttl_ms, .ends_ns = ends_ns, .ending = ending };
        pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->lock);
}

/* With the lock; NULL when it has ended. */
static struct lease *find(struct leases *l, int64_t id)
{
        for (size_t i = 0; i < l->count; i++)
                if (l->list[i].id == id && !l->list[i].ending)
                        return &l->list[i];
        return NULL;
}

static int has_ended(int64_t id, struct error *err)
{
        return error_set(err, ERROR_NOT_FOUND, "store: lease %lld has ended", (long long)id);
}

static int exec(struct sqlite_store *s, const char *sql, int64_t parameter, int64_t *ret, struct error *err)
{
        sqlite3_stmt *p = NULL;
        int rc = sqlite3_prepare_v2(s->writer.db, sql, -1, &p, NULL), r = 0;

        if (rc == SQLITE_OK) {
                sqlite3_bind_int64(p, 1, parameter);
                while ((rc = sqlite3_step(p)) == SQLITE_ROW)
                        if (ret)
                                *ret = sqlite3_column_int64(p, 0);
        }
        if (rc != SQLITE_DONE)
                r = sqlite_error(s->writer.db, rc, err, "lease");
        sqlite3_finalize(p);
        return r;
}

/* Up to a transaction's worth of the keys, deleted like any others, so that watches see it. Returns how many. */
static int drop_some(struct sqlite_store *s, int64_t id, struct error *err)
{
        struct store_txn *t = store_txn_new();
        sqlite3_stmt *p = NULL;
        int rc = sqlite3_prepare_v2(s->writer.db, "SELECT key FROM leased WHERE lease = ?1 LIMIT ?2", -1, &p, NULL), r, count;

        if (rc == SQLITE_OK) {
                sqlite3_bind_int64(p, 1, id);
                sqlite3_bind_int(p, 2, STORE_TXN_MAX);
                while ((rc = sqlite3_step(p)) == SQLITE_ROW)
                        store_txn_delete(t, (const char *)sqlite3_column_text(p, 0));
        }
        r = rc == SQLITE_DONE ? 0 : sqlite_error(s->writer.db, rc, err, "read a lease");
        sqlite3_finalize(p);
        count = (int)t->write_count;
        if (r == 0 && count > 0)
                r = sqlite_commit_locked(s, t, err);
        store_txn_free(t);
        return r < 0 ? r : count;
}

/* The lease first: nothing can be put with it any more. */
static int drop(struct sqlite_store *s, int64_t id, struct error *err)
{
        int r;

        pthread_mutex_lock(&s->writer.lock);
        r = exec(s, "DELETE FROM lease WHERE id = ?1", id, NULL, err);
        while (r == 0 && (r = drop_some(s, id, err)) > 0)
                r = 0;
        pthread_mutex_unlock(&s->writer.lock);
        return r;
}

/* With the lock: takes one that has ended out of the list, 0 when there is none; then *ret_next is when to look again. */
static int64_t take_ended(struct leases *l, int64_t now, int64_t *ret_next)
{
        *ret_next = INT64_MAX;
        for (size_t i = 0; i < l->count; i++) {
                int64_t id = l->list[i].id;

                if (l->list[i].ends_ns > now) {
                        *ret_next = l->list[i].ends_ns < *ret_next ? l->list[i].ends_ns : *ret_next;
                        continue;
                }
                l->list[i] = l->list[--l->count];
                return id;
        }
        return 0;
}

static void *end_in_time(void *data)
{
        struct leases *l = data;
        struct error err = {};

        pthread_mutex_lock(&l->lock);
        while (!l->stopping) {
                int64_t next, id = take_ended(l, clock_monotonic_ns(), &next);
                struct timespec at = { .tv_sec = next / NSEC_PER_SEC, .tv_nsec = next % NSEC_PER_SEC };

                if (id == 0 && next == INT64_MAX) {
                        pthread_cond_wait(&l->changed, &l->lock);
                } else if (id == 0) {
                        pthread_cond_timedwait(&l->changed, &l->lock, &at);
                } else {
                        pthread_mutex_unlock(&l->lock);
                        if (drop(l->store, id, &err) < 0) {
                                log_warn("store: end a lease: %s; trying again", err.message);
                                add(l, id, RETRY_MS, clock_monotonic_ns() + RETRY_MS * NSEC_PER_MSEC, true);
                        }
                        pthread_mutex_lock(&l->lock);
                }
        }
        pthread_mutex_unlock(&l->lock);
        return NULL;
}

/* Also those that a process which was killed was ending: their keys have no lease any more, and go now. */
static int load(struct leases *l, struct error *err)
{
        struct sqlite_store *s = l->store;
        sqlite3_stmt *p = NULL;
        int rc = sqlite3_prepare_v2(s->writer.db, "SELECT id, ttl_ms FROM lease UNION SELECT DISTINCT lease, 0 FROM leased WHERE lease NOT IN (SELECT id FROM lease)",
                                    -1, &p, NULL);
        int64_t now = clock_monotonic_ns();

        while (rc == SQLITE_OK || rc == SQLITE_ROW) {
                rc = sqlite3_step(p);
                if (rc == SQLITE_ROW)
                        add(l, sqlite3_column_int64(p, 0), sqlite3_column_int(p, 1), now + sqlite3_column_int(p, 1) * NSEC_PER_MSEC, sqlite3_column_int(p, 1) == 0);
        }
        sqlite3_finalize(p);
        return rc == SQLITE_DONE ? 0 : sqlite_error(s->writer.db, rc, err, "read the leases");
}

int leases_open(struct sqlite_store *s, struct error *err)
{
        struct leases *l = xcalloc(1, sizeof(*l));
        int r;

        l->store = s;
        pthread_mutex_init(&l->lock, NULL);
        clock_cond_init(&l->changed);
        r = load(l, err);
        s->any_leased = l->count > 0;
        if (r == 0) {
                r = pthread_create(&l->thread, NULL, end_in_time, l);
                if (r != 0)
                        r = error_errno(err, r, "start the thread that ends leases");
        }
        if (r < 0) {
                free(l->list);
                free(l);
                return r;
        }
        s->leases = l;
        return 0;
}

void leases_close(struct leases *l)
{
        if (!l)
                return;
        pthread_mutex_lock(&l->lock);
        l->stopping = true;
        pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
        pthread_cond_destroy(&l->changed);
        pthread_mutex_destroy(&l->lock);
        free(l->list);
        free(l);
}

int sqlite_lease_new(void *impl, int ttl_ms, int64_t *ret, struct error *err)
{
        struct sqlite_store *s = impl;
        int r;

        pthread_mutex_lock(&s->writer.lock);
        r = exec(s, "INSERT INTO lease (ttl_ms) VALUES (?1) RETURNING id", ttl_ms, ret, err);
        pthread_mutex_unlock(&s->writer.lock);
        if (r == 0)
                add(s->leases, *ret, ttl_ms, clock_monotonic_ns() + ttl_ms * NSEC_PER_MSEC, false);
        return r;
}

int sqlite_lease_renew(void *impl, int64_t lease, struct error *err)
{
        struct leases *l = ((struct sqlite_store *)impl)->leases;
        struct lease *found;

        pthread_mutex_lock(&l->lock);
        found = find(l, lease);
        if (found)
                found->ends_ns = clock_monotonic_ns() + found->ttl_ms * NSEC_PER_MSEC;
        pthread_mutex_unlock(&l->lock);
        return found ? 0 : has_ended(lease, err);
}

int sqlite_lease_end(void *impl, int64_t lease, struct error *err)
{
        struct sqlite_store *s = impl;
        struct leases *l = s->leases;
        struct lease *found;
        int r;

        pthread_mutex_lock(&l->lock);
        found = find(l, lease);
        if (found)
                *found = l->list[--l->count];
        pthread_mutex_unlock(&l->lock);
        if (!found)
                return has_ended(lease, err);
        r = drop(s, lease, err);
        if (r < 0)
                add(l, lease, RETRY_MS, clock_monotonic_ns() + RETRY_MS * NSEC_PER_MSEC, true);
        return r;
}
