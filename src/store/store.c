/* The store's front: picks the implementation by URL, checks the limits that every implementation shares, and holds
 * transactions as plain lists until they are committed.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/backend.h"

struct store {
        const struct store_backend *backend;
        void *impl;
};

int store_open(const char *url, struct store **ret, struct error *err)
{
        void *impl;
        int r;

        if (!str_starts(url, "sqlite:"))
                return error_set(err, ERROR_INVALID, "store '%s': unknown kind of store; use sqlite:PATH", url);
        r = sqlite_open(url + strlen("sqlite:"), &impl, err);
        if (r < 0)
                return error_wrap(err, r, "open store %s", url);
        *ret = xmalloc(sizeof(**ret));
        **ret = (struct store){ .backend = &sqlite_backend, .impl = impl };
        return 0;
}

void store_close(struct store *s)
{
        if (!s)
                return;
        s->backend->close(s->impl);
        free(s);
}

void store_value_free(struct store_value *v)
{
        if (!v)
                return;
        free(v->key);
        free(v->data);
        *v = (struct store_value){};
}

void store_values_free(struct store_value *values, size_t count)
{
        for (size_t i = 0; i < count; i++)
                store_value_free(&values[i]);
        free(values);
}

int store_get(struct store *s, const char *key, struct store_value *ret, struct error *err)
{
        return s->backend->get(s->impl, key, ret, err);
}

int store_range(struct store *s, const char *prefix, const char *after, size_t limit, struct store_value **ret,
                size_t *ret_count, struct error *err)
{
        return s->backend->range(s->impl, prefix, after, limit, ret, ret_count, err);
}

void store_snapshot_begin(struct store *s)
{
        s->backend->snapshot_begin(s->impl);
}

void store_snapshot_end(struct store *s)
{
        s->backend->snapshot_end(s->impl);
}

struct store_txn *store_txn_new(void)
{
        return xcalloc(1, sizeof(struct store_txn));
}

void store_txn_free(struct store_txn *t)
{
        if (!t)
                return;
        for (size_t i = 0; i < t->condition_count; i++)
                free(t->conditions[i].key);
        for (size_t i = 0; i < t->write_count; i++) {
                free(t->writes[i].key);
                free(t->writes[i].data);
        }
        free(t);
}

/* etcd counts conditions and writes separately; so do we. */
void store_txn_expect(struct store_txn *t, const char *key, int64_t revision)
{
        if (t->condition_count == STORE_TXN_MAX) {
                t->overflow = true;
                return;
        }
        t->conditions[t->condition_count++] = (struct store_condition){ xstrdup(key), revision };
}

static void add_write(struct store_txn *t, const char *key, void *data, size_t len, int64_t lease)
{
        if (t->write_count == STORE_TXN_MAX) {
                free(data);
                t->overflow = true;
                return;
        }
        t->writes[t->write_count++] = (struct store_write){ xstrdup(key), data, len, lease };
}

void store_txn_put_leased(struct store_txn *t, const char *key, const void *data, size_t len, int64_t lease)
{
        char *copy = xmalloc(len + 1);

        memcpy(copy, data, len);
        copy[len] = '\0';
        add_write(t, key, copy, len, lease);
}

void store_txn_put(struct store_txn *t, const char *key, const void *data, size_t len)
{
        store_txn_put_leased(t, key, data, len, 0);
}

void store_txn_delete(struct store_txn *t, const char *key)
{
        add_write(t, key, NULL, 0, 0);
}

int store_commit(struct store *s, struct store_txn *t, struct error *err)
{
        if (t->overflow)
                return error_set(err, ERROR_LIMIT, "store: a transaction has at most %d operations", STORE_TXN_MAX);
        for (size_t i = 0; i < t->write_count; i++)
                if (t->writes[i].len > STORE_VALUE_MAX)
                        return error_set(err, ERROR_LIMIT, "store: a value of %zu bytes is above the limit of %d bytes",
                                         t->writes[i].len, STORE_VALUE_MAX);
        return s->backend->commit(s->impl, t, err);
}

int store_lease_new(struct store *s, int ttl_ms, int64_t *ret, struct error *err)
{
        if (ttl_ms < 1 || ttl_ms > STORE_TTL_MAX_MS)
                return error_set(err, ERROR_INVALID, "store: a lease lasts 1 to %d ms", STORE_TTL_MAX_MS);
        return s->backend->lease_new(s->impl, ttl_ms, ret, err);
}

int store_lease_renew(struct store *s, int64_t lease, struct error *err)
{
        return s->backend->lease_renew(s->impl, lease, err);
}

int store_lease_end(struct store *s, int64_t lease, struct error *err)
{
        return s->backend->lease_end(s->impl, lease, err);
}

int store_watch_new(struct store *s, const char *prefix, struct store_watch **ret, struct error *err)
{
        return s->backend->watch(s->impl, prefix, ret, err);
}

int store_backup(struct store *s, const char *path, struct error *err)
{
        int r = s->backend->backup(s->impl, path, err);

        return r < 0 ? error_wrap(err, r, "copy the store to %s", path) : 0;
}

int store_verify(const char *path, struct error *err)
{
        int r = sqlite_verify(path, err);

        return r < 0 ? error_wrap(err, r, "check %s", path) : 0;
}

static void cleanup_txn(struct store_txn **t)
{
        store_txn_free(*t);
}

int store_put(struct store *s, const char *key, const void *data, size_t len, struct error *err)
{
        CLEANUP(cleanup_txn) struct store_txn *t = store_txn_new();

        store_txn_put(t, key, data, len);
        return store_commit(s, t, err);
}

int store_delete(struct store *s, const char *key, struct error *err)
{
        CLEANUP(cleanup_txn) struct store_txn *t = store_txn_new();

        store_txn_delete(t, key);
        return store_commit(s, t, err);
}
