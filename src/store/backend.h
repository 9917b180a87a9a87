/* What a store implementation fulfils; private to src/store. */
#pragma once

#include "store/store.h"

struct store_condition {
        char *key;
        int64_t revision;
};

struct store_write {
        char *key;
        void *data; /* NULL = delete */
        size_t len;
        int64_t lease; /* 0 = none */
};

struct store_txn {
        struct store_condition conditions[STORE_TXN_MAX];
        struct store_write writes[STORE_TXN_MAX];
        size_t condition_count, write_count;
        bool overflow; /* more than STORE_TXN_MAX operations were added */
};

struct store_backend {
        int (*get)(void *impl, const char *key, struct store_value *ret, struct error *err);
        int (*range)(void *impl, const char *prefix, const char *after, size_t limit, struct store_value **ret,
                     size_t *ret_count, struct error *err);
        void (*snapshot_begin)(void *impl);
        void (*snapshot_end)(void *impl);
        int (*commit)(void *impl, const struct store_txn *t, struct error *err);
        int (*lease_new)(void *impl, int ttl_ms, int64_t *ret, struct error *err);
        int (*lease_renew)(void *impl, int64_t lease, struct error *err);
        int (*lease_end)(void *impl, int64_t lease, struct error *err);
        int (*watch)(void *impl, const char *prefix, struct store_watch **ret, struct error *err);
        int (*backup)(void *impl, const char *path, struct error *err);
        void (*close)(void *impl);
};

/* `path` may end in "?max-mb=N", the quota. */
int sqlite_open(const char *path, void **ret, struct error *err);
int sqlite_verify(const char *path, struct error *err);
extern const struct store_backend sqlite_backend;
