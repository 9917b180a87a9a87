/* Routes of one sandbox: get, kill, connect, timeout, refreshes, and plain refusals for what this server does not
 * have yet. A sandbox of another team is always an unknown one.
 */
#include <string.h>

#include "api/sandbox-body.h"
#include "api/sandboxes-internal.h"
#include "base/json.h"
#include "base/str.h"
#include "http/message.h"
#include "sandbox/id.h"
#include "sandbox/timeout.h"

#define CONNECT_TIMEOUT_S 300
#define RESUME_TIMEOUT_S 15
#define REFRESH_MIN_S 15
#define REFRESH_MAX_S 3600

int sandboxes_target(const struct api_request *q, char *ret_id, struct error *err)
{
        if (!q->params[0] || sandbox_id_parse(q->params[0], ret_id) < 0)
                return error_set(err, ERROR_INVALID, "Invalid sandbox ID");
        return 0;
}

/* Fails unless the sandbox exists. */
static int must_exist(struct sandboxes_api *s, struct api_request *q, char *ret_id, struct error *err)
{
        struct sandbox_info *info = NULL;
        int r = sandboxes_target(q, ret_id, err);
        if (r == 0)
                r = sandbox_get(s->manager, q->team, ret_id, &info, err);
        sandbox_info_free(info);
        return r;
}

static int get(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        struct sandbox_info *info = NULL;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = sandbox_get(s->manager, q->team, id, &info, err);
        if (r < 0)
                return r;
        p->status = 200;
        p->json = sandbox_detail_json(info);
        sandbox_info_free(info);
        return 0;
}

static int delete(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = sandbox_kill(s->manager, q->team, id, err);
        if (r == 0)
                p->status = 204;
        return r;
}

static int connect_(struct sandboxes_api *s, bool v2, struct api_request *q, struct api_response *p, struct error *err)
{
        char id[SANDBOX_ID_MAX + 1];
        const struct team *team = q->team;
        int64_t timeout_s = CONNECT_TIMEOUT_S;
        bool memory = true, resumed = false;
        struct sandbox_info *info = NULL;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = body_int32(q->json, "timeout", !v2, &timeout_s, err);
        if (r == 0)
                r = body_bool(q->json, "memory", &memory, err);
        if (r == 0)
                r = sandbox_timeout_check(timeout_s, team->max_sandbox_hours, true, err);
        if (r == 0)
                r = sandbox_connect(s->manager, team, id, &(struct sandbox_connect){timeout_s, true, !memory}, &info, &resumed, err);
        if (r < 0)
                return r;
        p->status = resumed ? 201 : 200;
        p->json = sandbox_json(info);
        sandbox_info_free(info);
        return 0;
}

static int connect_v1(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        return connect_(data, false, q, p, err);
}

static int connect_v2(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        return connect_(data, true, q, p, err);
}

static int timeout(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        int64_t timeout_s = 0;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = body_int32(q->json, "timeout", true, &timeout_s, err);
        if (r == 0)
                r = sandbox_timeout_check(timeout_s, 0, true, err); /* above the team's limit it is clamped */
        if (r == 0)
                r = sandbox_set_timeout(s->manager, q->team, id, timeout_s, false, NULL, err);
        if (r == 0)
                p->status = 204;
        return r;
}

static int refreshes(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        int64_t duration_s = REFRESH_MIN_S;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = body_int32(q->json, "duration", false, &duration_s, err);
        if (r == 0 && (duration_s < 0 || duration_s > REFRESH_MAX_S))
                r = error_set(err, ERROR_INVALID, "validation error: 'duration' must be between 0 and %d", REFRESH_MAX_S);
        if (r == 0)
                r = sandbox_set_timeout(s->manager, q->team, id, duration_s < REFRESH_MIN_S ? REFRESH_MIN_S : duration_s, true, NULL, err);
        if (r == 0)
                p->status = 204;
        return r;
}

/* Deprecated, but what older SDKs call (sandbox-api 10). `autoPause` is what the sandbox was created with. */
static int resume(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        const struct team *team = q->team;
        char id[SANDBOX_ID_MAX + 1];
        int64_t timeout_s = RESUME_TIMEOUT_S;
        bool memory = true, resumed = false;
        struct sandbox_info *info = NULL;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = body_int32(q->json, "timeout", false, &timeout_s, err);
        if (r == 0)
                r = body_bool(q->json, "memory", &memory, err);
        if (r == 0)
                r = sandbox_timeout_check(timeout_s, team->max_sandbox_hours, true, err);
        if (r == 0)
                r = sandbox_connect(s->manager, team, id, &(struct sandbox_connect){timeout_s, false, !memory}, &info, &resumed, err);
        if (r < 0)
                return r;
        p->status = 201;
        p->json = sandbox_json(info);
        sandbox_info_free(info);
        return 0;
}

static const json_t *given(const json_t *body, const char *key)
{
        const json_t *v = json_object_get(body, key);
        return json_is_null(v) ? NULL : v;
}

/* All of the rules at once: what is not in the body is cleared (sandbox-api 13.1). */
static int put_network(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        int r = network_rules_validate(q->json, err);
        if (r == 0)
                r = must_exist(s, q, id, err);
        if (r == 0)
                r = network_rules_check(q->json, given(q->json, "allow_internet_access"), err);
        if (r == 0)
                r = sandbox_set_network(s->manager, q->team, id, given(q->json, "allowOut"), given(q->json, "denyOut"),
                                        given(q->json, "allow_internet_access"), err);
        if (r == 0)
                p->status = 204;
        return r;
}

static int pause_(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        bool memory = true;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = body_bool(q->json, "memory", &memory, err);
        if (r == 0)
                r = sandbox_pause(s->manager, q->team, id, memory, err);
        if (r == 0)
                p->status = 204;
        return r;
}

static int volumes(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        (void)data, (void)q, (void)err;
        api_error(p, 400, "volumes are not available on this server yet");
        return 0;
}

static int secrets(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        (void)data, (void)q, (void)err;
        api_error(p, 400, "secrets are not available on this server yet");
        return 0;
}

#define OPTIONAL_BODY (API_JSON | API_JSON_OPTIONAL)

static const struct api_route routes[] = {
        { "POST", "/sandboxes", API_AUTH_KEY, API_JSON | API_MUTATES, sandboxes_create },
        { "POST", "/v2/sandboxes", API_AUTH_KEY, API_JSON | API_MUTATES, sandboxes_create_v2 },
        { "GET", "/sandboxes", API_AUTH_KEY, 0, sandboxes_list },
        { "GET", "/v2/sandboxes", API_AUTH_KEY, 0, sandboxes_list_v2 },
        { "GET", "/sandboxes/metrics", API_AUTH_KEY, 0, sandboxes_metrics_many },
        { "GET", "/sandboxes/{id}", API_AUTH_KEY, 0, get },
        { "DELETE", "/sandboxes/{id}", API_AUTH_KEY, 0, delete },
        { "POST", "/sandboxes/{id}/connect", API_AUTH_KEY, API_JSON | API_MUTATES, connect_v1 },
        { "POST", "/v2/sandboxes/{id}/connect", API_AUTH_KEY, OPTIONAL_BODY | API_MUTATES, connect_v2 },
        { "POST", "/sandboxes/{id}/timeout", API_AUTH_KEY, API_JSON | API_MUTATES, timeout },
        { "POST", "/sandboxes/{id}/refreshes", API_AUTH_KEY, OPTIONAL_BODY | API_MUTATES, refreshes },
        { "POST", "/sandboxes/{id}/pause", API_AUTH_KEY, OPTIONAL_BODY | API_MUTATES, pause_ },
        { "POST", "/sandboxes/{id}/resume", API_AUTH_KEY, OPTIONAL_BODY | API_MUTATES, resume },
        { "PUT", "/sandboxes/{id}/network", API_AUTH_KEY, OPTIONAL_BODY | API_MUTATES, put_network },
        { "POST", "/sandboxes/{id}/fork", API_AUTH_KEY, OPTIONAL_BODY | API_MUTATES, sandboxes_fork },
        { "POST", "/sandboxes/{id}/snapshots", API_AUTH_KEY, OPTIONAL_BODY | API_MUTATES, sandboxes_snapshot },
        { "GET", "/snapshots", API_AUTH_KEY, 0, sandboxes_snapshots },
        { "GET", "/sandboxes/{id}/metrics", API_AUTH_KEY, 0, sandboxes_metrics },
        { "GET", "/sandboxes/{id}/logs", API_AUTH_KEY, 0, sandboxes_logs },
        { "GET", "/v2/sandboxes/{id}/logs", API_AUTH_KEY, 0, sandboxes_logs_v2 },
        { "GET", "/volumes", API_AUTH_KEY, 0, volumes },
        { "POST", "/volumes", API_AUTH_KEY, 0, volumes },
        { "GET", "/volumes/{id}", API_AUTH_KEY, 0, volumes },
        { "DELETE", "/volumes/{id}", API_AUTH_KEY, 0, volumes },
        { "GET", "/secrets", API_AUTH_KEY, 0, secrets },
        { "POST", "/secrets", API_AUTH_KEY, 0, secrets },
        { "GET", "/secrets/{id}", API_AUTH_KEY, 0, secrets },
        { "POST", "/secrets/{id}", API_AUTH_KEY, 0, secrets },
        { "DELETE", "/secrets/{id}", API_AUTH_KEY, 0, secrets },
};

void api_sandboxes_routes(struct api *a, struct sandboxes_api *s)
{
        for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
                struct api_route r = routes[i];
                r.data = s;
                api_add_routes(a, &r, 1);
        }
}
