/* Builds: the record, its moves through the states of build_state.h, and the index of what is active.
 *
 *   waiting   registered; not triggered yet
 *   building  triggered (queued or running); interrupted ones become error at the next start
 *   ready     artifacts durable; tags moved in the same transaction
 *   error     with a reason
 *
 * Everything that leaves "waiting or building" takes the row active/<team>/<build> away in the same transaction.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "store/internal.h"

void build_record_free(struct build_record *b)
{
        if (!b)
                return;
        free(b->id);
        free(b->template_id);
        name_list_free(b->tags);
        free(b->reason);
        free(b->reason_step);
        free(b->envd_version);
        free(b->default_user);
        free(b->workdir);
        free(b->context_user);
        free(b->context_workdir);
        json_decref(b->env);
        json_decref(b->image_env);
        free(b->start_cmd);
        free(b->ready_cmd);
        json_decref(b->start_context);
        free(b->node);
        free(b->sandbox_id);
        free(b);
}

void build_records_free(struct build_record **list, size_t count)
{
        for (size_t i = 0; i < count; i++)
                build_record_free(list[i]);
        free(list);
}

/* Environments may hold what users call secret (design 8.6): one sealed object. */
static json_t *sealed_part(struct records *r, const struct build_record *b)
{
        json_t *j = json_object();

        json_object_set(j, "env", b->env);
        json_object_set(j, "image_env", b->image_env);
        json_object_set(j, "start_context", b->start_context);
        return records_seal(r, b->id, j);
}

json_t *build_to_json(struct records *r, const struct build_record *b)
{
        json_t *j = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "id", b->id, "template", b->template_id, "state",
                              build_state_name(b->state), "vcpus", (json_int_t)b->vcpus, "memory_mb", (json_int_t)b->memory_mb, "disk_mb",
                              (json_int_t)b->disk_mb, "created", (json_int_t)b->created_ns, "started", (json_int_t)b->started_ns,
                              "finished", (json_int_t)b->finished_ns, "disk_bytes", (json_int_t)b->disk_bytes);

        json_object_set_new(j, "tags", json_from_list(b->tags));
        json_put_str(j, "reason", b->reason);
        json_put_str(j, "step", b->reason_step);
        json_put_str(j, "envd", b->envd_version);
        json_put_str(j, "user", b->default_user);
        json_put_str(j, "workdir", b->workdir);
        json_put_str(j, "context_user", b->context_user);
        json_put_str(j, "context_workdir", b->context_workdir);
        json_put_str(j, "start_cmd", b->start_cmd);
        json_put_str(j, "ready_cmd", b->ready_cmd);
        json_put_str(j, "node", b->node);
        json_put_str(j, "sandbox", b->sandbox_id);
        if (b->state == BUILD_READY)
                json_object_set_new(j, "sealed", sealed_part(r, b));
        return j;
}

static int unseal_part(struct records *r, const json_t *j, struct build_record *b, struct error *err)
{
        CLEANUP_JSON json_t *part = NULL;
        int x = records_unseal(r, b->id, json_object_get(j, "sealed"), &part, err);

        if (x < 0)
                return x;
        b->env = json_incref(json_object_get(part, "env"));
        b->image_env = json_incref(json_object_get(part, "image_env"));
        b->start_context = json_incref(json_object_get(part, "start_context"));
        return 0;
}

static int build_from_json(struct records *r, const json_t *j, bool whole, struct build_record **ret, struct error *err)
{
        struct build_record *b = xcalloc(1, sizeof(*b));
        int x;

        b->id = json_dup(j, "id");
        b->template_id = json_dup(j, "template");
        b->state = build_state_from(json_str(j, "state"));
        b->vcpus = (unsigned)json_int(j, "vcpus", 0);
        b->memory_mb = (unsigned)json_int(j, "memory_mb", 0);
        b->disk_mb = (unsigned)json_int(j, "disk_mb", 0);
        b->created_ns = json_int(j, "created", 0);
        b->started_ns = json_int(j, "started", 0);
        b->finished_ns = json_int(j, "finished", 0);
        b->disk_bytes = (uint64_t)json_int(j, "disk_bytes", 0);
        b->tags = json_to_list(json_object_get(j, "tags"));
        b->reason = json_dup(j, "reason");
        b->reason_step = json_dup(j, "step");
        b->envd_version = xstrdup(json_str(j, "envd") ? json_str(j, "envd") : "");
        b->default_user = json_dup(j, "user");
        b->workdir = json_dup(j, "workdir");
        b->context_user = json_dup(j, "context_user");
        b->context_workdir = json_dup(j, "context_workdir");
        b->start_cmd = json_dup(j, "start_cmd");
        b->ready_cmd = json_dup(j, "ready_cmd");
        b->node = json_dup(j, "node");
        b->sandbox_id = json_dup(j, "sandbox");
        x = whole ? unseal_part(r, j, b, err) : 0;
        if (x < 0)
                build_record_free(b);
        else
                *ret = b;
        return x;
}

static int load(struct records *r, const char *id, bool whole, struct build_record **ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        int x = records_find_json(r, &j, ret_revision, err, "build/%s", id);

        if (x < 0)
                return x;
        return j ? build_from_json(r, j, whole, ret, err) : error_set(err, ERROR_NOT_FOUND, "Build '%s' not found", id);
}

int build_load(struct records *r, const char *id, struct build_record **ret, int64_t *ret_revision, struct error *err)
{
        return load(r, id, true, ret, ret_revision, err);
}

int records_build_peek(struct records *r, const char *id, struct build_record **ret, struct error *err)
{
        return load(r, id, false, ret, NULL, err);
}

int records_build_get(struct records *r, const char *id, struct build_record **ret, struct error *err)
{
        return build_load(r, id, ret, NULL, err);
}

struct active_collect {
        struct records *records;
        const char *template_id; /* or NULL: all */
        struct build_record **builds;
        size_t count;
};

static int collect_active(void *data, const struct store_value *v, struct error *err)
{
        struct active_collect *c = data;
        struct build_record *b;
        int x;

        if (c->template_id && !streq(v->data, c->template_id))
                return 0;
        x = build_load(c->records, key_tail(v->key), &b, NULL, err);
        if (x < 0)
                return x == -ENOENT ? 0 : x;
        c->builds = xreallocarray(c->builds, c->count + 1, sizeof(struct build_record *));
        c->builds[c->count++] = b;
        return 0;
}

/* `team_id` NULL: of all teams. */
int builds_active(struct records *r, const char *team_id, const char *template_id, struct build_record ***ret, size_t *count,
                  struct error *err)
{
        struct active_collect c = { .records = r, .template_id = template_id };
        CLEANUP_FREE char *prefix = team_id ? xasprintf("active/%s/", team_id) : xstrdup("active/");
        int x = records_scan(r, prefix, NULL, collect_active, &c, err);

        if (x < 0) {
                build_records_free(c.builds, c.count);
                return x;
        }
        *ret = c.builds;
        *count = c.count;
        return 0;
}

int records_team_builds_active(struct records *r, const char *team_id, struct build_record ***ret, size_t *count, struct error *err)
{
        return builds_active(r, team_id, NULL, ret, count, err);
}

int records_builds_active(struct records *r, struct build_record ***ret, size_t *count, struct error *err)
{
        return builds_active(r, NULL, NULL, ret, count, err);
}

static int start_once(struct records *r, const char *id, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        int64_t revision, template_revision;
        int x = build_load(r, id, &b, &revision, err);

        if (x == 0)
                x = template_load(r, b->template_id, &t, &template_revision, err);
        if (x < 0)
                return x;
        if (!build_state_next(b->state, BUILD_EVENT_TRIGGER, &b->state))
                return error_set(err, ERROR_CONFLICT, "build is not in waiting state");
        if (t->deleted)
                return error_set(err, ERROR_NOT_FOUND, "Build '%s' not found: its template was deleted", id);
        b->started_ns = records_now(r);
        txn_expect(txn, revision, "build/%s", id);
        txn_expect(txn, template_revision, "template/%s", t->id); /* a delete ends the builds that it finds: none begins behind it */
        txn_put_json(txn, build_to_json(r, b), "build/%s", id);
        return records_commit(r, txn, err);
}

int records_build_start(struct records *r, const char *id, struct error *err)
{
        return records_retry(r, err, start_once(r, id, err));
}

int records_build_overlapping(struct records *r, const char *build_id, char ***ret_ids, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        struct build_record **active;
        char **ids = name_list_copy(NULL);
        size_t count;
        int x = build_load(r, build_id, &b, NULL, err);

        if (x == 0)
                x = template_load(r, b->template_id, &t, NULL, err);
        if (x == 0)
                x = builds_active(r, t->team_id, t->id, &active, &count, err);
        if (x < 0) {
                name_list_free(ids);
                return x;
        }
        for (size_t i = 0; i < count; i++)
                if (active[i]->state == BUILD_BUILDING && !streq(active[i]->id, build_id) &&
                    name_lists_overlap(active[i]->tags, b->tags))
                        ids = name_list_add(ids, active[i]->id);
        build_records_free(active, count);
        *ret_ids = ids;
        return 0;
}

/* What the pipeline reports, on top of what was registered. */
static void take_result(struct build_record *b, const struct build_record *result)
{
        struct build_record given = *result;

        b->envd_version = (free(b->envd_version), xstrdup(given.envd_version ? given.envd_version : ""));
        b->default_user = (free(b->default_user), xstrdup_or_null(given.default_user));
        b->workdir = (free(b->workdir), xstrdup_or_null(given.workdir));
        b->context_user = (free(b->context_user), xstrdup_or_null(given.context_user));
        b->context_workdir = (free(b->context_workdir), xstrdup_or_null(given.context_workdir));
        b->start_cmd = (free(b->start_cmd), xstrdup_or_null(given.start_cmd));
        b->ready_cmd = (free(b->ready_cmd), xstrdup_or_null(given.ready_cmd));
        b->node = (free(b->node), xstrdup_or_null(given.node));
        b->env = (json_decref(b->env), json_incref(given.env));
        b->image_env = (json_decref(b->image_env), json_incref(given.image_env));
        b->start_context = (json_decref(b->start_context), json_incref(given.start_context));
        b->disk_bytes = given.disk_bytes;
}

static int ready_commit(struct records *r, struct build_record *b, int64_t revision, struct template_record *t,
                        int64_t template_revision, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();

        for (char **tag = b->tags; *tag; tag++)
                txn_put_json(txn, json_pack("{s:s, s:I}", "build", b->id, "created", (json_int_t)b->finished_ns), "tag/%s/%s", t->id, *tag);
        t->updated_ns = b->finished_ns;
        free(t->latest_ready);
        t->latest_ready = xstrdup(b->id);
        txn_expect(txn, revision, "build/%s", b->id);
        txn_expect(txn, template_revision, "template/%s", t->id);
        txn_put_json(txn, build_to_json(r, b), "build/%s", b->id);
        txn_put_json(txn, template_to_json(t), "template/%s", t->id);
        txn_delete(txn, "active/%s/%s", t->team_id, b->id);
        return records_commit(r, txn, err);
}

static int ready_once(struct records *r, const struct build_record *result, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        int64_t revision, template_revision;
        int x = build_load(r, result->id, &b, &revision, err);

        if (x == 0)
                x = template_load(r, b->template_id, &t, &template_revision, err);
        if (x < 0)
                return x;
        if (!build_state_next(b->state, BUILD_EVENT_READY, &b->state))
                return error_set(err, ERROR_CONFLICT, "the build is no longer building");
        if (t->deleted)
                return error_set(err, ERROR_CONFLICT, "the build's template was deleted");
        take_result(b, result);
        b->finished_ns = records_now(r);
        return ready_commit(r, b, revision, t, template_revision, err);
}

int records_build_ready(struct records *r, const struct build_record *result, struct error *err)
{
        return records_retry(r, err, ready_once(r, result, err));
}

int build_fail_locked(struct records *r, const char *id, enum build_event event, const char *reason, const char *step, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        int64_t revision;
        int x = build_load(r, id, &b, &revision, err);

        if (x < 0 || !build_state_next(b->state, event, &b->state))
                return x;
        x = template_load(r, b->template_id, &t, NULL, err);
        if (x < 0)
                return x;
        b->finished_ns = records_now(r);
        b->reason = (free(b->reason), xstrdup(reason));
        b->reason_step = (free(b->reason_step), xstrdup_or_null(step));
        txn_expect(txn, revision, "build/%s", id);
        txn_put_json(txn, build_to_json(r, b), "build/%s", id);
        txn_delete(txn, "active/%s/%s", t->team_id, id);
        return records_commit(r, txn, err);
}

int records_build_fail(struct records *r, const char *id, const char *reason, const char *step, struct error *err)
{
        return records_retry(r, err, build_fail_locked(r, id, BUILD_EVENT_FAIL, reason, step, err));
}

/* Ends the active builds registered before `before_ns` that `event` moves; returns how many. */
static int fail_all(struct records *r, enum build_event event, int64_t before_ns, const char *reason, struct error *err)
{
        struct build_record **active;
        enum build_state to;
        size_t count;
        int x = builds_active(r, NULL, NULL, &active, &count, err), failed = 0;

        if (x < 0)
                return x;
        for (size_t i = 0; x == 0 && i < count; i++)
                if (active[i]->created_ns < before_ns && build_state_next(active[i]->state, event, &to)) {
                        x = records_retry(r, err, build_fail_locked(r, active[i]->id, event, reason, NULL, err));
                        failed++;
                }
        build_records_free(active, count);
        return x < 0 ? x : failed;
}

int records_builds_interrupted(struct records *r, const char *reason, struct error *err)
{
        return fail_all(r, BUILD_EVENT_INTERRUPT, INT64_MAX, reason, err);
}

/* A process that was killed while it deleted a template left its builds active. */
static int fail_orphans(struct records *r, struct error *err)
{
        struct build_record **active;
        size_t count;
        int x = builds_active(r, NULL, NULL, &active, &count, err), failed = 0;

        if (x < 0)
                return x;
        for (size_t i = 0; x == 0 && i < count; i++) {
                CLEANUP(cleanup_template) struct template_record *t = NULL;

                x = records_template_get(r, active[i]->template_id, &t, err);
                if (x == -ENOENT) {
                        x = records_build_fail(r, active[i]->id, BUILD_REASON_CANCELLED, NULL, err);
                        failed++;
                }
        }
        build_records_free(active, count);
        return x < 0 ? x : failed;
}

int records_builds_expire(struct records *r, int64_t before_ns, struct error *err)
{
        int orphans = fail_orphans(r, err), expired = orphans < 0 ? orphans : fail_all(r, BUILD_EVENT_EXPIRE, before_ns, BUILD_REASON_WAITED, err);

        return expired < 0 ? expired : orphans + expired;
}

int records_build_list(struct records *r, const char *template_id, const struct list_cursor *after, size_t limit,
                       struct build_record ***ret, size_t *ret_count, bool *ret_more, struct error *err)
{
        CLEANUP_FREE char *prefix = xasprintf("template-build/%s/", template_id);
        struct build_record **list;
        char **ids;
        size_t n = 0;
        int x = index_page(r, prefix, after, limit, &ids, ret_more, err);

        if (x < 0)
                return x;
        list = xcalloc(name_list_len(ids) + 1, sizeof(struct build_record *));
        for (; x == 0 && ids[n]; n++)
                if ((x = records_build_get(r, ids[n], &list[n], err)) < 0)
                        break;
        name_list_free(ids);
        if (x < 0) {
                build_records_free(list, n);
                return x;
        }
        *ret = list;
        *ret_count = n;
        return 0;
}
