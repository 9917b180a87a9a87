/* Teams. A team's ID never changes, its slug neither: it is in the names of templates and in paths of uploads. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "store/internal.h"

void team_free(struct team *t)
{
        if (!t)
                return;
        free(t->id);
        free(t->name);
        free(t->slug);
        free(t->blocked_reason);
        free(t);
}

void team_list_free(struct team **teams, size_t count)
{
        for (size_t i = 0; i < count; i++)
                team_free(teams[i]);
        free(teams);
}

static json_t *team_to_json(const struct team *t)
{
        json_t *j = json_pack("{s:s, s:s, s:s, s:b, s:b}", "id", t->id, "name", t->name, "slug", t->slug, "system", t->system,
                              "blocked", t->blocked);

        json_put_str(j, "blocked_reason", t->blocked_reason);
        json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "max_vcpus", (json_int_t)t->max_vcpus,
                                            "max_memory_mb", (json_int_t)t->max_memory_mb, "max_disk_mb", (json_int_t)t->max_disk_mb,
                                            "max_concurrent_builds", (json_int_t)t->max_concurrent_builds, "max_sandboxes",
                                            (json_int_t)t->max_sandboxes, "max_sandbox_hours", (json_int_t)t->max_sandbox_hours));
        json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:I}", "max_context_mb", (json_int_t)t->max_context_mb, "max_contexts_mb",
                                            (json_int_t)t->max_contexts_mb, "max_log_mb", (json_int_t)t->max_log_mb,
                                            "max_requests_per_second", (json_int_t)t->max_requests_per_second));
        return j;
}

static struct team *team_from_json(const json_t *j)
{
        struct team *t = xcalloc(1, sizeof(*t));

        team_defaults(t);
        t->id = json_dup(j, "id");
        t->name = json_dup(j, "name");
        t->slug = json_dup(j, "slug");
        t->system = json_bool(j, "system", false);
        t->blocked = json_bool(j, "blocked", false);
        t->blocked_reason = json_dup(j, "blocked_reason");
        t->max_vcpus = (unsigned)json_int(j, "max_vcpus", t->max_vcpus);
        t->max_memory_mb = (unsigned)json_int(j, "max_memory_mb", t->max_memory_mb);
        t->max_disk_mb = (unsigned)json_int(j, "max_disk_mb", t->max_disk_mb);
        t->max_concurrent_builds = (unsigned)json_int(j, "max_concurrent_builds", t->max_concurrent_builds);
        t->max_sandboxes = (unsigned)json_int(j, "max_sandboxes", t->max_sandboxes);
        t->max_sandbox_hours = (unsigned)json_int(j, "max_sandbox_hours", t->max_sandbox_hours);
        t->max_context_mb = (unsigned)json_int(j, "max_context_mb", t->max_context_mb);
        t->max_contexts_mb = (unsigned)json_int(j, "max_contexts_mb", t->max_contexts_mb);
        t->max_log_mb = (unsigned)json_int(j, "max_log_mb", t->max_log_mb);
        t->max_requests_per_second = (unsigned)json_int(j, "max_requests_per_second", t->max_requests_per_second);
        return t;
}

void team_defaults(struct team *t)
{
        t->max_vcpus = 8;
        t->max_memory_mb = 8192;
        t->max_disk_mb = 10240;
        t->max_concurrent_builds = 20;
        t->max_sandboxes = 100;
        t->max_sandbox_hours = 24;
        t->max_context_mb = 16384;
        t->max_contexts_mb = 51200;
        t->max_log_mb = RECORDS_LOG_MAX_BYTES >> 20;
        t->max_requests_per_second = 0;
}

static int team_create_once(struct records *r, const struct team *t, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        CLEANUP_FREE char *holder = NULL;
        int x = records_find_text(r, &holder, NULL, err, "team-slug/%s", t->slug);

        if (x < 0)
                return x;
        if (holder)
                return error_set(err, ERROR_CONFLICT, "a team with the slug '%s' exists already; choose another with --slug", t->slug);
        txn_expect(txn, 0, "team-slug/%s", t->slug);
        txn_expect(txn, 0, "team/%s", t->id);
        txn_put_text(txn, t->id, "team-slug/%s", t->slug);
        txn_put_json(txn, team_to_json(t), "team/%s", t->id);
        return records_commit(r, txn, err);
}

int records_team_create(struct records *r, const struct team *t, struct error *err)
{
        if (!name_is_alias(t->slug))
                return error_set(err, ERROR_INVALID, "invalid slug '%s': use a-z, 0-9, - and _, at most %d characters", t->slug,
                                 NAME_PART_MAX);
        if (!uuid_valid(t->id))
                return error_set(err, ERROR_INVALID, "a team's ID must be a UUID");
        return records_retry(r, err, team_create_once(r, t, err));
}

static int team_load(struct records *r, const char *id, struct team **ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        int x = records_find_json(r, &j, ret_revision, err, "team/%s", id);

        if (x < 0)
                return x;
        if (!j)
                return error_set(err, ERROR_NOT_FOUND, "team '%s' not found", id);
        *ret = team_from_json(j);
        return 0;
}

int records_team_get(struct records *r, const char *id, struct team **ret, struct error *err)
{
        return team_load(r, id, ret, NULL, err);
}

int records_team_by_slug(struct records *r, const char *slug, struct team **ret, struct error *err)
{
        CLEANUP_FREE char *id = NULL;
        int x = records_find_text(r, &id, NULL, err, "team-slug/%s", slug);

        if (x < 0)
                return x;
        return id ? team_load(r, id, ret, NULL, err) : error_set(err, ERROR_NOT_FOUND, "team '%s' not found", slug);
}

/* Gaining or losing the system flag moves the bare aliases of the team's public templates (template-api 15.6). Each template is a
 * transaction of its own: a row that is not moved yet is harmless, since bare_holder() asks for the flag. */
static int move_bare(struct records *r, const struct template_record *t, bool claim, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        int x = claim ? bare_claim(r, txn, t, err) : bare_release(r, txn, t, err);

        return x < 0 ? x : records_commit(r, txn, err);
}

struct flag_change {
        struct records *records;
        bool claim;
};

static int change_template(void *data, const struct store_value *v, struct error *err)
{
        struct flag_change *c = data;
        struct template_record *t;
        int x = template_load(c->records, key_tail(v->key), &t, NULL, err);

        if (x == 0 && t->public_)
                x = records_retry(c->records, err, move_bare(c->records, t, c->claim, err));
        if (x == 0)
                template_record_free(t);
        return x;
}

static int team_update_once(struct records *r, const struct team *t, bool *ret_was_system, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        struct team *old;
        int64_t revision;
        int x = team_load(r, t->id, &old, &revision, err);

        if (x < 0)
                return x;
        *ret_was_system = old->system;
        if (!streq(old->slug, t->slug))
                x = error_set(err, ERROR_INVALID, "a team's slug cannot be changed");
        team_free(old);
        if (x < 0)
                return x;
        txn_expect(txn, revision, "team/%s", t->id);
        txn_put_json(txn, team_to_json(t), "team/%s", t->id);
        return records_commit(r, txn, err);
}

int records_team_update(struct records *r, const struct team *t, struct error *err)
{
        struct flag_change c = { .records = r, .claim = t->system };
        CLEANUP_FREE char *prefix = NULL;
        bool was_system = false;
        int x = records_retry(r, err, team_update_once(r, t, &was_system, err));

        if (x < 0 || was_system == t->system)
                return x;
        prefix = xasprintf("team-template/%s/", t->id);
        return records_scan(r, prefix, NULL, change_template, &c, err);
}

struct team_collect {
        struct team **teams;
        size_t count;
};

static int collect_team(void *data, const struct store_value *v, struct error *err)
{
        struct team_collect *c = data;
        CLEANUP_JSON json_t *j = NULL;
        int x = json_parse(v->data, v->len, &j, err);

        if (x < 0)
                return x;
        c->teams = xreallocarray(c->teams, c->count + 1, sizeof(struct team *));
        c->teams[c->count++] = team_from_json(j);
        return 0;
}

static int by_slug(const void *a, const void *b)
{
        return strcmp((*(struct team *const *)a)->slug, (*(struct team *const *)b)->slug);
}

int records_team_list(struct records *r, struct team ***ret, size_t *count, struct error *err)
{
        struct team_collect c = {};
        int x = records_scan(r, "team/", NULL, collect_team, &c, err);

        if (x < 0) {
                team_list_free(c.teams, c.count);
                return x;
        }
        if (c.count > 1)
                qsort(c.teams, c.count, sizeof(*c.teams), by_slug);
        *ret = c.teams;
        *count = c.count;
        return 0;
}

static int stop_at_first(void *data, const struct store_value *v, struct error *err)
{
        (void)v;
        (void)err;
        *(bool *)data = true;
        return 1;
}

/* The keys go first: after a crash in between the team is there, without keys, and can be deleted again. */
int records_team_delete(struct records *r, const char *id, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        CLEANUP_FREE char *prefix = xasprintf("team-template/%s/", id);
        bool has_templates = false;
        struct team *t;
        int x = team_load(r, id, &t, NULL, err);

        if (x < 0)
                return x;
        x = records_scan(r, prefix, NULL, stop_at_first, &has_templates, err);
        if (x == 0 && has_templates)
                x = error_set(err, ERROR_CONFLICT, "team '%s' still has templates; delete them first", t->slug);
        if (x == 0)
                x = records_team_keys_revoke(r, id, err);
        if (x == 0) {
                txn_delete(txn, "team-slug/%s", t->slug);
                txn_delete(txn, "team/%s", id);
                x = records_retry(r, err, records_commit(r, txn, err));
        }
        team_free(t);
        return x;
}
