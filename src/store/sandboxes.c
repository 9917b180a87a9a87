/* Sandboxes: one object each, whose shape is src/sandbox's. They carry environments and tokens: sealed as a whole. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/internal.h"

int records_sandbox_put(struct records *r, const char *id, const json_t *j, struct error *err)
{
        CLEANUP_FREE char *key = xasprintf("sandbox/%s", id);
        CLEANUP_JSON json_t *sealed = records_seal(r, key, json_incref((json_t *)j));
        CLEANUP_FREE char *text = json_text(sealed);

        return store_put(r->store, key, text, strlen(text), err);
}

int records_sandbox_delete(struct records *r, const char *id, struct error *err)
{
        CLEANUP_FREE char *key = xasprintf("sandbox/%s", id);

        return store_delete(r->store, key, err);
}

struct each {
        struct records *records;
        int (*fn)(void *data, const char *id, const json_t *j);
        void *data;
};

static int each_sandbox(void *data, const struct store_value *v, struct error *err)
{
        struct each *e = data;
        CLEANUP_JSON json_t *sealed = NULL, *j = NULL;
        int x = json_parse(v->data, v->len, &sealed, err);

        if (x == 0)
                x = records_unseal(e->records, v->key, sealed, &j, err);
        if (x < 0)
                return error_wrap(err, x, "sandbox record %s", key_tail(v->key));
        return e->fn(e->data, key_tail(v->key), j);
}

int records_sandbox_each(struct records *r, int (*fn)(void *data, const char *id, const json_t *j), void *data, struct error *err)
{
        struct each e = { r, fn, data };

        return records_scan(r, "sandbox/", NULL, each_sandbox, &e, err);
}
