/* Aliases and tags (template-api 4.10, 4.11). */
#include <errno.h>
#include <stdlib.h>

#include "api/templates-internal.h"
#include "base/mem.h"
#include "base/str.h"

HANDLER(templates_alias)
{
        struct template_service *s = data;
        CLEANUP(name_ref_clear) struct name_ref n = {};
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        int r = template_by_reference(s, request->team, request->params[0], "Invalid alias format", &t, &n, err);

        /* A tag that is written out, "default" too, must have a build; a bare name exists without one. */
        if (r == 0 && (n.tag || n.explicit_default))
                r = records_build_find(s->records, t, &n, &b, err);
        if (r < 0)
                return r;
        response->status = 200;
        response->json = json_pack("{s:s, s:b}", "templateID", t->id, "public", t->public_);
        return 0;
}

/* The tags of a body: at least one, all valid. */
static int body_tags(const json_t *body, char ***ret, struct error *err)
{
        CLEANUP_FREE const char **raw = NULL;
        size_t count;
        int r = body_strings(body, "tags", &raw, &count, err);

        if (r < 0)
                return r;
        if (count == 0)
                return error_set(err, ERROR_INVALID, "At least one tag is required");
        r = name_tags_collect(NULL, raw, count, ret, err);
        return r < 0 ? error_wrap(err, r, "Invalid tag") : 0;
}

static void cleanup_list(char ***list)
{
        name_list_free(*list);
}

/* Only exactly this tag, or this build: an assignment does not guess. */
static int assign(struct template_service *s, const struct template_record *t, const struct name_ref *n, const char *target, char **tags,
                  char **ret_build_id, struct error *err)
{
        const char *tag = n->tag ? n->tag : NAME_TAG_DEFAULT;
        int r = records_tags_copy(s->records, t->id, tag, tags, ret_build_id, err);

        return r == -ENOENT ? error_set(err, ERROR_NOT_FOUND, "Template '%s' with tag '%s' not found", target, tag) : r;
}

/* A namespace in the body of a change must be one's own (template-api 4.11). */
static int own_namespace(const struct team *team, const char *reference, const char *what, struct error *err)
{
        CLEANUP(name_ref_clear) struct name_ref n = {};
        int r = name_parse(reference, &n, err);

        if (r < 0)
                return error_wrap(err, r, "%s", what);
        if (n.namespace_ && !streq(n.namespace_, team->slug))
                return error_set(err, ERROR_INVALID, "namespace '%s' must match your team '%s'", n.namespace_, team->slug);
        return 0;
}

HANDLER(templates_tags_assign)
{
        static const char what[] = "Invalid target template format";
        struct template_service *s = data;
        CLEANUP(name_ref_clear) struct name_ref n = {};
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_list) char **tags = NULL;
        CLEANUP_FREE char *build_id = NULL;
        const char *target;
        json_t *array;
        int r = body_string(request->json, "target", &target, err);

        if (r >= 0)
                r = body_tags(request->json, &tags, err);
        if (r >= 0)
                r = own_namespace(request->team, target, what, err);
        if (r >= 0)
                r = template_by_reference(s, request->team, target, what, &t, &n, err);
        if (r >= 0)
                r = assign(s, t, &n, target, tags, &build_id, err);
        if (r < 0)
                return r;
        array = json_array();
        for (char **tag = tags; *tag; tag++)
                json_array_append_new(array, json_string(*tag));
        response->status = 201;
        response->json = json_pack("{s:o, s:s}", "tags", array, "buildID", build_id);
        return 0;
}

HANDLER(templates_tags_delete)
{
        static const char what[] = "Invalid template name format";
        struct template_service *s = data;
        CLEANUP(name_ref_clear) struct name_ref n = {};
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_list) char **tags = NULL;
        const char *name;
        int r = body_string(request->json, "name", &name, err);

        if (r >= 0)
                r = body_tags(request->json, &tags, err);
        if (r < 0)
                return r;
        if (name_list_has(tags, NAME_TAG_DEFAULT))
                return error_set(err, ERROR_INVALID, "Cannot delete the 'default' tag");
        r = own_namespace(request->team, name, what, err);
        if (r == 0)
                r = template_by_reference(s, request->team, name, what, &t, &n, err);
        if (r < 0 && err->kind != ERROR_INVALID && n.tag == NULL)
                return r;
        if (n.tag)
                return error_set(err, ERROR_INVALID, "%s: the name must not have a tag", what);
        if (r == 0)
                r = records_tags_delete(s->records, t->id, tags, err);
        response->status = 204;
        return r;
}

HANDLER(templates_tags_list)
{
        struct template_service *s = data;
        CLEANUP(cleanup_template) struct template_record *t = NULL, *still = NULL;
        struct tag_record *tags;
        size_t count;
        int r = template_by_reference(s, request->team, request->params[0], "Invalid template ID", &t, NULL, err);

        if (r >= 0)
                r = records_tags_list(s->records, t->id, &tags, &count, err);
        /* A delete that came meanwhile is removing them one by one. */
        if (r >= 0 && (r = records_template_get(s->records, t->id, &still, err)) < 0)
                tag_records_free(tags, count);
        if (r < 0)
                return r;
        response->status = 200;
        response->json = json_array();
        for (size_t i = 0; i < count; i++)
                json_array_append_new(response->json, json_pack("{s:s, s:s, s:o}", "tag", tags[i].tag, "buildID", tags[i].build_id,
                                                                "createdAt", json_time(tags[i].created_ns)));
        tag_records_free(tags, count);
        return 0;
}
