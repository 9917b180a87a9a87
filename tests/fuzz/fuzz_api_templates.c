/* The template API behind the HTTP engine: route, path parameters, query, JSON body, and the real handlers over a real store.
 *
 *   METHOD SP TARGET LF BODY      several, separated by NUL
 *
 * In a target and a body "$T" and "$B" stand for the template and the build registered last, so that mutations reach what is
 * behind the look-ups. Every answer must have a status of template-api 4 and be JSON.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/route.h"
#include "api/templates.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define INPUTS_A_STORE 2000 /* a new one then, so that it stays small */
#define CALLS_MAX 8
#define ROUTES_MAX 64

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len);

static struct {
        char *dir;
        struct store *store;
        struct records *records;
        struct template_service *service;
        struct team *team;
        struct api_route routes[ROUTES_MAX];
        size_t route_count, inputs;
        char template_id[TEMPLATE_ID_LEN + 1], build_id[UUID_LEN + 1];
} world;

/* Takes the dispatcher's place: handlers are called here, on this thread. */
void api_add_routes(struct api *a, const struct api_route *routes, size_t count)
{
        (void)a;
        assert(count <= ROUTES_MAX);
        memcpy(world.routes, routes, count * sizeof(*routes));
        world.route_count = count;
}

static void world_end(void)
{
        if (!world.dir)
                return;
        template_service_free(world.service);
        records_close(world.records);
        store_close(world.store);
        team_free(world.team);
        tree_remove(world.dir, NULL);
        free(world.dir);
        memset(&world, 0, sizeof(world));
}

static void world_begin(void)
{
        static const unsigned char secret[SECRET_LEN] = { 1 };
        char *dir = xstrdup("/dev/shm/vmon-fuzz-XXXXXX"), *url;
        struct template_settings settings = { .public_url = "http://h", .root_secret = secret, .node = "n1" };
        struct error err;

        world_end();
        assert(mkdtemp(dir));
        url = xasprintf("sqlite:%s/vmon.db", dir);
        assert(store_open(url, &world.store, &err) == 0 && records_open(world.store, &world.records, &err) == 0);
        settings.records = world.records;
        settings.data_dir = world.dir = dir;
        assert(template_service_new(&settings, &world.service, &err) == 0);
        api_templates_routes(NULL, world.service);
        world.team = xcalloc(1, sizeof(*world.team));
        team_defaults(world.team);
        world.team->id = xstrdup("6f2f3a0e-6f0d-4a6e-9c1a-0c1f6f6f8a11");
        world.team->name = xstrdup("acme");
        world.team->slug = xstrdup("acme");
        assert(records_team_create(world.records, world.team, &err) == 0);
        free(url);
}

/* With "$T" and "$B" replaced. */
static char *expand(const char *text)
{
        struct buf b = {};

        for (; *text; text++) {
                const char *value = text[0] != '$' ? NULL : text[1] == 'T' ? world.template_id : text[1] == 'B' ? world.build_id : NULL;

                if (value) {
                        buf_addf(&b, "%s", value);
                        text++;
                } else {
                        buf_add(&b, text, 1);
                }
        }
        return buf_steal(&b);
}

static bool status_known(int status)
{
        static const int known[] = { 200, 201, 202, 204, 400, 403, 404, 409, 429, 503 };

        for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
                if (known[i] == status)
                        return true;
        return false;
}

static int status_of_kind(enum error_kind kind)
{
        switch (kind) {
        case ERROR_INVALID:
                return 400;
        case ERROR_FORBIDDEN:
                return 403;
        case ERROR_NOT_FOUND:
                return 404;
        case ERROR_CONFLICT:
                return 409;
        case ERROR_LIMIT:
                return 429;
        case ERROR_UNAVAILABLE:
                return 503;
        default:
                return 500;
        }
}

static void remember(const json_t *j)
{
        const char *template_id = json_str(j, "templateID"), *build_id = json_str(j, "buildID");

        if (template_id && strlen(template_id) == TEMPLATE_ID_LEN && build_id && strlen(build_id) == UUID_LEN) {
                memcpy(world.template_id, template_id, TEMPLATE_ID_LEN + 1);
                memcpy(world.build_id, build_id, UUID_LEN + 1);
        }
}

static void handle(const struct api_route *route, struct api_request *request)
{
        struct api_response response = {};
        struct error err = {};
        int r = route->handler(route->data, request, &response, &err), status = r < 0 ? status_of_kind(err.kind) : response.status;

        assert(status_known(status));
        if (r < 0)
                assert(err.message[0]);
        else if (response.json)
                remember(response.json);
        json_decref(response.json);
        free(response.text);
        http_headers_free(&response.headers);
}

static void call(const char *method, char *target, const char *body)
{
        struct http_request http = { .method = (char *)method, .target = target };
        char *params[ROUTE_PARAMS_MAX + 1] = {}, *query = strchr(target, '?');
        struct api_request request = { .http = &http, .body = (char *)body, .body_len = strlen(body), .team = world.team, .peer = "fuzz" };
        const struct api_route *route;
        struct error err;

        if (query)
                *query++ = '\0';
        http.path = target;
        http.query = query ? query : (char *)"";
        if (route_find(world.routes, world.route_count, method, target, &route) != ROUTE_FOUND) {
                free(route_allow(world.routes, world.route_count, target));
                return;
        }
        if (route->flags & API_UPLOAD || route_params(route, target, params) < 0)
                return;
        for (size_t i = 0; i < ROUTE_PARAMS_MAX; i++)
                request.params[i] = params[i];
        if (route->flags & API_JSON) {
                if (!*body && route->flags & API_JSON_OPTIONAL)
                        request.json = json_object();
                else if (json_parse(body, strlen(body), &request.json, &err) < 0)
                        request.json = NULL;
        }
        if (!(route->flags & API_JSON) || json_is_object(request.json))
                handle(route, &request);
        json_decref(request.json);
        for (size_t i = 0; params[i]; i++)
                free(params[i]);
}

static void call_text(char *text)
{
        char *body = strchr(text, '\n'), *target = strchr(text, ' '), *full_target, *full_body;

        if (body)
                *body++ = '\0';
        if (!target || (body && target > body))
                return;
        *target++ = '\0';
        full_target = expand(target);
        full_body = expand(body ? body : "");
        if (*full_target == '/')
                call(text, full_target, full_body);
        free(full_target);
        free(full_body);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len)
{
        char *text, *p;

        if (world.inputs++ % INPUTS_A_STORE == 0) {
                if (!world.dir)
                        atexit(world_end);
                world_begin();
                world.inputs = 1;
        }
        text = xmalloc(len + 1);
        memcpy(text, data, len);
        text[len] = '\0';
        p = text;
        for (int i = 0; i < CALLS_MAX && p < text + len; i++) {
                size_t n = strlen(p);

                call_text(p);
                p += n + 1;
        }
        free(text);
        return 0;
}
