/* The helpers under the records: formatted keys, JSON values, paged scans, sealing. See internal.h for the keys. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/internal.h"
#include "store/schema.h"

#define SCAN_PAGE 200

/* Version 1 is the form that the records had before versions were written down. */
static int migrate_to_1(struct store *s, struct error *err)
{
        (void)s;
        (void)err;
        return 0;
}

static const schema_migration migrations[] = { migrate_to_1 };

int records_open(struct store *s, struct records **ret, struct error *err)
{
        struct records *r;
        int x = schema_open(s, migrations, sizeof(migrations) / sizeof(*migrations), err);

        if (x < 0)
                return x;
        r = xcalloc(1, sizeof(*r));
        r->store = s;
        r->parsed = parsed_new();
        pthread_mutex_init(&r->lock, NULL);
        *ret = r;
        return 0;
}

void records_set_secret(struct records *r, const unsigned char root[SECRET_LEN])
{
        secret_derive(root, "vmon store sealing v1", r->seal_key);
        r->sealing = true;
}

#define SECRET_CHECK "secret-check"

int records_check_secret(struct records *r, struct error *err)
{
        CLEANUP_JSON json_t *sealed = NULL, *plain = NULL;
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        int x = records_find_json(r, &sealed, NULL, err, SECRET_CHECK);

        if (x < 0)
                return x;
        if (sealed && records_unseal(r, SECRET_CHECK, json_object_get(sealed, "sealed"), &plain, NULL) < 0)
                return error_set(err, ERROR_CONFLICT, "the root secret is not the one that this store was written with: put the file "
                                                      "'root-secret' of its data directory back");
        if (sealed)
                return 0;
        txn_expect(txn, 0, SECRET_CHECK);
        txn_put_json(txn, json_pack("{s:o}", "sealed", records_seal(r, SECRET_CHECK, json_pack("{s:s}", "is", "right"))), SECRET_CHECK);
        x = records_commit(r, txn, err);
        return x == RECORDS_AGAIN ? error_set(err, ERROR_CONFLICT, "another process opened the store for the first time; try again") : x;
}

void records_close(struct records *r)
{
        if (!r)
                return;
        pthread_mutex_destroy(&r->lock);
        explicit_bzero(r->seal_key, sizeof(r->seal_key));
        parsed_free(r->parsed);
        free(r);
}

void records_snapshot_begin(struct records *r)
{
        store_snapshot_begin(r->store);
}

void records_snapshot_end(struct records *r)
{
        store_snapshot_end(r->store);
}

int64_t records_now(struct records *r)
{
        int64_t now = clock_realtime_ns() / 1000 * 1000;

        if (now <= r->last_ns)
                now = r->last_ns + 1000;
        r->last_ns = now;
        return now;
}

void age_text(int64_t created_ns, char *out)
{
        snprintf(out, 17, "%016" PRIx64, (uint64_t)(INT64_MAX - created_ns));
}

const char *key_tail(const char *key)
{
        const char *slash = strrchr(key, '/');

        return slash ? slash + 1 : key;
}

static char *vkey(const char *format, va_list ap)
{
        char *key;

        if (vasprintf(&key, format, ap) < 0)
                abort();
        return key;
}

#define KEY_FROM(format)                                \
        ({                                              \
                va_list ap_;                            \
                char *key_;                             \
                va_start(ap_, format);                  \
                key_ = vkey(format, ap_);               \
                va_end(ap_);                            \
                key_;                                   \
        })

static int get_value(struct records *r, const char *key, bool optional, struct store_value *ret, struct error *err)
{
        struct error e = {};
        int x = store_get(r->store, key, ret, &e);

        if (x == -ENOENT && optional)
                return 0;
        if (x < 0 && err)
                *err = e;
        return x;
}

static int value_json(struct records *r, struct store_value *v, json_t **ret, struct error *err)
{
        struct error e = {};
        int x = parsed_get(r->parsed, v->data, v->len, ret, &e);

        return x < 0 ? error_set(err, ERROR_INTERNAL, "store: the value of '%s' is damaged: %s", v->key, e.message) : 0;
}

static int take_json(struct records *r, const char *key, bool optional, json_t **ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP(store_value_free) struct store_value v = {};
        json_t *j = NULL;
        int x = get_value(r, key, optional, &v, err);

        if (x < 0 || (v.key && (x = value_json(r, &v, &j, err)) < 0))
                return x;
        *ret = j;
        if (ret_revision)
                *ret_revision = v.revision;
        return 0;
}

static int take_text(struct records *r, const char *key, char **ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP(store_value_free) struct store_value v = {};
        int x = get_value(r, key, true, &v, err);

        if (x < 0)
                return x;
        *ret = STEAL(v.data);
        if (ret_revision)
                *ret_revision = v.revision;
        return 0;
}

int records_get_json(struct records *r, json_t **ret, int64_t *ret_revision, struct error *err, const char *format, ...)
{
        CLEANUP_FREE char *key = KEY_FROM(format);

        return take_json(r, key, false, ret, ret_revision, err);
}

int records_find_json(struct records *r, json_t **ret, int64_t *ret_revision, struct error *err, const char *format, ...)
{
        CLEANUP_FREE char *key = KEY_FROM(format);

        return take_json(r, key, true, ret, ret_revision, err);
}

int records_find_text(struct records *r, char **ret, int64_t *ret_revision, struct error *err, const char *format, ...)
{
        CLEANUP_FREE char *key = KEY_FROM(format);

        return take_text(r, key, ret, ret_revision, err);
}

void txn_put_json(struct store_txn *t, json_t *stolen, const char *format, ...)
{
        CLEANUP_FREE char *key = KEY_FROM(format);
        CLEANUP_FREE char *text = json_text(stolen);

        store_txn_put(t, key, text, strlen(text));
        json_decref(stolen);
}

void txn_put_text(struct store_txn *t, const char *text, const char *format, ...)
{
        CLEANUP_FREE char *key = KEY_FROM(format);

        store_txn_put(t, key, text, strlen(text));
}

void txn_delete(struct store_txn *t, const char *format, ...)
{
        CLEANUP_FREE char *key = KEY_FROM(format);

        store_txn_delete(t, key);
}

void txn_expect(struct store_txn *t, int64_t revision, const char *format, ...)
{
        CLEANUP_FREE char *key = KEY_FROM(format);

        store_txn_expect(t, key, revision);
}

int records_commit(struct records *r, struct store_txn *t, struct error *err)
{
        struct error e = {};
        int x = store_commit(r->store, t, &e);

        if (x < 0 && e.kind == ERROR_CONFLICT)
                return RECORDS_AGAIN;
        if (x < 0 && err)
                *err = e;
        return x;
}

int records_scan(struct records *r, const char *prefix, const char *after,
                 int (*fn)(void *data, const struct store_value *v, struct error *err), void *data, struct error *err)
{
        CLEANUP_FREE char *last = xstrdup_or_null(after);
        size_t count;
        int x = 0;

        do {
                struct store_value *values;

                x = store_range(r->store, prefix, last, SCAN_PAGE, &values, &count, err);
                if (x < 0)
                        return x;
                for (size_t i = 0; x == 0 && i < count; i++)
                        x = fn(data, &values[i], err);
                if (count > 0) {
                        free(last);
                        last = xstrdup(values[count - 1].key);
                }
                store_values_free(values, count);
        } while (x == 0 && count == SCAN_PAGE);
        return x < 0 ? x : 0;
}

char *json_dup(const json_t *object, const char *key)
{
        return xstrdup_or_null(json_str(object, key));
}

json_t *json_from_list(char *const *list)
{
        json_t *array = json_array();

        for (; list && *list; list++)
                json_array_append_new(array, json_string(*list));
        return array;
}

char **json_to_list(const json_t *array)
{
        char **list = xcalloc(json_array_size(array) + 1, sizeof(*list));
        size_t n = 0, i;
        json_t *v;

        json_array_foreach(array, i, v)
                if (json_is_string(v))
                        list[n++] = xstrdup(json_string_value(v));
        return list;
}

json_t *records_seal(struct records *r, const char *context, json_t *stolen)
{
        CLEANUP_FREE char *text = NULL, *sealed = NULL;

        if (!stolen || !r->sealing)
                return stolen ? stolen : json_null();
        text = json_text(stolen);
        sealed = secret_seal(r->seal_key, context, text, strlen(text));
        json_decref(stolen);
        return json_string(sealed);
}

int records_unseal(struct records *r, const char *context, const json_t *sealed, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *text = NULL;
        size_t len;
        int x;

        if (!json_is_string(sealed)) {
                *ret = json_is_object(sealed) ? json_incref((json_t *)sealed) : json_object();
                return 0;
        }
        x = secret_open(r->seal_key, context, json_string_value(sealed), &text, &len, err);
        if (x == 0)
                x = json_parse(text, len, ret, err);
        return x < 0 ? error_wrap(err, x, "%s", context) : 0;
}
