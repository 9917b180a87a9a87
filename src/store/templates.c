/* Templates: the record, its names, publishing, deletion, lists.
 *
 * A deleted template keeps its record for ever: IDs are never used again (template-api 16.3). Its aliases are free in
 * the transaction that marks it; tags become unreachable in it too, since resolution asks the template first, and are
 * removed after it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/internal.h"

void template_record_free(struct template_record *t)
{
        if (!t)
                return;
        free(t->id);
        free(t->team_id);
        name_list_free(t->aliases);
        free(t->latest_ready);
        free(t->latest_default);
        free(t);
}

void template_records_free(struct template_record **list, size_t count)
{
        for (size_t i = 0; i < count; i++)
                template_record_free(list[i]);
        free(list);
}

json_t *template_to_json(const struct template_record *t)
{
        json_t *j = json_pack("{s:s, s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:i}", "id", t->id, "team", t->team_id, "public",
                              t->public_, "deleted", t->deleted, "snapshot", t->snapshot, "created", (json_int_t)t->created_ns,
                              "updated", (json_int_t)t->updated_ns, "spawned", (json_int_t)t->last_spawned_ns, "spawns",
                              (json_int_t)t->spawn_count, "builds", t->build_count);

        json_object_set_new(j, "aliases", json_from_list(t->aliases));
        json_put_str(j, "latest_ready", t->latest_ready);
        json_put_str(j, "latest_default", t->latest_default);
        return j;
}

struct template_record *template_from_json(const json_t *j)
{
        struct template_record *t = xcalloc(1, sizeof(*t));

        t->id = json_dup(j, "id");
        t->team_id = json_dup(j, "team");
        t->public_ = json_bool(j, "public", false);
        t->deleted = json_bool(j, "deleted", false);
        t->snapshot = json_bool(j, "snapshot", false);
        t->created_ns = json_int(j, "created", 0);
        t->updated_ns = json_int(j, "updated", 0);
        t->last_spawned_ns = json_int(j, "spawned", 0);
        t->spawn_count = json_int(j, "spawns", 0);
        t->build_count = (int)json_int(j, "builds", 0);
        t->aliases = json_to_list(json_object_get(j, "aliases"));
        t->latest_ready = json_dup(j, "latest_ready");
        t->latest_default = json_dup(j, "latest_default");
        return t;
}

int template_load(struct records *r, const char *id, struct template_record **ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        int x = records_find_json(r, &j, ret_revision, err, "template/%s", id);

        if (x < 0)
                return x;
        if (!j)
                return error_set(err, ERROR_NOT_FOUND, "template '%s' not found", id);
        *ret = template_from_json(j);
        return 0;
}

int records_template_get(struct records *r, const char *id, struct template_record **ret, struct error *err)
{
        struct template_record *t;
        int x = template_load(r, id, &t, NULL, err);

        if (x == 0 && t->deleted) {
                template_record_free(t);
                return error_set(err, ERROR_NOT_FOUND, "template '%s' not found", id);
        }
        if (x == 0)
                *ret = t;
        return x;
}

int bare_holder(struct records *r, const char *alias, struct template_record **ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_FREE char *id = NULL;
        struct team *team = NULL;
        int x = records_find_text(r, &id, ret_revision, err, "bare/%s", alias);

        *ret = NULL;
        if (x < 0 || !id)
                return x;
        x = template_load(r, id, &t, NULL, err);
        if (x == 0 && t->public_ && !t->deleted)
                x = records_team_get(r, t->team_id, &team, err);
        if (team && team->system)
                *ret = STEAL(t);
        team_free(team);
        return x == -ENOENT ? 0 : x;
}

int bare_claim(struct records *r, struct store_txn *txn, const struct template_record *t, struct error *err)
{
        for (char **alias = t->aliases; *alias; alias++) {
                struct template_record *holder;
                int64_t revision;
                int x = bare_holder(r, *alias, &holder, &revision, err);

                if (x < 0)
                        return x;
                if (!holder) {
                        txn_expect(txn, revision, "bare/%s", *alias);
                        txn_put_text(txn, t->id, "bare/%s", *alias);
                }
                template_record_free(holder);
        }
        return 0;
}

int bare_release(struct records *r, struct store_txn *txn, const struct template_record *t, struct error *err)
{
        for (char **alias = t->aliases; *alias; alias++) {
                CLEANUP_FREE char *id = NULL;
                int64_t revision;
                int x = records_find_text(r, &id, &revision, err, "bare/%s", *alias);

                if (x < 0)
                        return x;
                if (streq(id, t->id)) {
                        txn_expect(txn, revision, "bare/%s", *alias);
                        txn_delete(txn, "bare/%s", *alias);
                }
        }
        return 0;
}

int records_template_names(struct records *r, const struct template_record *t, char ***ret, struct error *err)
{
        struct team *team;
        char **names = NULL;
        int x = records_team_get(r, t->team_id, &team, err);

        for (char **alias = t->aliases; x == 0 && *alias; alias++) {
                CLEANUP_FREE char *name = xasprintf("%s/%s", team->slug, *alias);

                names = name_list_add(names, name);
        }
        for (char **alias = t->aliases; x == 0 && *alias; alias++) {
                struct template_record *holder = NULL;

                x = bare_holder(r, *alias, &holder, NULL, err);
                if (holder && streq(holder->id, t->id))
                        names = name_list_add(names, *alias);
                template_record_free(holder);
        }
        if (x < 0) {
                name_list_free(names);
                return x;
        }
        team_free(team);
        *ret = names ? names : name_list_copy(NULL);
        return 0;
}

static int publish_once(struct records *r, const char *id, bool public_, struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        struct team *team = NULL;
        int64_t revision;
        int x = template_load(r, id, &t, &revision, err);

        if (x == 0 && t->deleted)
                return error_set(err, ERROR_NOT_FOUND, "template '%s' not found", id);
        if (x == 0)
                x = records_team_get(r, t->team_id, &team, err);
        if (x == 0 && !public_)
                x = bare_release(r, txn, t, err);
        else if (x == 0 && team->system)
                x = bare_claim(r, txn, t, err);
        team_free(team);
        if (x < 0)
                return x;
        t->public_ = public_;
        t->updated_ns = records_now(r);
        txn_expect(txn, revision, "template/%s", id);
        txn_put_json(txn, template_to_json(t), "template/%s", id);
        return records_commit(r, txn, err);
}

int records_template_publish(struct records *r, const char *id, bool public_, struct error *err)
{
        return records_retry(r, err, publish_once(r, id, public_, err));
}

static int spawned_once(struct records *r, const char *id, struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        int64_t revision;
        int x = template_load(r, id, &t, &revision, err);

        if (x < 0)
                return x;
        t->spawn_count++;
        t->last_spawned_ns = records_now(r);
        txn_expect(txn, revision, "template/%s", id);
        txn_put_json(txn, template_to_json(t), "template/%s", id);
        return records_commit(r, txn, err);
}

int records_template_spawned(struct records *r, const char *id, struct error *err)
{
        return records_retry(r, err, spawned_once(r, id, err));
}

static int delete_aliases(struct records *r, struct store_txn *txn, struct template_record *t, struct error *err)
{
        struct team *team;
        int x = bare_release(r, txn, t, err);

        if (x >= 0)
                x = records_team_get(r, t->team_id, &team, err);
        if (x < 0)
                return x;
        for (char **alias = t->aliases; *alias; alias++)
                txn_delete(txn, "alias/%s/%s", team->slug, *alias);
        team_free(team);
        return 0;
}

static int delete_once(struct records *r, const char *id, struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        char age[17];
        int64_t revision;
        int x = template_load(r, id, &t, &revision, err);

        if (x >= 0 && t->deleted)
                return error_set(err, ERROR_NOT_FOUND, "template '%s' not found", id);
        if (x >= 0)
                x = delete_aliases(r, txn, t, err);
        if (x < 0)
                return x;
        age_text(t->created_ns, age);
        txn_delete(txn, "team-template/%s/%s/%s", t->team_id, age, id);
        t->deleted = true;
        t->updated_ns = records_now(r);
        name_list_free(t->aliases);
        t->aliases = name_list_copy(NULL);
        txn_expect(txn, revision, "template/%s", id);
        txn_put_json(txn, template_to_json(t), "template/%s", id);
        return records_commit(r, txn, err);
}

static int delete_tag_row(void *data, const struct store_value *v, struct error *err)
{
        return store_delete(((struct records *)data)->store, v->key, err);
}

/* What was running is failed here; the caller ends its VMs. */
static int fail_active(struct records *r, const struct template_record *t, char ***ret_builds, struct error *err)
{
        struct build_record **active;
        char **ids = name_list_copy(NULL);
        size_t count;
        int x = builds_active(r, t->team_id, t->id, &active, &count, err);

        if (x < 0) {
                name_list_free(ids);
                return x;
        }
        for (size_t i = 0; x == 0 && i < count; i++) {
                ids = name_list_add(ids, active[i]->id);
                x = records_build_fail(r, active[i]->id, BUILD_REASON_CANCELLED, NULL, err);
        }
        build_records_free(active, count);
        if (x < 0)
                name_list_free(ids);
        else
                *ret_builds = ids;
        return x;
}

int records_template_delete(struct records *r, const char *id, char ***ret_builds, struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_FREE char *prefix = xasprintf("tag/%s/", id);
        int x = records_retry(r, err, delete_once(r, id, err));

        if (x >= 0)
                x = template_load(r, id, &t, NULL, err);
        if (x >= 0)
                x = records_scan(r, prefix, NULL, delete_tag_row, r, err);
        return x < 0 ? x : fail_active(r, t, ret_builds, err);
}

/* A page of an index whose keys end in "<age>/<id>". */
int index_page(struct records *r, const char *prefix, const struct list_cursor *after, size_t limit, char ***ret_ids,
               bool *ret_more, struct error *err)
{
        CLEANUP_FREE char *start = NULL;
        struct store_value *values;
        char age[17], **ids = name_list_copy(NULL);
        size_t count;
        int x;

        if (after) {
                age_text(after->time_ns, age);
                start = xasprintf("%s%s/%s", prefix, age, after->id);
        }
        x = store_range(r->store, prefix, start, limit + 1, &values, &count, err);
        if (x < 0) {
                name_list_free(ids);
                return x;
        }
        for (size_t i = 0; i < count && i < limit; i++)
                ids = name_list_add(ids, key_tail(values[i].key));
        *ret_more = count > limit;
        *ret_ids = ids;
        store_values_free(values, count);
        return 0;
}

int records_template_list(struct records *r, const char *team_id, const struct list_cursor *after, size_t limit,
                          struct template_record ***ret, size_t *ret_count, bool *ret_more, struct error *err)
{
        CLEANUP_FREE char *prefix = xasprintf("team-template/%s/", team_id);
        struct template_record **list;
        char **ids;
        size_t n = 0;
        int x = index_page(r, prefix, after, limit, &ids, ret_more, err);

        if (x < 0)
                return x;
        list = xcalloc(name_list_len(ids) + 1, sizeof(struct template_record *));
        for (size_t i = 0; x == 0 && ids[i]; i++) {
                x = records_template_get(r, ids[i], &list[n], err);
                if (x == 0)
                        n++;
                if (x == -ENOENT) /* deleted since the index was read */
                        x = 0;
        }
        name_list_free(ids);
        if (x < 0) {
                template_records_free(list, n);
                return x;
        }
        *ret = list;
        *ret_count = n;
        return 0;
}

static int count_one(void *data, const struct store_value *v, struct error *err)
{
        (void)v;
        (void)err;
        ++*(size_t *)data;
        return 0;
}

int records_template_count(struct records *r, const char *team_id, size_t *ret, struct error *err)
{
        CLEANUP_FREE char *prefix = xasprintf("team-template/%s/", team_id);
        size_t count = 0;
        int x = records_scan(r, prefix, NULL, count_one, &count, err);

        if (x == 0)
                *ret = count;
        return x;
}
