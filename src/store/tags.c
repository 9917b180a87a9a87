/* Tags of templates: rows tag/<template>/<tag> that name a ready build. Builds move their own tags when they become ready
 * (builds.c); here are the moves by hand (template-api 4.11).
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "store/internal.h"

void tag_records_free(struct tag_record *tags, size_t count)
{
        for (size_t i = 0; i < count; i++) {
                free(tags[i].tag);
                free(tags[i].build_id);
        }
        free(tags);
}

/* The build that `from` names, with the tag's row as a condition of `txn`: it must still do so when the tags move. */
static int source_build(struct records *r, struct store_txn *txn, const char *template_id, const char *from, char **ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        int64_t revision;
        int x;

        if (uuid_valid(from)) {
                *ret = xstrdup(from);
                return 0;
        }
        x = records_find_json(r, &j, &revision, err, "tag/%s/%s", template_id, from);
        if (x < 0)
                return x;
        if (!j)
                return error_set(err, ERROR_NOT_FOUND, "tag '%s' does not exist for template '%s'", from, template_id);
        txn_expect(txn, revision, "tag/%s/%s", template_id, from);
        *ret = json_dup(j, "build");
        return 0;
}

/* `from`: a tag or a build ID. */
static int assign_once(struct records *r, const char *template_id, const char *from, char *const *tags, char **ret_build_id,
                       struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        CLEANUP_FREE char *build_id = NULL;
        int64_t now = records_now(r), revision;
        int x = template_load(r, template_id, &t, &revision, err);

        if (x >= 0 && t->deleted)
                return error_set(err, ERROR_NOT_FOUND, "template '%s' not found", template_id);
        if (x >= 0)
                x = source_build(r, txn, template_id, from, &build_id, err);
        if (x >= 0)
                x = build_load(r, build_id, &b, NULL, err);
        if (x < 0)
                return x;
        if (!streq(b->template_id, template_id) || b->state != BUILD_READY)
                return error_set(err, ERROR_NOT_FOUND, "build '%s' is no ready build of template '%s'", build_id, template_id);
        /* The template as condition: none of its tags may come back after a delete. */
        txn_expect(txn, revision, "template/%s", template_id);
        for (; *tags; tags++)
                txn_put_json(txn, json_pack("{s:s, s:I}", "build", build_id, "created", (json_int_t)now), "tag/%s/%s", template_id, *tags);
        x = records_commit(r, txn, err);
        if (x >= 0)
                *ret_build_id = STEAL(build_id);
        return x;
}

int records_tags_copy(struct records *r, const char *template_id, const char *from, char *const *tags, char **ret_build_id,
                      struct error *err)
{
        return records_retry(r, err, assign_once(r, template_id, from, tags, ret_build_id, err));
}

int records_tags_assign(struct records *r, const char *template_id, const char *build_id, char *const *tags, struct error *err)
{
        CLEANUP_FREE char *id = NULL;

        return records_tags_copy(r, template_id, build_id, tags, &id, err);
}

int records_tags_delete(struct records *r, const char *template_id, char *const *tags, struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();

        for (; *tags; tags++)
                txn_delete(txn, "tag/%s/%s", template_id, *tags);
        return records_commit(r, txn, err);
}

struct tag_collect {
        struct tag_record *tags;
        size_t count;
};

static int collect_tag(void *data, const struct store_value *v, struct error *err)
{
        struct tag_collect *c = data;
        CLEANUP_JSON json_t *j = NULL;
        int x = json_parse(v->data, v->len, &j, err);

        if (x < 0)
                return x;
        c->tags = xreallocarray(c->tags, c->count + 1, sizeof(*c->tags));
        c->tags[c->count++] = (struct tag_record){ xstrdup(key_tail(v->key)), json_dup(j, "build"), json_int(j, "created", 0) };
        return 0;
}

int records_tags_list(struct records *r, const char *template_id, struct tag_record **ret, size_t *ret_count, struct error *err)
{
        CLEANUP_FREE char *prefix = xasprintf("tag/%s/", template_id);
        struct tag_collect c = {};
        int x = records_scan(r, prefix, NULL, collect_tag, &c, err);

        if (x < 0) {
                tag_records_free(c.tags, c.count);
                return x;
        }
        *ret = c.tags;
        *ret_count = c.count;
        return 0;
}
