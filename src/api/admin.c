/* Teams and keys over the cluster listener; see admin.h for the routes. */
#include "api/admin.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define TEAM_NAME_MAX 128
#define REASON_MAX 512

/* Lower bounds are what makes a team usable at all. */
static const struct {
        const char *key;
        size_t offset;
        unsigned min, max;
} limits[] = {
        { "max_vcpus", offsetof(struct team, max_vcpus), 1, 32 },
        { "max_memory_mb", offsetof(struct team, max_memory_mb), 128, 1 << 20 },
        { "max_disk_mb", offsetof(struct team, max_disk_mb), 256, 1 << 24 },
        { "max_concurrent_builds", offsetof(struct team, max_concurrent_builds), 0, 1000 },
        { "max_sandboxes", offsetof(struct team, max_sandboxes), 0, 100000 },
        { "max_sandbox_hours", offsetof(struct team, max_sandbox_hours), 1, 24 * 365 },
        { "max_context_mb", offsetof(struct team, max_context_mb), 1, 1 << 24 },
        { "max_contexts_mb", offsetof(struct team, max_contexts_mb), 1, 1 << 24 },
        { "max_log_mb", offsetof(struct team, max_log_mb), 1, 256 },
        { "max_requests_per_second", offsetof(struct team, max_requests_per_second), 0, 1000000 },
};
#define LIMITS (sizeof(limits) / sizeof(*limits))

static unsigned *limit_of(struct team *t, size_t i)
{
        return (unsigned *)((char *)t + limits[i].offset);
}

static json_t *team_json(struct team *t)
{
        json_t *j = json_pack("{s:s, s:s, s:s, s:b, s:b}", "id", t->id, "name", t->name, "slug", t->slug, "system", t->system, "blocked",
                              t->blocked);

        if (t->blocked_reason)
                json_object_set_new(j, "blocked_reason", json_string(t->blocked_reason));
        for (size_t i = 0; i < LIMITS; i++)
                json_object_set_new(j, limits[i].key, json_integer(*limit_of(t, i)));
        return j;
}

static int take_bool(const json_t *body, const char *key, bool *ret, struct error *err)
{
        const json_t *v = json_object_get(body, key);

        if (v && !json_is_boolean(v))
                return error_set(err, ERROR_INVALID, "%s must be a boolean", key);
        if (v)
                *ret = json_is_true(v);
        return 0;
}

static int take_limits(const json_t *body, struct team *t, struct error *err)
{
        for (size_t i = 0; i < LIMITS; i++) {
                const json_t *v = json_object_get(body, limits[i].key);

                if (!v)
                        continue;
                if (!json_is_integer(v) || json_integer_value(v) < limits[i].min || json_integer_value(v) > limits[i].max)
                        return error_set(err, ERROR_INVALID, "%s must be a number from %u to %u", limits[i].key, limits[i].min, limits[i].max);
                *limit_of(t, i) = (unsigned)json_integer_value(v);
        }
        return 0;
}

static int take_name(const json_t *body, struct team *t, struct error *err)
{
        const char *name = json_str(body, "name"), *slug = json_str(body, "slug");

        if (!name || !*name || json_string_length(json_object_get(body, "name")) > TEAM_NAME_MAX)
                return error_set(err, ERROR_INVALID, "a team needs a name of at most %d bytes", TEAM_NAME_MAX);
        t->name = xstrdup(name);
        t->slug = slug ? xstrdup(slug) : name_slug(name);
        t->id = xcalloc(1, UUID_LEN + 1);
        random_uuid(t->id);
        return 0;
}

static int find_team(struct records *r, const char *id_or_slug, struct team **ret, struct error *err)
{
        if (uuid_valid(id_or_slug))
                return records_team_get(r, id_or_slug, ret, err);
        if (!name_is_alias(id_or_slug))
                return error_set(err, ERROR_NOT_FOUND, "there is no such team; list-teams shows them");
        return records_team_by_slug(r, id_or_slug, ret, err);
}

static int list_teams(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct team **teams;
        size_t count;
        int r = records_team_list(data, &teams, &count, err);

        (void)request;
        if (r < 0)
                return r;
        response->status = 200;
        response->json = json_array();
        for (size_t i = 0; i < count; i++)
                json_array_append_new(response->json, team_json(teams[i]));
        team_list_free(teams, count);
        return 0;
}

static int create_team(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        CLEANUP(cleanup_team) struct team *t = xcalloc(1, sizeof(*t));
        int r;

        team_defaults(t);
        r = take_name(request->json, t, err);
        if (r == 0)
                r = take_bool(request->json, "system", &t->system, err);
        if (r == 0)
                r = take_limits(request->json, t, err);
        if (r == 0)
                r = records_team_create(data, t, err);
        if (r < 0)
                return r;
        response->status = 201;
        response->json = team_json(t);
        return 0;
}

static int take_reason(const json_t *body, struct team *t, struct error *err)
{
        const json_t *reason = json_object_get(body, "blocked_reason");

        if (json_is_string(reason) && json_string_length(reason) > REASON_MAX)
                return error_set(err, ERROR_INVALID, "blocked_reason is longer than %d bytes", REASON_MAX);
        free(STEAL(t->blocked_reason));
        if (t->blocked)
                t->blocked_reason = xstrdup_or_null(json_string_value(reason));
        return 0;
}

static int update_team(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        CLEANUP(cleanup_team) struct team *t = NULL;
        int r = find_team(data, request->params[0], &t, err);

        if (r == 0)
                r = take_bool(request->json, "system", &t->system, err);
        if (r == 0)
                r = take_bool(request->json, "blocked", &t->blocked, err);
        if (r == 0 && json_object_get(request->json, "blocked"))
                r = take_reason(request->json, t, err);
        if (r == 0)
                r = take_limits(request->json, t, err);
        if (r == 0)
                r = records_team_update(data, t, err);
        if (r < 0)
                return r;
        response->status = 200;
        response->json = team_json(t);
        return 0;
}

static int delete_team(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        CLEANUP(cleanup_team) struct team *t = NULL;
        int r = find_team(data, request->params[0], &t, err);

        if (r == 0)
                r = records_team_delete(data, t->id, err);
        response->status = 204;
        return r;
}

static int list_keys(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        CLEANUP(cleanup_team) struct team *t = NULL;
        int r = find_team(data, request->params[0], &t, err);

        if (r == 0)
                r = records_key_list(data, t->id, &response->json, err);
        response->status = 200;
        return r;
}

static int create_key(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        CLEANUP(cleanup_team) struct team *t = NULL;
        CLEANUP_FREE char *key = NULL, *id = NULL;
        int r = find_team(data, request->params[0], &t, err);

        if (r == 0)
                r = records_key_create(data, t->id, &key, &id, err);
        if (r < 0)
                return r;
        response->status = 201;
        response->json = json_pack("{s:s, s:s, s:s}", "id", id, "key", key, "team", t->slug);
        return 0;
}

static int revoke_key(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        if (!uuid_valid(request->params[0]))
                return error_set(err, ERROR_NOT_FOUND, "there is no such key; list-keys shows their IDs");
        response->status = 204;
        return records_key_revoke(data, request->params[0], err);
}

static json_t *build_json(const struct build_record *b)
{
        json_t *tags = json_array(), *j;
        char created[RFC3339_MAX];

        for (char **tag = b->tags; *tag; tag++)
                json_array_append_new(tags, json_string(*tag));
        rfc3339_format(b->created_ns, created);
        j = json_pack("{s:s, s:s, s:s, s:s, s:o}", "buildID", b->id, "templateID", b->template_id, "status", build_state_name(b->state),
                      "createdAt", created, "tags", tags);
        if (b->node)
                json_object_set_new(j, "node", json_string(b->node));
        return j;
}

static int list_builds(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct build_record **builds;
        size_t count;
        int r = records_builds_active(data, &builds, &count, err);

        (void)request;
        if (r < 0)
                return r;
        response->status = 200;
        response->json = json_array();
        for (size_t i = 0; i < count; i++)
                json_array_append_new(response->json, build_json(builds[i]));
        build_records_free(builds, count);
        return 0;
}

void api_admin_routes(struct api *a, struct records *r)
{
        const struct api_route routes[] = {
                { "GET", "/cluster/teams", API_AUTH_CLUSTER, 0, list_teams, r },
                { "POST", "/cluster/teams", API_AUTH_CLUSTER, API_JSON, create_team, r, .action = "create-team" },
                { "PATCH", "/cluster/teams/{team}", API_AUTH_CLUSTER, API_JSON, update_team, r, .action = "change-team" },
                { "DELETE", "/cluster/teams/{team}", API_AUTH_CLUSTER, 0, delete_team, r, .action = "delete-team" },
                { "GET", "/cluster/teams/{team}/keys", API_AUTH_CLUSTER, 0, list_keys, r },
                { "POST", "/cluster/teams/{team}/keys", API_AUTH_CLUSTER, 0, create_key, r, .action = "create-key" },
                { "DELETE", "/cluster/keys/{id}", API_AUTH_CLUSTER, 0, revoke_key, r, .action = "revoke-key" },
                { "GET", "/cluster/builds", API_AUTH_CLUSTER, 0, list_builds, r },
        };

        api_add_routes(a, routes, sizeof(routes) / sizeof(*routes));
}
