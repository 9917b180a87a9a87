/* POST /v3/templates and POST /v2/templates (template-api 4.1, 4.2): they register a build. */
#include "api/templates-internal.h"

static int create(struct template_service *s, const struct team *team, struct api_request *request, struct api_response *response,
                  bool v2, struct error *err)
{
        CLEANUP(create_body_clear) struct create_body body = {};
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        struct build_request q;
        int r = create_body_parse(request->json, v2, team->slug, &body, err);

        if (r < 0)
                return r;
        q = (struct build_request){ .alias = body.name.alias, .tags = (const char *const *)body.tags, .vcpus = body.vcpus,
                                    .memory_mb = body.memory_mb };
        r = records_build_register(s->records, team, &q, &t, &b, err);
        if (r < 0)
                return r;
        response->status = 202;
        response->json = v2 ? template_legacy_json(t, b, q.alias) : template_create_json(team, t, b, q.alias);
        return 0;
}

HANDLER(templates_create_v3)
{
        return create(data, request->team, request, response, false, err);
}

HANDLER(templates_create_v2)
{
        return create(data, request->team, request, response, true, err);
}
