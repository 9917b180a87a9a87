/* From a reference to a template and its build (template-api 15.3-15.5; design 9). An explicit namespace is looked up
 * only there. A bare name is an ID, else an alias in the caller's namespace, else a bare alias of a system team.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "store/internal.h"

static int by_alias(struct records *r, const char *slug, const char *alias, struct template_record **ret, struct error *err)
{
        CLEANUP_FREE char *id = NULL;
        int x = records_find_text(r, &id, NULL, err, "alias/%s/%s", slug, alias);

        if (x == 0 && id)
                x = records_template_get(r, id, ret, err);
        return x == -ENOENT ? 0 : x;
}

static int bare_lookup(struct records *r, const struct team *team, const char *alias, struct template_record **ret, struct error *err)
{
        int x = 0;

        if (name_is_template_id(alias))
                x = records_template_get(r, alias, ret, err);
        if (x == -ENOENT)
                x = 0;
        if (x == 0 && !*ret)
                x = by_alias(r, team->slug, alias, ret, err);
        if (x == 0 && !*ret)
                x = bare_holder(r, alias, ret, NULL, err);
        return x;
}

int records_template_find(struct records *r, const struct team *team, const struct name_ref *n, struct template_record **ret,
                          struct error *err)
{
        struct template_record *t = NULL;
        int x = n->namespace_ ? by_alias(r, n->namespace_, n->alias, &t, err) : bare_lookup(r, team, n->alias, &t, err);
        CLEANUP_FREE char *key = name_key(n);

        if (x < 0)
                return x;
        if (!t)
                return error_set(err, ERROR_NOT_FOUND, "template '%s' not found", key);
        *ret = t;
        return 0;
}

/* The build that a tag names, NULL when there is no such ready build. */
static int by_tag(struct records *r, const struct template_record *t, const char *tag, struct build_record **ret, struct error *err)
{
        CLEANUP_FREE char *id = NULL;
        CLEANUP_JSON json_t *j = NULL;
        struct build_record *b = NULL;
        int x = 0;

        if (uuid_valid(tag))
                id = xstrdup(tag);
        else if ((x = records_find_json(r, &j, NULL, err, "tag/%s/%s", t->id, tag)) == 0)
                id = json_dup(j, "build");
        if (x == 0 && id)
                x = records_build_get(r, id, &b, err);
        if (b && b->state == BUILD_READY && streq(b->template_id, t->id))
                *ret = STEAL(b);
        build_record_free(b);
        return x == -ENOENT ? 0 : x;
}

int records_build_find(struct records *r, const struct template_record *t, const struct name_ref *n, struct build_record **ret,
                       struct error *err)
{
        CLEANUP_FREE char *key = name_key(n);
        struct build_record *b = NULL;
        int x = by_tag(r, t, n->tag ? n->tag : NAME_TAG_DEFAULT, &b, err);

        if (x == 0 && !b && !n->tag && t->latest_ready)
                x = records_build_get(r, t->latest_ready, &b, err);
        if (x < 0)
                return x;
        if (!b)
                return error_set(err, ERROR_NOT_FOUND, "tag '%s' does not exist for template '%s'", n->tag ? n->tag : NAME_TAG_DEFAULT, key);
        *ret = b;
        return 0;
}

int records_build_of_tag(struct records *r, const struct template_record *t, const char *tag, struct build_record **ret, struct error *err)
{
        *ret = NULL;
        return by_tag(r, t, tag, ret, err);
}

int records_resolve(struct records *r, const struct team *team, const char *reference, struct template_record **ret_template,
                    struct build_record **ret_build, struct error *err)
{
        CLEANUP(name_ref_clear) struct name_ref n = {};
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_FREE char *key = NULL;
        int x = name_parse(reference, &n, err);

        if (x < 0)
                return error_wrap(err, x, "Invalid template reference");
        x = records_template_find(r, team, &n, &t, err);
        if (x < 0)
                return x;
        key = name_key(&n);
        if (!streq(t->team_id, team->id) && !t->public_)
                return error_set(err, ERROR_FORBIDDEN, "you don't have access to template '%s'", key);
        x = records_build_find(r, t, &n, ret_build, err);
        if (x == 0)
                *ret_template = STEAL(t);
        return x;
}
