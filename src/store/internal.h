/* What the records*.c files share; private to src/store.
 *
 * Keys:
 *   team/<id>                             team
 *   team-slug/<slug>                      team ID
 *   key/<sha256 of the key>               {id, team, created, hint}
 *   key-id/<key ID>                       sha256 of the key
 *   template/<id>                         template; deleted ones stay, their IDs are never used again
 *   team-template/<team>/<age>/<id>       index, newest first (age: see age_text())
 *   alias/<slug>/<alias>, bare/<alias>    template ID
 *   build/<id>                            build
 *   template-build/<template>/<age>/<id>  index, newest first
 *   active/<team>/<build>                 template ID; the builds that are waiting or building
 *   tag/<template>/<tag>                  {build, created}
 *   log/<build>/<number>, log-meta/<build>
 *   sandbox/<id>
 *   audit/<number>, audit-meta            audit.c
 *   node/<name>                           what was said by cordon
 *   secret-check                          sealed, to tell another root secret
 *   schema                                version of all this (schema.h)
 *
 * Writers read what they need with its revisions, and commit on the condition that it still is so. In one process
 * `lock` serialises them, so that conflicts come from other drivers of a cluster only; records_retry() then reads again.
 */
#pragma once

#include <errno.h>
#include <pthread.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "store/names.h"
#include "store/parsed.h"
#include "store/records.h"
#include "store/secret.h"

/* What a commit returns when something it read was changed meanwhile; never leaves src/store. */
#define RECORDS_AGAIN (-ESTALE)
#define RECORDS_ATTEMPTS 32

struct records {
        struct store *store;
        pthread_mutex_t lock;
        int64_t last_ns;   /* newest timestamp given out; under lock */
        bool sealing;      /* seal_key is set */
        unsigned char seal_key[SECRET_LEN];
        struct parsed *parsed;
};

/* Runs `expression` under the lock until it does not end in RECORDS_AGAIN. */
#define records_retry(r, err, expression)                                                                         \
        ({                                                                                                        \
                int retry_, left_ = RECORDS_ATTEMPTS;                                                             \
                pthread_mutex_lock(&(r)->lock);                                                                   \
                do                                                                                                \
                        retry_ = (expression);                                                                    \
                while (retry_ == RECORDS_AGAIN && --left_ > 0);                                                   \
                pthread_mutex_unlock(&(r)->lock);                                                                 \
                retry_ == RECORDS_AGAIN ? error_set(err, ERROR_UNAVAILABLE, "store: too many concurrent changes; try again") \
                                        : retry_;                                                                 \
        })

/* A timestamp in whole microseconds (what RFC 3339 texts carry), greater than all before. Call under the lock. */
int64_t records_now(struct records *r);

/* 16 hex digits that sort newest first; `out` has 17 bytes. */
void age_text(int64_t created_ns, char *out);

/* The value at the formatted key as JSON. ERROR_NOT_FOUND when absent. `ret_revision` may be NULL. */
int records_get_json(struct records *r, json_t **ret, int64_t *ret_revision, struct error *err, const char *format, ...)
        __attribute__((format(printf, 5, 6)));
/* The same, as JSON or text, but an absent key gives NULL and revision 0. */
int records_find_json(struct records *r, json_t **ret, int64_t *ret_revision, struct error *err, const char *format, ...)
        __attribute__((format(printf, 5, 6)));
int records_find_text(struct records *r, char **ret, int64_t *ret_revision, struct error *err, const char *format, ...)
        __attribute__((format(printf, 5, 6)));

void txn_put_json(struct store_txn *t, json_t *stolen, const char *format, ...) __attribute__((format(printf, 3, 4)));
void txn_put_text(struct store_txn *t, const char *text, const char *format, ...) __attribute__((format(printf, 3, 4)));
void txn_delete(struct store_txn *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void txn_expect(struct store_txn *t, int64_t revision, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline void cleanup_store_txn(struct store_txn **t)
{
        store_txn_free(*t);
}
#define CLEANUP_TXN CLEANUP(cleanup_store_txn)

/* Commits; a conflict is RECORDS_AGAIN. */
int records_commit(struct records *r, struct store_txn *t, struct error *err);

/* Calls `fn` for each key with the prefix, in order, reading in pages; stops at the first negative result, and with 0 at
 * a positive one. */
int records_scan(struct records *r, const char *prefix, const char *after,
                 int (*fn)(void *data, const struct store_value *v, struct error *err), void *data, struct error *err);

/* The part of a key after its last "/". */
const char *key_tail(const char *key);

/* "" and JSON null are told apart: absent becomes NULL. */
char *json_dup(const json_t *object, const char *key);
json_t *json_from_list(char *const *list);
char **json_to_list(const json_t *array);

/* Sealed when the records have a secret: for values that must not lie in the store in clear. `stolen` may be NULL. */
json_t *records_seal(struct records *r, const char *context, json_t *stolen);
int records_unseal(struct records *r, const char *context, const json_t *sealed, json_t **ret, struct error *err);

/* templates.c */
json_t *template_to_json(const struct template_record *t);
struct template_record *template_from_json(const json_t *j);
/* A page of an index whose keys end in "<age>/<id>": the IDs. */
int index_page(struct records *r, const char *prefix, const struct list_cursor *after, size_t limit, char ***ret_ids,
               bool *ret_more, struct error *err);
/* As records_template_get(), deleted ones included, with the revision. */
int template_load(struct records *r, const char *id, struct template_record **ret, int64_t *ret_revision, struct error *err);
/* Frees the bare aliases that `t` holds / claims those that are free; adds to the transaction. */
int bare_release(struct records *r, struct store_txn *txn, const struct template_record *t, struct error *err);
int bare_claim(struct records *r, struct store_txn *txn, const struct template_record *t, struct error *err);
/* Who holds a bare alias: a public template of a system team, or NULL (also when a row is left of one that no longer is). */
int bare_holder(struct records *r, const char *alias, struct template_record **ret, int64_t *ret_revision, struct error *err);

/* builds.c */
json_t *build_to_json(struct records *r, const struct build_record *b);
int build_load(struct records *r, const char *id, struct build_record **ret, int64_t *ret_revision, struct error *err);
/* The waiting and building builds of a team (NULL: of all) and a template (NULL: of all). Freed with build_records_free(). */
int builds_active(struct records *r, const char *team_id, const char *template_id, struct build_record ***ret, size_t *count,
                  struct error *err);
/* Ends a build with an error for callers that hold the lock: one attempt. A no-op where `event` does not move the build. */
int build_fail_locked(struct records *r, const char *id, enum build_event event, const char *reason, const char *step, struct error *err);
