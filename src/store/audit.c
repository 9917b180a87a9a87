/* The audit log: who did what, when, and how it ended. Entries are audit/<number>, never changed; audit-meta holds the next number.
 * Of more than RECORDS_AUDIT_MAX the oldest goes in the transaction that adds the newest.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/internal.h"

#define TEXT_MAX 1024 /* bytes of a target, a detail, a message */

static void put_text(json_t *j, const char *key, const char *text)
{
        CLEANUP_FREE char *clean = text ? utf8_scrub(text, strnlen(text, TEXT_MAX)) : NULL;

        json_put_str(j, key, clean);
}

static json_t *entry_json(const struct audit_entry *e, int64_t now)
{
        char time[RFC3339_MAX];
        json_t *j;

        rfc3339_format(now, time);
        j = json_pack("{s:s, s:s, s:i}", "time", time, "action", e->action, "status", e->status);
        put_text(j, "actor", e->actor);
        put_text(j, "target", e->target);
        put_text(j, "detail", e->detail);
        put_text(j, "error", e->error);
        return j;
}

static int append_once(struct records *r, const struct audit_entry *e, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        CLEANUP_JSON json_t *meta = NULL;
        int64_t revision, next;
        int x = records_find_json(r, &meta, &revision, err, "audit-meta");

        if (x < 0)
                return x;
        next = json_int(meta, "next", 1);
        txn_expect(txn, revision, "audit-meta");
        txn_put_json(txn, json_pack("{s:I}", "next", (json_int_t)next + 1), "audit-meta");
        txn_expect(txn, 0, "audit/%016" PRIx64, (uint64_t)next);
        txn_put_json(txn, entry_json(e, records_now(r)), "audit/%016" PRIx64, (uint64_t)next);
        if (next > RECORDS_AUDIT_MAX)
                txn_delete(txn, "audit/%016" PRIx64, (uint64_t)(next - RECORDS_AUDIT_MAX));
        return records_commit(r, txn, err);
}

int records_audit_append(struct records *r, const struct audit_entry *e, struct error *err)
{
        return records_retry(r, err, append_once(r, e, err));
}

static int collect_entry(void *data, const struct store_value *v, struct error *err)
{
        json_t *entry;
        int x = json_parse(v->data, v->len, &entry, err);

        if (x == 0)
                json_array_append_new(data, entry);
        return x;
}

int records_audit_list(struct records *r, size_t limit, json_t **ret, struct error *err)
{
        CLEANUP_JSON json_t *meta = NULL, *list = json_array();
        CLEANUP_FREE char *after = NULL;
        int64_t next;
        int x = records_find_json(r, &meta, NULL, err, "audit-meta");

        if (x < 0)
                return x;
        next = json_int(meta, "next", 1);
        if (limit > RECORDS_AUDIT_MAX)
                limit = RECORDS_AUDIT_MAX;
        if (next > (int64_t)limit)
                after = xasprintf("audit/%016" PRIx64, (uint64_t)(next - 1 - (int64_t)limit));
        x = records_scan(r, "audit/", after, collect_entry, list, err);
        if (x == 0)
                *ret = STEAL(list);
        return x;
}
