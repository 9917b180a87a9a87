/* What the files of the SQLite store share. */
#pragma once

#include <pthread.h>
#include <sqlite3.h>

#include "store/backend.h"
#include "store/watch.h"

#define READERS 4

enum statement { GET, RANGE_FROM, RANGE_AFTER, REVISION, PUT, DELETE, NEXT, LEASE, LEASE_KEY, UNLEASE_KEY, SNAPSHOT, BEGIN, COMMIT, ROLLBACK, STATEMENTS };

struct connection {
        pthread_mutex_t lock;
        sqlite3 *db;
        sqlite3_stmt *statements[STATEMENTS];
};

struct sqlite_store {
        struct connection writer, readers[READERS];
        char *file;
        struct watch_hub *hub;
        struct leases *leases;
        bool any_leased; /* with the writer's lock: a key has, or had, a lease */
};


int sqlite_error(sqlite3 *db, int rc, struct error *err, const char *what);
sqlite3_stmt *statement_begin(struct connection *c, enum statement s);
/* Runs a statement that returns no rows that matter. */
int statement_run(struct connection *c, sqlite3_stmt *p, const char *what, struct error *err);
/* With the writer's lock: the transaction, and then what watches are told of it. */
int sqlite_commit_locked(struct sqlite_store *s, const struct store_txn *t, struct error *err);

/* sqlite_lease.c. `s` has its connections and tables. */
int leases_open(struct sqlite_store *s, struct error *err);
void leases_close(struct leases *l); /* NULL is fine */
int sqlite_lease_new(void *impl, int ttl_ms, int64_t *ret, struct error *err);
int sqlite_lease_renew(void *impl, int64_t lease, struct error *err);
int sqlite_lease_end(void *impl, int64_t lease, struct error *err);
