#include "store/schema.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

#define VERSION_MAX 1000000

static int read_version(struct store *s, int *ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP(store_value_free) struct store_value v = {};
        struct error e = {};
        uint64_t version = 0;
        int r = store_get(s, SCHEMA_KEY, &v, &e);

        if (r < 0 && r != -ENOENT)
                return error_set(err, e.kind, "%s", e.message);
        if (r == 0 && !str_to_u64(v.data, VERSION_MAX, &version))
                return error_set(err, ERROR_INTERNAL, "store: the key '" SCHEMA_KEY "' holds no version");
        *ret = (int)version;
        *ret_revision = v.revision;
        return 0;
}

static void cleanup_txn(struct store_txn **t)
{
        store_txn_free(*t);
}

static int write_version(struct store *s, int version, int64_t revision, struct error *err)
{
        CLEANUP(cleanup_txn) struct store_txn *txn = store_txn_new();
        char text[16];

        snprintf(text, sizeof(text), "%d", version);
        store_txn_expect(txn, SCHEMA_KEY, revision);
        store_txn_put(txn, SCHEMA_KEY, text, strlen(text));
        return store_commit(s, txn, err);
}

int schema_open(struct store *s, const schema_migration *migrations, int count, struct error *err)
{
        int64_t revision;
        int version, r = read_version(s, &version, &revision, err);

        if (r == 0 && version > count)
                return error_set(err, ERROR_CONFLICT,
                                 "the store's records have version %d and this vmon knows versions up to %d: start the newer vmon again, or "
                                 "restore a backup that was made before the upgrade",
                                 version, count);
        while (r == 0 && version < count) {
                r = migrations[version](s, err);
                if (r == 0)
                        r = write_version(s, ++version, revision, err);
                if (r < 0)
                        return error_wrap(err, r, "bring the store's records to version %d", version);
                r = read_version(s, &version, &revision, err);
        }
        return r;
}
