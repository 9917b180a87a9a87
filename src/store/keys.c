/* API keys: "e2b_" and 40 lower-case hex digits (template-api 2.2). The store has the SHA-256 of the key's 20 bytes only;
 * they are random, so that a plain hash is enough.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "store/internal.h"

#define KEY_PREFIX "e2b_"
#define KEY_BYTES 20

static const char invalid_key[] = "Invalid API key, please visit https://e2b.dev/docs/api-key for more information.\n";

/* False when it has not the form of a key. */
static bool key_digest(const char *key, char *ret)
{
        unsigned char bytes[KEY_BYTES];

        if (!str_starts(key, KEY_PREFIX) || strlen(key) != strlen(KEY_PREFIX) + 2 * KEY_BYTES ||
            !hex_decode(key + strlen(KEY_PREFIX), bytes, KEY_BYTES))
                return false;
        secret_digest(bytes, sizeof(bytes), ret);
        return true;
}

static int key_store(struct records *r, const char *team_id, const char *digest, const char *id, const char *hint, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        CLEANUP_JSON json_t *team = NULL;
        int64_t revision;
        int x = records_get_json(r, &team, &revision, err, "team/%s", team_id);

        if (x < 0)
                return x;
        txn_expect(txn, revision, "team/%s", team_id);
        txn_put_json(txn, json_pack("{s:s, s:s, s:I, s:s}", "id", id, "team", team_id, "created", (json_int_t)records_now(r), "hint", hint),
                     "key/%s", digest);
        txn_put_text(txn, digest, "key-id/%s", id);
        return records_commit(r, txn, err);
}

int records_key_create(struct records *r, const char *team_id, char **ret_key, char **ret_key_id, struct error *err)
{
        char hex[2 * KEY_BYTES + 1], digest[MAC_HEX_LEN + 1], id[UUID_LEN + 1];
        CLEANUP_FREE char *key = NULL, *hint = NULL;
        unsigned char bytes[KEY_BYTES];
        int x;

        random_bytes(bytes, sizeof(bytes));
        hex_encode(bytes, sizeof(bytes), hex);
        secret_digest(bytes, sizeof(bytes), digest);
        random_uuid(id);
        key = xasprintf(KEY_PREFIX "%s", hex);
        hint = xasprintf(KEY_PREFIX "…%s", hex + 2 * KEY_BYTES - 4);
        x = records_retry(r, err, key_store(r, team_id, digest, id, hint, err));
        if (x < 0)
                return x;
        *ret_key = STEAL(key);
        *ret_key_id = xstrdup(id);
        return 0;
}

int records_key_revoke(struct records *r, const char *key_id, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        CLEANUP_FREE char *digest = NULL;
        int x = records_find_text(r, &digest, NULL, err, "key-id/%s", key_id);

        if (x < 0)
                return x;
        if (!digest)
                return error_set(err, ERROR_NOT_FOUND, "key '%s' not found; list-keys shows the IDs", key_id);
        txn_delete(txn, "key/%s", digest);
        txn_delete(txn, "key-id/%s", key_id);
        return records_commit(r, txn, err);
}

struct key_collect {
        const char *team_id;
        json_t *list;
};

static int collect_key(void *data, const struct store_value *v, struct error *err)
{
        struct key_collect *c = data;
        CLEANUP_JSON json_t *j = NULL;
        char created[RFC3339_MAX];
        int x = json_parse(v->data, v->len, &j, err);

        if (x < 0 || !streq(json_str(j, "team"), c->team_id))
                return x;
        rfc3339_format(json_int(j, "created", 0), created);
        json_array_append_new(c->list, json_pack("{s:s?, s:s?, s:s}", "id", json_str(j, "id"), "hint", json_str(j, "hint"), "createdAt",
                                                 created));
        return 0;
}

int records_key_list(struct records *r, const char *team_id, json_t **ret, struct error *err)
{
        struct key_collect c = { team_id, json_array() };
        int x = records_scan(r, "key/", NULL, collect_key, &c, err);

        if (x < 0) {
                json_decref(c.list);
                return x;
        }
        *ret = c.list;
        return 0;
}

int records_team_keys_revoke(struct records *r, const char *team_id, struct error *err)
{
        CLEANUP_JSON json_t *list = NULL;
        int x = records_key_list(r, team_id, &list, err);
        json_t *key;
        size_t i;

        if (x < 0)
                return x;
        json_array_foreach(list, i, key)
                if ((x = records_key_revoke(r, json_str(key, "id"), err)) < 0)
                        return x;
        return 0;
}

int records_key_team(struct records *r, const char *key, struct team **ret, struct error *err)
{
        char digest[MAC_HEX_LEN + 1];
        CLEANUP_JSON json_t *j = NULL;
        int x;

        if (!key_digest(key, digest))
                return error_set(err, ERROR_UNAUTHORISED, "%sInvalid API key format", invalid_key);
        x = records_find_json(r, &j, NULL, err, "key/%s", digest);
        if (x < 0)
                return x;
        if (j && (x = records_team_get(r, json_str(j, "team"), ret, err)) != -ENOENT)
                return x;
        return error_set(err, ERROR_UNAUTHORISED, "%sCannot get the team for the given API key", invalid_key);
}
