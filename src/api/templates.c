/* Lists, details, PATCH and DELETE of templates (template-api 4.8, 4.9, 4.12, 4.13), the v1 build API that is not served (4.14), and
 * the table of all template routes.
 */
#include "api/templates.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/templates-internal.h"
#include "base/mem.h"
#include "base/str.h"

#define LIST_PAGE 100

int template_service_new(const struct template_settings *settings, struct template_service **ret, struct error *err)
{
        struct template_service *s = xcalloc(1, sizeof(*s));
        int r;

        s->records = settings->records;
        s->data_dir = xstrdup(settings->data_dir);
        s->public_url = xstrdup(settings->public_url);
        s->node = xstrdup(settings->node);
        s->need_backend = settings->need_backend;
        s->need_backend_data = settings->need_backend_data;
        secret_derive(settings->root_secret, "vmon upload v1", s->upload_key);
        while (str_ends(s->public_url, "/"))
                s->public_url[strlen(s->public_url) - 1] = '\0';
        r = uploads_clean(s, err);
        if (r >= 0)
                r = keeper_start(s, err);
        if (r < 0)
                template_service_free(s);
        else
                *ret = s;
        return r;
}

void template_service_set_queue(struct template_service *s, struct build_queue *q)
{
        s->queue = q;
}

void template_service_free(struct template_service *s)
{
        if (!s)
                return;
        keeper_stop(s);
        explicit_bzero(s->upload_key, sizeof(s->upload_key));
        free(s->data_dir);
        free(s->public_url);
        free(s->node);
        free(s);
}

int template_by_id(struct template_service *s, const char *id, const char *format, struct template_record **ret, struct error *err)
{
        CLEANUP_FREE char *shown = utf8_scrub(id, strnlen(id, NAME_PART_MAX));
        int r = -ENOENT;

        if (name_is_template_id(id))
                r = records_template_get(s->records, id, ret, err);
        if (r == -ENOENT) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                return error_set(err, ERROR_NOT_FOUND, format, shown);
#pragma GCC diagnostic pop
        }
        return r;
}

int template_by_reference(struct template_service *s, const struct team *team, const char *reference, const char *what,
                          struct template_record **ret, struct name_ref *ret_name, struct error *err)
{
        CLEANUP(name_ref_clear) struct name_ref n = {};
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_FREE char *key = NULL;
        int r = name_parse(reference, &n, err);

        if (r < 0)
                return error_wrap(err, r, "%s", what);
        key = name_key(&n);
        r = records_template_find(s->records, team, &n, &t, err);
        if (r >= 0 && !streq(t->team_id, team->id))
                r = error_set(err, ERROR_FORBIDDEN, "You don't have access to template '%s'", key);
        if (ret_name) {
                *ret_name = n;
                n = (struct name_ref){};
        }
        if (r >= 0)
                *ret = STEAL(t);
        return r;
}

int page_query(const char *query, size_t *ret_limit, struct list_cursor *ret_cursor, char **ret_id, struct error *err)
{
        CLEANUP_FREE char *token = NULL;
        bool malformed = false;
        int64_t limit = LIST_PAGE;
        int r = query_integer(query, "limit", 1, PAGE_LIMIT_MAX, &limit, err);

        if (r < 0)
                return r;
        *ret_limit = (size_t)limit;
        token = query_get(query, "nextToken", &malformed);
        if (malformed)
                return error_set(err, ERROR_INVALID, "Invalid next token");
        if (!token || !*token)
                return 0;
        r = page_token_parse(token, &ret_cursor->time_ns, ret_id, err);
        ret_cursor->id = *ret_id;
        return r;
}

static void add_next(struct api_response *response, int64_t time_ns, const char *id)
{
        CLEANUP_FREE char *token = page_token(time_ns, id);

        http_headers_add(&response->headers, "X-Next-Token", token);
}

static int check_team_param(const char *query, const struct team *team, struct error *err)
{
        CLEANUP_FREE char *id = query_get(query, "teamID", NULL);

        return id && *id && !streq(id, team->id) ? error_set(err, ERROR_INVALID, "Team ID param mismatch with the API key") : 0;
}

/* Appends a page, without snapshots; `*last` becomes its last template's cursor (its ID is the caller's to free). */
static int add_page(struct template_service *s, const struct team *team, struct list_cursor *last, char **last_id, size_t limit,
                    json_t *array, bool *ret_more, struct error *err)
{
        struct template_record **list;
        size_t count;
        int r = records_template_list(s->records, team->id, *last_id ? last : NULL, limit, &list, &count, ret_more, err);

        if (r < 0)
                return r;
        for (size_t i = 0; r == 0 && i < count; i++) {
                json_t *j;

                if (list[i]->snapshot)
                        continue;
                r = template_list_json(s, list[i], &j, err);
                if (r == 0)
                        json_array_append_new(array, j);
        }
        if (count > 0) {
                free(*last_id);
                *last_id = xstrdup(list[count - 1]->id);
                *last = (struct list_cursor){ list[count - 1]->created_ns, *last_id };
        }
        template_records_free(list, count);
        return r;
}

/* Everything, oldest first. */
static HANDLER(list_v1)
{
        struct template_service *s = data;
        CLEANUP_JSON json_t *newest_first = json_array();
        CLEANUP_FREE char *last_id = NULL;
        struct list_cursor last = {};
        bool more = true;
        int r = check_team_param(request->http->query, request->team, err);

        while (r == 0 && more)
                r = add_page(s, request->team, &last, &last_id, LIST_PAGE, newest_first, &more, err);
        if (r < 0)
                return r;
        response->status = 200;
        response->json = json_array();
        for (size_t i = json_array_size(newest_first); i-- > 0;)
                json_array_append(response->json, json_array_get(newest_first, i));
        return 0;
}

static HANDLER(list_v2)
{
        struct template_service *s = data;
        CLEANUP_JSON json_t *array = json_array();
        CLEANUP_FREE char *last_id = NULL;
        struct list_cursor last = {};
        size_t limit;
        bool more = true;
        int r = check_team_param(request->http->query, request->team, err);

        if (r == 0)
                r = page_query(request->http->query, &limit, &last, &last_id, err);
        /* Pages that snapshots thinned out are filled up. */
        while (r == 0 && more && json_array_size(array) < limit)
                r = add_page(s, request->team, &last, &last_id, limit - json_array_size(array), array, &more, err);
        if (r < 0)
                return r;
        if (more)
                add_next(response, last.time_ns, last.id);
        response->status = 200;
        response->json = STEAL(array);
        return 0;
}

static HANDLER(get)
{
        struct template_service *s = data;
        const struct team *team = request->team;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_FREE char *cursor_id = NULL;
        struct list_cursor cursor = {};
        struct build_record **builds;
        size_t limit, count;
        bool more;
        int r = page_query(request->http->query, &limit, &cursor, &cursor_id, err);

        if (r >= 0)
                r = template_by_id(s, request->params[0], "Template %s not found", &t, err);
        if (r >= 0 && !streq(t->team_id, team->id))
                r = error_set(err, ERROR_FORBIDDEN, "You don't have access to this sandbox template (%s)", t->id);
        if (r >= 0)
                r = records_build_list(s->records, t->id, cursor_id ? &cursor : NULL, limit, &builds, &count, &more, err);
        if (r < 0)
                return r;
        if (more)
                add_next(response, builds[count - 1]->created_ns, builds[count - 1]->id);
        response->status = 200;
        r = template_detail_json(s, t, builds, count, &response->json, err);
        build_records_free(builds, count);
        return r;
}

static int update(struct template_service *s, struct api_request *request, struct template_record **ret, struct error *err)
{
        const json_t *public_ = json_object_get(request->json, "public");
        int r;

        if (public_ && !json_is_null(public_) && !json_is_boolean(public_))
                return error_set(err, ERROR_INVALID, "validation error: public must be a boolean");
        r = template_by_reference(s, request->team, request->params[0], "Invalid template ID", ret, NULL, err);
        if (r == 0 && json_is_boolean(public_))
                r = records_template_publish(s->records, (*ret)->id, json_is_true(public_), err);
        return r;
}

static HANDLER(patch_v2)
{
        struct template_service *s = data;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        char **names;
        json_t *array;
        int r = update(s, request, &t, err);

        if (r >= 0)
                r = records_template_names(s->records, t, &names, err);
        if (r < 0)
                return r;
        array = json_array();
        for (char **name = names; *name; name++)
                json_array_append_new(array, json_string(*name));
        name_list_free(names);
        response->status = 200;
        response->json = json_pack("{s:o}", "names", array);
        return 0;
}

static HANDLER(patch_v1)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        int r = update(data, request, &t, err);

        response->status = 200;
        response->json = json_null();
        return r;
}

/* Snapshots under one name differ by their tags, and go one by one (sandbox-api 15): *ret_more when the template has others and
 * stays. NOT_FOUND when there is no such tag. */
static int delete_one_snapshot(struct template_service *s, const struct template_record *t, const struct name_ref *n, bool *ret_more,
                               struct error *err)
{
        const char *tag = n->tag ? n->tag : n->explicit_default ? NAME_TAG_DEFAULT : NULL;
        char *const one[] = { (char *)tag, NULL };
        struct tag_record *tags;
        size_t count;
        bool found = false;
        int r;

        if (!t->snapshot || !tag)
                return 0;
        r = records_tags_list(s->records, t->id, &tags, &count, err);
        if (r < 0)
                return r;
        for (size_t i = 0; i < count; i++)
                found = found || streq(tags[i].tag, tag);
        tag_records_free(tags, count);
        if (!found)
                return error_set(err, ERROR_NOT_FOUND, "tag '%s' does not exist for template '%s'", tag, t->id);
        *ret_more = count > 1;
        return count > 1 ? records_tags_delete(s->records, t->id, one, err) : 0;
}

static HANDLER(delete)
{
        struct template_service *s = data;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(name_ref_clear) struct name_ref name = {};
        bool more = false;
        char **builds;
        int r = template_by_reference(s, request->team, request->params[0], "Invalid template ID", &t, &name, err);

        if (r >= 0)
                r = delete_one_snapshot(s, t, &name, &more, err);
        if (r < 0 || more) {
                response->status = 204;
                return r;
        }
        if (r >= 0)
                r = records_template_delete(s->records, t->id, &builds, err);
        if (r < 0)
                return r;
        for (char **id = builds; r == 0 && *id; id++)
                r = keeper_cancel(s, *id, err);
        name_list_free(builds);
        response->status = 204;
        return r;
}

static HANDLER(v1_build)
{
        (void)data;
        (void)request;
        (void)response;
        return error_set(err, ERROR_NOT_FOUND,
                         "not found: builds of the v1 API (e2b template build) are not supported; use 'e2b template create' or the SDK");
}

/* The key is what the caller has shown: the CLI stores it (sandbox-api 20). */
static HANDLER(teams)
{
        const struct team *team = request->team;
        const char *key = http_headers_get(&request->http->headers, "X-API-Key");
        const char *bearer = http_headers_get(&request->http->headers, "Authorization");

        (void)data;
        (void)err;
        if (!key && bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
                key = bearer + 7;
        response->status = 200;
        response->json = json_pack("[{s:s, s:s, s:s, s:b}]", "teamID", team->id, "name", team->name, "apiKey", key ? key : "", "isDefault", 1);
        return 0;
}

void api_templates_routes(struct api *a, struct template_service *s)
{
        const unsigned write = API_JSON | API_MUTATES;
        const struct api_route routes[] = {
                { "POST", "/v3/templates", API_AUTH_KEY, write, templates_create_v3, s },
                { "POST", "/v2/templates", API_AUTH_KEY, write, templates_create_v2, s },
                { "GET", "/templates/{id}/files/{hash}", API_AUTH_KEY, 0, templates_files_link, s },
                { "PUT", "/upload", API_AUTH_NONE, API_UPLOAD, templates_upload, s, templates_upload_begin },
                { "POST", "/v2/templates/{id}/builds/{build}", API_AUTH_KEY, write, templates_trigger, s },
                { "GET", "/templates/{id}/builds/{build}/status", API_AUTH_KEY, API_READS, templates_status, s },
                { "GET", "/templates/{id}/builds/{build}/logs", API_AUTH_KEY, API_READS, templates_logs, s },
                { "GET", "/templates", API_AUTH_KEY, API_READS, list_v1, s },
                { "GET", "/v2/templates", API_AUTH_KEY, API_READS, list_v2, s },
                { "GET", "/templates/{id}", API_AUTH_KEY, API_READS, get, s },
                { "GET", "/templates/aliases/{alias}", API_AUTH_KEY, API_READS, templates_alias, s },
                { "POST", "/templates/tags", API_AUTH_KEY, write, templates_tags_assign, s },
                { "DELETE", "/templates/tags", API_AUTH_KEY, API_JSON, templates_tags_delete, s },
                { "GET", "/templates/{id}/tags", API_AUTH_KEY, API_READS, templates_tags_list, s },
                { "PATCH", "/v2/templates/{id}", API_AUTH_KEY, write | API_JSON_OPTIONAL, patch_v2, s },
                { "PATCH", "/templates/{id}", API_AUTH_KEY, write | API_JSON_OPTIONAL, patch_v1, s },
                { "DELETE", "/templates/{id}", API_AUTH_KEY, 0, delete, s },
                { "POST", "/templates", API_AUTH_KEY, 0, v1_build, s },
                { "POST", "/templates/{id}", API_AUTH_KEY, 0, v1_build, s },
                { "POST", "/templates/{id}/builds/{build}", API_AUTH_KEY, 0, v1_build, s },
                { "GET", "/teams", API_AUTH_KEY, API_READS, teams, s },
        };

        api_add_routes(a, routes, sizeof(routes) / sizeof(*routes));
}
