/* Registering a build (template-api 4.1): which template it belongs to, whether the team may have one more, and one
 * transaction that makes it all. Waiting builds that it supersedes are failed after it: a crash in between leaves them waiting,
 * which the 40-minute rule ends.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "store/internal.h"

#define VCPUS_MAX 32

struct registration {
        struct records *records;
        const struct team *team;
        const struct build_request *request;
        struct template_record *template; /* new or existing */
        int64_t revision;                 /* 0: the template is new */
        bool new_alias;
        int64_t alias_revision;           /* of the alias row, which may be stale */
        struct build_record *build;
        struct build_record **active; /* of the team */
        size_t active_count;
};

static void registration_free(struct registration *g)
{
        template_record_free(g->template);
        build_record_free(g->build);
        build_records_free(g->active, g->active_count);
}

int team_check_resources(const struct team *t, unsigned vcpus, unsigned memory_mb, struct error *err)
{
        if (vcpus > VCPUS_MAX)
                return error_set(err, ERROR_INVALID, "CPU count must be at most %d", VCPUS_MAX);
        if (vcpus != 1 && vcpus % 2 != 0)
                return error_set(err, ERROR_INVALID, "CPU count must be 1 or an even number");
        if (vcpus > t->max_vcpus)
                return error_set(err, ERROR_INVALID, "CPU count can't be higher than %u (the limit of your team)", t->max_vcpus);
        if (memory_mb % 2 != 0)
                return error_set(err, ERROR_INVALID, "Memory must be divisible by 2");
        if (memory_mb > t->max_memory_mb)
                return error_set(err, ERROR_INVALID, "Memory can't be higher than %u MiB (the limit of your team)", t->max_memory_mb);
        return 0;
}

/* A name in the form of an ID: the team's own template is rebuilt, anybody else's and deleted ones are refused (design 9). */
static int find_by_id(struct registration *g, struct error *err)
{
        const char *alias = g->request->alias;
        int x = template_load(g->records, alias, &g->template, &g->revision, err);

        if (x < 0)
                return x == -ENOENT ? 0 : x;
        if (g->template->deleted || !streq(g->template->team_id, g->team->id))
                return error_set(err, ERROR_CONFLICT, "Alias '%s' is already used", alias);
        return 0;
}

static int find_by_alias(struct registration *g, struct error *err)
{
        CLEANUP_FREE char *id = NULL;
        int x = records_find_text(g->records, &id, &g->alias_revision, err, "alias/%s/%s", g->team->slug, g->request->alias);

        if (x < 0 || !id)
                return x;
        x = template_load(g->records, id, &g->template, &g->revision, err);
        if (x == 0 && g->template->deleted)
                return error_set(err, ERROR_NOT_FOUND, "Template '%s' has been deleted and cannot be rebuilt", id);
        return x;
}

static struct template_record *new_template(const struct registration *g, int64_t now)
{
        struct template_record *t = xcalloc(1, sizeof(*t));

        t->id = xcalloc(1, TEMPLATE_ID_LEN + 1);
        random_id(t->id, TEMPLATE_ID_LEN);
        t->team_id = xstrdup(g->team->id);
        t->aliases = g->request->alias ? name_list_add(NULL, g->request->alias) : xcalloc(1, sizeof(char *));
        t->snapshot = g->request->sandbox_id != NULL;
        t->created_ns = now;
        return t;
}

static int check_kind(const struct registration *g, struct error *err)
{
        if (!g->template || g->template->snapshot == (g->request->sandbox_id != NULL))
                return 0;
        return error_set(err, ERROR_CONFLICT, g->template->snapshot ?
                         "'%s' is the name of a snapshot of a sandbox: choose another name, or delete the snapshot" :
                         "'%s' is the name of a template that is built: choose another name for the snapshot", g->request->alias);
}

static int find_template(struct registration *g, struct error *err)
{
        if (!g->request->alias)
                return 0;
        int x = name_is_template_id(g->request->alias) ? find_by_id(g, err) : 0;

        if (x == 0 && !g->template) {
                g->new_alias = true;
                x = find_by_alias(g, err);
        }
        if (x == 0 && g->template)
                g->new_alias = false;
        return x < 0 ? x : check_kind(g, err);
}

static bool is_superseded(const struct registration *g, const struct build_record *b)
{
        return g->template && streq(b->template_id, g->template->id) && name_lists_overlap(b->tags, (char *const *)g->request->tags);
}

static int check_limit(struct registration *g, struct error *err)
{
        size_t counted = 0;
        int x = builds_active(g->records, g->team->id, NULL, &g->active, &g->active_count, err);

        if (x < 0)
                return x;
        for (size_t i = 0; i < g->active_count; i++)
                counted += !is_superseded(g, g->active[i]);
        if (counted >= g->team->max_concurrent_builds)
                return error_set(err, ERROR_LIMIT,
                                 "you have reached the maximum number of concurrent template builds (%u); wait until one ends, or have "
                                 "the limit raised with 'vmon admin set-limits'",
                                 g->team->max_concurrent_builds);
        return g->request->sandbox_id ? 0 : team_check_resources(g->team, g->request->vcpus, g->request->memory_mb, err);
}

static struct build_record *new_build(const struct registration *g, int64_t now)
{
        struct build_record *b = xcalloc(1, sizeof(*b));

        b->id = xcalloc(1, UUID_LEN + 1);
        random_uuid(b->id);
        b->template_id = xstrdup(g->template->id);
        b->tags = name_list_copy((char *const *)g->request->tags);
        b->vcpus = g->request->vcpus;
        b->memory_mb = g->request->memory_mb;
        b->disk_mb = g->request->sandbox_id ? g->request->disk_mb : g->team->max_disk_mb;
        b->created_ns = now;
        b->sandbox_id = xstrdup_or_null(g->request->sandbox_id);
        if (b->sandbox_id) {
                b->state = BUILD_BUILDING;
                b->started_ns = now;
        }
        b->envd_version = xstrdup("");
        return b;
}

static int commit_registration(struct registration *g, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        struct template_record *t = g->template;
        char age[17];
        int x;

        txn_expect(txn, g->revision, "template/%s", t->id);
        if (g->revision == 0) {
                age_text(t->created_ns, age);
                txn_put_text(txn, "", "team-template/%s/%s/%s", t->team_id, age, t->id);
        }
        if (g->new_alias) {
                txn_expect(txn, g->alias_revision, "alias/%s/%s", g->team->slug, g->request->alias);
                txn_put_text(txn, t->id, "alias/%s/%s", g->team->slug, g->request->alias);
        }
        age_text(g->build->created_ns, age);
        txn_put_json(txn, template_to_json(t), "template/%s", t->id);
        txn_put_json(txn, build_to_json(g->records, g->build), "build/%s", g->build->id);
        txn_put_text(txn, "", "template-build/%s/%s/%s", t->id, age, g->build->id);
        txn_put_text(txn, t->id, "active/%s/%s", t->team_id, g->build->id);
        x = records_commit(g->records, txn, err);
        return x;
}

static int supersede(struct registration *g, struct error *err)
{
        for (size_t i = 0; i < g->active_count; i++) {
                struct build_record *b = g->active[i];
                int x = 0;

                if (is_superseded(g, b))
                        do
                                x = build_fail_locked(g->records, b->id, BUILD_EVENT_SUPERSEDE, BUILD_REASON_SUPERSEDED, NULL, err);
                        while (x == RECORDS_AGAIN);
                if (x < 0)
                        return x;
        }
        return 0;
}

static int register_once(struct registration *g, struct template_record **ret_template, struct build_record **ret_build,
                         struct error *err)
{
        int64_t now = records_now(g->records);
        int x = find_template(g, err);

        if (x == 0)
                x = check_limit(g, err);
        if (x < 0)
                return x;
        if (!g->template)
                g->template = new_template(g, now);
        g->build = new_build(g, now);
        g->template->build_count++;
        g->template->updated_ns = now;
        if (name_list_has(g->build->tags, NAME_TAG_DEFAULT)) {
                free(g->template->latest_default);
                g->template->latest_default = xstrdup(g->build->id);
        }
        x = commit_registration(g, err);
        if (x == 0)
                x = supersede(g, err);
        if (x < 0)
                return x;
        *ret_template = STEAL(g->template);
        *ret_build = STEAL(g->build);
        return 0;
}

static int register_attempt(struct records *r, const struct team *team, const struct build_request *q,
                            struct template_record **ret_template, struct build_record **ret_build, struct error *err)
{
        CLEANUP(registration_free) struct registration g = { .records = r, .team = team, .request = q };

        return register_once(&g, ret_template, ret_build, err);
}

int records_build_register(struct records *r, const struct team *team, const struct build_request *q,
                           struct template_record **ret_template, struct build_record **ret_build, struct error *err)
{
        return records_retry(r, err, register_attempt(r, team, q, ret_template, ret_build, err));
}
