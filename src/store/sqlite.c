/* The store on one machine: SQLite in WAL mode, synchronous=FULL, so that a commit that returned is on the disk.
 *
 * A few connections, each behind its own mutex: the writer, whose commits wait for the disk, and READERS, which WAL lets
 * go on meanwhile (one reader made the API's workers queue up behind each other). A reader that starts after a commit returned sees it. Revisions come from a counter that grows with each
 * transaction and never goes back, also when keys are deleted.
 *
 * Only one `vmon serve` uses a file at a time, but nothing breaks when a second opens it: transactions begin IMMEDIATE
 * and wait for each other for BUSY_TIMEOUT_MS.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/sqlite_internal.h"

#define BUSY_TIMEOUT_MS 10000
#define WAL_KEEP_BYTES (64 << 20)
#define TABLES_VERSION 2 /* PRAGMA user_version; 0 and 1 had no leases, 0 no version */

static const char *const statement_sql[STATEMENTS] = {
        [GET] = "SELECT key, value, revision FROM kv WHERE key = ?1",
        [RANGE_FROM] = "SELECT key, value, revision FROM kv WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
        [RANGE_AFTER] = "SELECT key, value, revision FROM kv WHERE key > ?1 AND key < ?2 ORDER BY key LIMIT ?3",
        [REVISION] = "SELECT revision FROM kv WHERE key = ?1",
        [PUT] = ("INSERT INTO kv (key, value, revision) VALUES (?1, ?2, ?3) "
                 "ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision"),
        [DELETE] = "DELETE FROM kv WHERE key = ?1",
        [LEASE] = "SELECT 1 FROM lease WHERE id = ?1",
        [LEASE_KEY] = "INSERT INTO leased (key, lease) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET lease = excluded.lease",
        [UNLEASE_KEY] = "DELETE FROM leased WHERE key = ?1",
        [NEXT] = "UPDATE counter SET n = n + 1 RETURNING n",
        [SNAPSHOT] = "BEGIN",
        [BEGIN] = "BEGIN IMMEDIATE",
        [COMMIT] = "COMMIT",
        [ROLLBACK] = "ROLLBACK",
};

/* A full disk, a quota and a locked file may pass; the rest is ours or the disk's fault. */
int sqlite_error(sqlite3 *db, int rc, struct error *err, const char *what)
{
        int saved = db ? sqlite3_system_errno(db) : 0;

        if (rc == SQLITE_FULL || ((rc & 0xff) == SQLITE_IOERR && (saved == ENOSPC || saved == EDQUOT)))
                return error_set(err, ERROR_UNAVAILABLE, "store: %s: the disk or the store's quota is full; free some space", what);
        if ((rc & 0xff) == SQLITE_BUSY)
                return error_set(err, ERROR_UNAVAILABLE, "store: %s: the database is locked by another process", what);
        return error_set(err, ERROR_INTERNAL, "store: %s: %s", what, db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
}

sqlite3_stmt *statement_begin(struct connection *c, enum statement s)
{
        sqlite3_stmt *p = c->statements[s];

        sqlite3_reset(p);
        sqlite3_clear_bindings(p);
        return p;
}

static void bind_text(sqlite3_stmt *p, int index, const char *s)
{
        sqlite3_bind_text(p, index, s, -1, SQLITE_STATIC);
}

int statement_run(struct connection *c, sqlite3_stmt *p, const char *what, struct error *err)
{
        int rc;

        do
                rc = sqlite3_step(p);
        while (rc == SQLITE_ROW);
        sqlite3_reset(p);
        return rc == SQLITE_DONE ? 0 : sqlite_error(c->db, rc, err, what);
}

static void connection_close(struct connection *c)
{
        for (int i = 0; i < STATEMENTS; i++)
                sqlite3_finalize(c->statements[i]);
        sqlite3_close(c->db);
        pthread_mutex_destroy(&c->lock);
}

static int connection_exec(struct connection *c, const char *sql, struct error *err)
{
        int rc = sqlite3_exec(c->db, sql, NULL, NULL, NULL);

        return rc == SQLITE_OK ? 0 : sqlite_error(c->db, rc, err, "prepare the database");
}

static int connection_open(struct connection *c, const char *path, const char *setup, struct error *err)
{
        int rc, r;

        pthread_mutex_init(&c->lock, NULL);
        rc = sqlite3_open_v2(path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
        if (rc != SQLITE_OK)
                return sqlite_error(c->db, rc, err, "open");
        sqlite3_busy_timeout(c->db, BUSY_TIMEOUT_MS);
        r = connection_exec(c, setup, err);
        if (r < 0)
                return r;
        for (int i = 0; i < STATEMENTS; i++) {
                rc = sqlite3_prepare_v3(c->db, statement_sql[i], -1, SQLITE_PREPARE_PERSISTENT, &c->statements[i], NULL);
                if (rc != SQLITE_OK)
                        return sqlite_error(c->db, rc, err, "prepare");
        }
        return 0;
}

static void sqlite_close(void *impl)
{
        struct sqlite_store *s = impl;

        if (!s)
                return;
        leases_close(s->leases);
        watch_hub_free(s->hub);
        /* The writer last: the last connection to close folds the WAL into the file. */
        for (int i = 0; i < READERS; i++)
                connection_close(&s->readers[i]);
        connection_close(&s->writer);
        free(s->file);
        free(s);
}

static int split_quota(const char *path, char **ret_file, uint64_t *ret_mb, struct error *err)
{
        const char *query = strstr(path, "?max-mb=");

        *ret_mb = 0;
        if (query && !str_to_u64(query + strlen("?max-mb="), 1 << 24, ret_mb))
                return error_set(err, ERROR_INVALID, "max-mb must be a number of mebibytes");
        *ret_file = query ? xstrndup(path, (size_t)(query - path)) : xstrdup(path);
        return 0;
}

/* Keys' hashes and names are in there: the file is for its owner only; SQLite gives the WAL the same mode. */
static int create_private(const char *path, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

        return fd < 0 ? error_errno(err, errno, "open %s", path) : 0;
}

static void cleanup_db(sqlite3 **db)
{
        sqlite3_close(*db);
}

/* One statement with an optional text parameter on a connection of its own; `*ret` gets the first column of the first row. */
static int run_alone(const char *file, const char *sql, const char *parameter, char **ret, struct error *err)
{
        CLEANUP(cleanup_db) sqlite3 *db = NULL;
        sqlite3_stmt *p = NULL;
        int r = 0, rc = sqlite3_open_v2(file, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);

        if (rc == SQLITE_OK)
                rc = sqlite3_busy_timeout(db, BUSY_TIMEOUT_MS);
        if (rc == SQLITE_OK)
                rc = sqlite3_prepare_v2(db, sql, -1, &p, NULL);
        if (rc == SQLITE_OK) {
                if (parameter)
                        bind_text(p, 1, parameter);
                rc = sqlite3_step(p);
                if (rc == SQLITE_ROW && ret)
                        *ret = xstrdup_or_null((const char *)sqlite3_column_text(p, 0));
        }
        if (rc != SQLITE_ROW && rc != SQLITE_DONE)
                r = sqlite_error(db, rc, err, "read");
        sqlite3_finalize(p);
        return r;
}

/* A newer vmon's database must stay as it is. */
static int check_version(const char *file, struct error *err)
{
        CLEANUP_FREE char *text = NULL;
        int r = run_alone(file, "PRAGMA user_version", NULL, &text, err);
        long version = text ? strtol(text, NULL, 10) : 0;

        if (r == 0 && version > TABLES_VERSION)
                r = error_set(err, ERROR_CONFLICT,
                              "its tables have version %ld and this vmon knows versions up to %d: start the newer vmon again, or restore a "
                              "backup that was made before the upgrade",
                              version, TABLES_VERSION);
        return r;
}

/* SQLite counts its memory under one lock for all connections; nobody asks for the figures. */
static void configure(void)
{
        sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

int sqlite_open(const char *path, void **ret, struct error *err)
{
        static pthread_once_t configured = PTHREAD_ONCE_INIT;
        CLEANUP_FREE char *file = NULL, *setup = NULL;
        struct sqlite_store *s;
        uint64_t quota_mb;
        int r;

        pthread_once(&configured, configure);
        r = split_quota(path, &file, &quota_mb, err);
        if (r < 0 || (r = create_private(file, err)) < 0 || (r = check_version(file, err)) < 0)
                return r;
        setup = xasprintf("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA journal_size_limit = %d;"
                          "PRAGMA max_page_count = %llu;"
                          "CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL);"
                          "CREATE TABLE IF NOT EXISTS counter (n INTEGER NOT NULL);"
                          "CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL);"
                          "CREATE TABLE IF NOT EXISTS leased (key TEXT PRIMARY KEY NOT NULL, lease INTEGER NOT NULL) WITHOUT ROWID;"
                          "CREATE INDEX IF NOT EXISTS leased_by ON leased (lease);"
                          "INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);"
                          "PRAGMA user_version = %d;",
                          WAL_KEEP_BYTES, quota_mb ? (unsigned long long)quota_mb << 8 : 1073741823ULL, TABLES_VERSION);
        s = xcalloc(1, sizeof(*s));
        s->file = xstrdup(file);
        r = connection_open(&s->writer, file, setup, err);
        for (int i = 0; r == 0 && i < READERS; i++)
                r = connection_open(&s->readers[i], file, "PRAGMA synchronous = FULL;", err);
        s->hub = watch_hub_new();
        if (r == 0)
                r = leases_open(s, err);
        if (r < 0) {
                sqlite_close(s);
                return r;
        }
        *ret = s;
        return 0;
}

static void take_row(sqlite3_stmt *p, struct store_value *ret)
{
        size_t len = (size_t)sqlite3_column_bytes(p, 1);

        ret->key = xstrdup((const char *)sqlite3_column_text(p, 0));
        ret->data = xmalloc(len + 1);
        if (len > 0)
                memcpy(ret->data, sqlite3_column_blob(p, 1), len);
        ret->data[len] = '\0';
        ret->len = len;
        ret->revision = sqlite3_column_int64(p, 2);
}

static int get_locked(struct connection *c, const char *key, struct store_value *ret, struct error *err)
{
        sqlite3_stmt *p = statement_begin(c, GET);
        int rc, r = 0;

        bind_text(p, 1, key);
        rc = sqlite3_step(p);
        if (rc == SQLITE_ROW)
                take_row(p, ret);
        else if (rc == SQLITE_DONE)
                r = error_set(err, ERROR_NOT_FOUND, "store: no key '%s'", key);
        else
                r = sqlite_error(c->db, rc, err, "read");
        sqlite3_reset(p);
        return r;
}

/* The reader of this thread's snapshot. */
static _Thread_local struct {
        struct sqlite_store *store;
        struct connection *reader;
} pinned;

static void sqlite_snapshot_begin(void *impl)
{
        struct sqlite_store *s = impl;

        if (pinned.store)
                return;
        for (int i = 0; i < READERS; i++) {
                struct connection *c = &s->readers[i];

                if (pthread_mutex_trylock(&c->lock) != 0)
                        continue;
                if (statement_run(c, statement_begin(c, SNAPSHOT), "begin", NULL) == 0) {
                        pinned.store = s;
                        pinned.reader = c;
                        return;
                }
                pthread_mutex_unlock(&c->lock);
        }
}

static void sqlite_snapshot_end(void *impl)
{
        struct connection *c = pinned.reader;

        if (pinned.store != impl)
                return;
        statement_run(c, statement_begin(c, COMMIT), "end", NULL);
        pinned.store = NULL;
        pinned.reader = NULL;
        pthread_mutex_unlock(&c->lock);
}

/* This thread's, or one that nobody uses, locked; the first one to wait for when all are in use. */
static struct connection *take_reader(struct sqlite_store *s)
{
        if (pinned.store == s)
                return pinned.reader;
        for (int i = 0; i < READERS; i++)
                if (pthread_mutex_trylock(&s->readers[i].lock) == 0)
                        return &s->readers[i];
        pthread_mutex_lock(&s->readers[0].lock);
        return &s->readers[0];
}

static void give_back(struct connection *c)
{
        if (c != pinned.reader)
                pthread_mutex_unlock(&c->lock);
}

static int sqlite_get(void *impl, const char *key, struct store_value *ret, struct error *err)
{
        struct connection *c = take_reader(impl);
        int r;

        r = get_locked(c, key, ret, err);
        give_back(c);
        return r;
}

/* The smallest text above every key with the prefix. */
static char *prefix_end(const char *prefix)
{
        size_t n = strlen(prefix);
        char *end;

        if (n == 0)
                return xstrdup("\xff");
        end = xstrdup(prefix);
        end[n - 1]++;
        return end;
}

static int range_locked(struct connection *c, const char *prefix, const char *after, const char *end, size_t limit,
                        struct store_value **ret, size_t *ret_count, struct error *err)
{
        bool resume = after && strcmp(after, prefix) >= 0;
        sqlite3_stmt *p = statement_begin(c, resume ? RANGE_AFTER : RANGE_FROM);
        struct store_value *values = NULL;
        size_t count = 0, cap = 0;
        int rc;

        bind_text(p, 1, resume ? after : prefix);
        bind_text(p, 2, end);
        sqlite3_bind_int64(p, 3, limit > INT64_MAX ? INT64_MAX : (sqlite3_int64)limit);
        while ((rc = sqlite3_step(p)) == SQLITE_ROW) {
                if (count == cap) {
                        cap = cap ? cap * 2 : 16;
                        values = xreallocarray(values, cap, sizeof(*values));
                }
                take_row(p, &values[count++]);
        }
        sqlite3_reset(p);
        if (rc != SQLITE_DONE) {
                store_values_free(values, count);
                return sqlite_error(c->db, rc, err, "read");
        }
        *ret = values;
        *ret_count = count;
        return 0;
}

static int sqlite_range(void *impl, const char *prefix, const char *after, size_t limit, struct store_value **ret,
                        size_t *ret_count, struct error *err)
{
        CLEANUP_FREE char *end = prefix_end(prefix);
        struct connection *c = take_reader(impl);
        int r;

        r = range_locked(c, prefix, after, end, limit, ret, ret_count, err);
        give_back(c);
        return r;
}

static int check_condition(struct connection *c, const struct store_condition *condition, struct error *err)
{
        sqlite3_stmt *p = statement_begin(c, REVISION);
        int64_t revision = 0;
        int rc;

        bind_text(p, 1, condition->key);
        rc = sqlite3_step(p);
        if (rc == SQLITE_ROW)
                revision = sqlite3_column_int64(p, 0);
        sqlite3_reset(p);
        if (rc != SQLITE_ROW && rc != SQLITE_DONE)
                return sqlite_error(c->db, rc, err, "read");
        if (revision != condition->revision)
                return error_set(err, ERROR_CONFLICT, "store: '%s' was changed meanwhile", condition->key);
        return 0;
}

static int next_revision(struct connection *c, int64_t *ret, struct error *err)
{
        sqlite3_stmt *p = statement_begin(c, NEXT);
        int rc = sqlite3_step(p);

        if (rc == SQLITE_ROW)
                *ret = sqlite3_column_int64(p, 0);
        /* RETURNING has done its work at the first row; the step to DONE ends the statement. */
        if (rc == SQLITE_ROW)
                rc = sqlite3_step(p);
        sqlite3_reset(p);
        return rc == SQLITE_DONE ? 0 : sqlite_error(c->db, rc, err, "write");
}

/* Binds a key to the lease of the write, or to none. */
static int do_lease(struct connection *c, const struct store_write *w, struct error *err)
{
        sqlite3_stmt *p;

        if (w->lease) {
                int rc;

                p = statement_begin(c, LEASE);
                sqlite3_bind_int64(p, 1, w->lease);
                rc = sqlite3_step(p);
                sqlite3_reset(p);
                if (rc == SQLITE_DONE)
                        return error_set(err, ERROR_NOT_FOUND, "store: the lease of '%s' has ended", w->key);
                if (rc != SQLITE_ROW)
                        return sqlite_error(c->db, rc, err, "read");
        }
        p = statement_begin(c, w->lease ? LEASE_KEY : UNLEASE_KEY);
        bind_text(p, 1, w->key);
        if (w->lease)
                sqlite3_bind_int64(p, 2, w->lease);
        return statement_run(c, p, "write", err);
}

static int do_write(struct sqlite_store *s, const struct store_write *w, int64_t revision, struct error *err)
{
        struct connection *c = &s->writer;
        sqlite3_stmt *p = statement_begin(c, w->data ? PUT : DELETE);
        int r;

        bind_text(p, 1, w->key);
        if (w->data) {
                sqlite3_bind_blob(p, 2, w->data, (int)w->len, SQLITE_STATIC);
                sqlite3_bind_int64(p, 3, revision);
        }
        r = statement_run(c, p, "write", err);
        s->any_leased = s->any_leased || w->lease;
        return r < 0 || !s->any_leased ? r : do_lease(c, w, err);
}

static int commit_inside(struct sqlite_store *s, const struct store_txn *t, int64_t *ret_revision, struct error *err)
{
        struct connection *c = &s->writer;
        int r;

        for (size_t i = 0; i < t->condition_count; i++)
                if ((r = check_condition(c, &t->conditions[i], err)) < 0)
                        return r;
        if (t->write_count == 0)
                return 0;
        r = next_revision(c, ret_revision, err);
        for (size_t i = 0; r == 0 && i < t->write_count; i++)
                r = do_write(s, &t->writes[i], *ret_revision, err);
        return r;
}

static const char *first_key(const struct store_txn *t)
{
        return t->write_count ? t->writes[0].key : "";
}

int sqlite_commit_locked(struct sqlite_store *s, const struct store_txn *t, struct error *err)
{
        struct connection *c = &s->writer;
        int64_t revision = 0;
        int r = statement_run(c, statement_begin(c, BEGIN), "begin", err);

        if (r < 0)
                return r;
        r = commit_inside(s, t, &revision, err);
        if (r == 0) {
                failpoint("commit", first_key(t));
                r = statement_run(c, statement_begin(c, COMMIT), "commit", err);
                failpoint("committed", first_key(t));
        }
        /* A full disk may have rolled back by itself; then there is nothing to undo. */
        if (r < 0 && !sqlite3_get_autocommit(c->db))
                statement_run(c, statement_begin(c, ROLLBACK), "roll back", NULL);
        if (r == 0)
                watch_hub_publish(s->hub, t, revision);
        return r;
}

static int sqlite_commit(void *impl, const struct store_txn *t, struct error *err)
{
        struct sqlite_store *s = impl;
        int r;

        sqlite_snapshot_end(impl); /* what follows shall see the commit */
        pthread_mutex_lock(&s->writer.lock);
        r = sqlite_commit_locked(s, t, err);
        pthread_mutex_unlock(&s->writer.lock);
        return r;
}

static int sqlite_watch(void *impl, const char *prefix, struct store_watch **ret, struct error *err)
{
        (void)err;
        *ret = watch_hub_add(((struct sqlite_store *)impl)->hub, prefix);
        return 0;
}

/* A connection of its own reads one snapshot of the database, whatever is committed meanwhile. */
static int sqlite_backup(void *impl, const char *path, struct error *err)
{
        return run_alone(((struct sqlite_store *)impl)->file, "VACUUM INTO ?1", path, NULL, err);
}

int sqlite_verify(const char *path, struct error *err)
{
        CLEANUP_FREE char *verdict = NULL, *table = NULL, *line = NULL;
        int r = run_alone(path, "PRAGMA integrity_check(1)", NULL, &verdict, err);

        if (r == 0)
                r = run_alone(path, "SELECT name FROM sqlite_schema WHERE name = 'kv'", NULL, &table, err);
        if (r < 0 && r != -EAGAIN)
                return error_set(err, ERROR_INVALID, "it is no database of vmon, or it is damaged");
        line = str_one_line(verdict ? verdict : "no verdict");
        if (r == 0 && !streq(line, "ok"))
                return error_set(err, ERROR_INVALID, "it is damaged: %s", line);
        if (r == 0 && !table)
                return error_set(err, ERROR_INVALID, "it is no database of vmon");
        return r;
}

const struct store_backend sqlite_backend = {
        .get = sqlite_get,
        .range = sqlite_range,
        .snapshot_begin = sqlite_snapshot_begin,
        .snapshot_end = sqlite_snapshot_end,
        .commit = sqlite_commit,
        .lease_new = sqlite_lease_new,
        .lease_renew = sqlite_lease_renew,
        .lease_end = sqlite_lease_end,
        .watch = sqlite_watch,
        .backup = sqlite_backup,
        .close = sqlite_close,
};
