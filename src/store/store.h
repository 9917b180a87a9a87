/* Ordered keys with values, transactions and ranges: the contract that SQLite (one machine) and etcd (cluster)
 * both fulfil (design 7). Keys are printable text with "/" between parts; values <= 512 KiB; at most 100
 * operations a transaction; everything acknowledged is durable. Thread-safe; blocking.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STORE_VALUE_MAX (512 * 1024)
#define STORE_TXN_MAX 100

struct store;

/* "sqlite:PATH" (etcd comes with the cluster). */
int store_open(const char *url, struct store **ret, struct error *err);
void store_close(struct store *s);

struct store_value {
        char *key;
        char *data; /* NUL-terminated besides its length */
        size_t len;
        int64_t revision; /* of the last change of this key; > 0 */
};
void store_value_free(struct store_value *v);

/* ERROR_NOT_FOUND when absent. */
int store_get(struct store *s, const char *key, struct store_value *ret, struct error *err);

/* Keys with `prefix`, strictly after `after` (NULL = from the start), ascending, at most `limit`. */
int store_range(struct store *s, const char *prefix, const char *after, size_t limit, struct store_value **ret,
                size_t *ret_count, struct error *err);
void store_values_free(struct store_value *values, size_t count);

/* Between the two this thread's reads see the store at one moment, and cost less; for a few reads, not for work that waits. A commit of
 * this thread ends it at once. It may do nothing (all connections in use): then each read sees what is newest, as without it. */
void store_snapshot_begin(struct store *s);
void store_snapshot_end(struct store *s);

/* A transaction: all conditions hold -> all writes happen, atomically; else nothing and ERROR_CONFLICT. */
struct store_txn;
struct store_txn *store_txn_new(void);
void store_txn_free(struct store_txn *t);
void store_txn_expect(struct store_txn *t, const char *key, int64_t revision); /* 0 = must be absent */
void store_txn_put(struct store_txn *t, const char *key, const void *data, size_t len);
void store_txn_delete(struct store_txn *t, const char *key);
int store_commit(struct store *s, struct store_txn *t, struct error *err);

/* A lease: what was put with it goes when it ends, which is store_lease_end(), or `ttl_ms` (1 to STORE_TTL_MAX_MS) after it was made or
 * renewed last. After a restart of the store every lease has its whole time again. A later put without the lease keeps the key. */
#define STORE_TTL_MAX_MS (24 * 3600 * 1000)
int store_lease_new(struct store *s, int ttl_ms, int64_t *ret, struct error *err);
int store_lease_renew(struct store *s, int64_t lease, struct error *err); /* ERROR_NOT_FOUND when it has ended */
int store_lease_end(struct store *s, int64_t lease, struct error *err);   /* likewise; its keys are gone when this returns */
/* The commit fails with ERROR_NOT_FOUND when the lease has ended. */
void store_txn_put_leased(struct store_txn *t, const char *key, const void *data, size_t len, int64_t lease);

/* A watch: the changes of keys with a prefix that are committed after store_watch_new(), each once, in the order of the commits. On
 * SQLite those of this process. */
struct store_watch;
struct store_event {
        enum { STORE_EVENT_PUT = 0, STORE_EVENT_DELETE, STORE_EVENT_LOST } kind;
        struct store_value value; /* DELETE: key and revision only. LOST: nothing; see store_watch_next() */
};
int store_watch_new(struct store *s, const char *prefix, struct store_watch **ret, struct error *err);
/* Waits for `timeout_ms` (-1: for ever): 1 with an event, to be freed with store_value_free(&ret->value), or 0. STORE_EVENT_LOST: more was
 * changed than a watch holds for a slow reader; read the range again, what follows is later. One thread a watch. */
int store_watch_next(struct store_watch *w, int timeout_ms, struct store_event *ret);
void store_watch_free(struct store_watch *w); /* before store_close(); NULL is fine */

/* Writes a consistent copy, which store_open("sqlite:…") opens, to the empty or absent file `path` while the store is in use. Blocks
 * for as long as the copying takes, without holding up others. What is there after a failure is the caller's to remove. */
int store_backup(struct store *s, const char *path, struct error *err);
/* Reads a whole database file: ERROR_INVALID when it is damaged or no database. It must not be in use. */
int store_verify(const char *path, struct error *err);

int store_put(struct store *s, const char *key, const void *data, size_t len, struct error *err);
int store_delete(struct store *s, const char *key, struct error *err); /* absent is success */
