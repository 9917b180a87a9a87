/* POST /sandboxes and POST /v2/sandboxes, in the order of sandbox-api 5.2: body, template, timeout, options, then the manager's
 * concurrency slot and start.
 */
#include "api/sandbox-body.h"
#include "api/sandboxes-internal.h"
#include "base/json.h"
#include "base/log.h"
#include "sandbox/timeout.h"

/* What GET shows and what a later restart needs; everything else in it was refused. */
static json_t *network_shown(const struct sandbox_body *b)
{
        if (!b->network)
                return NULL;
        const json_t *allow = json_object_get(b->network, "allowOut"), *deny = json_object_get(b->network, "denyOut");
        json_t *shown = json_pack("{s:b, s:o, s:o}", "allowPublicTraffic", b->allow_public_traffic,
                                  "allowOut", json_is_array(allow) ? json_deep_copy(allow) : json_array(),
                                  "denyOut", json_is_array(deny) ? json_deep_copy(deny) : json_array());
        if (b->mask_request_host)
                json_object_set_new(shown, "maskRequestHost", json_string(b->mask_request_host));
        return shown;
}

static int start(struct sandboxes_api *s, const struct team *team, const struct sandbox_body *b, const struct template_record *t,
                 const struct build_record *build, struct api_response *p, struct error *err)
{
        CLEANUP_JSON json_t *network = network_shown(b);
        struct sandbox_spec spec = {
                .team = team,
                .template_ = t,
                .build = build,
                .timeout_s = b->timeout_s,
                .secure = b->secure,
                .auto_pause = b->auto_pause,
                .auto_pause_disk = !b->auto_pause_memory,
                .auto_resume = b->auto_resume,
                .metadata = b->metadata,
                .env = b->env,
                .allow_internet_access = b->allow_internet_access,
                .network = network,
                .allow_public_traffic = b->allow_public_traffic,
        };
        struct sandbox_info *info = NULL;
        int r = sandbox_create(s->manager, &spec, &info, err);
        if (r < 0)
                return r;
        struct error ignored = {};
        if (records_template_spawned(s->records, t->id, &ignored) < 0)
                log_warn("template %s: its use was not counted: %s", t->id, ignored.message);
        p->status = 201;
        p->json = sandbox_json(info);
        sandbox_info_free(info);
        return 0;
}

static int create(struct sandboxes_api *s, bool v2, struct api_request *q, struct api_response *p, struct error *err)
{
        const struct team *team = q->team;
        struct sandbox_body body;
        struct template_record *t = NULL;
        struct build_record *build = NULL;
        int r = sandbox_body_parse(q->json, v2, &body, err);
        if (r >= 0)
                r = records_resolve(s->records, team, body.template_ref, &t, &build, err);
        if (r < 0)
                return r;
        r = sandbox_timeout_check(body.timeout_s, team->max_sandbox_hours, false, err);
        if (r == 0)
                r = sandbox_body_check(&body, err);
        if (r == 0)
                r = start(s, team, &body, t, build, p, err);
        template_record_free(t);
        build_record_free(build);
        return r;
}

int sandboxes_create(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        return create(data, false, q, p, err);
}

int sandboxes_create_v2(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        return create(data, true, q, p, err);
}
