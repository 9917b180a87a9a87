/* The node, its sandboxes and their consoles, and the garbage, over the cluster listener; see admin-node.h for the routes. */
#include "api/admin-node.h"

#include <stdlib.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/id.h"
#include "vm/kit.h"
#include "vm/vm.h"

static json_t *sandbox_json(struct admin_node *n, const struct sandbox_info *i)
{
        CLEANUP(cleanup_team) struct team *team = NULL;
        char started[RFC3339_MAX], ends[RFC3339_MAX];
        json_t *j;

        rfc3339_format(i->started_ns, started);
        rfc3339_format(i->ends_ns, ends);
        if (records_team_get(n->records, i->team_id, &team, NULL) < 0)
                team = NULL;
        j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s}", "sandboxID", i->id, "state",
                      i->paused ? "paused" : "running", "templateID", i->template_id, "buildID", i->build_id,
                      "team", team ? team->slug : i->team_id, "cpuCount", (int)i->vcpus, "memoryMB", (int)i->memory_mb, "startedAt", started,
                      "endAt", ends);
        if (i->alias)
                json_object_set_new(j, "alias", json_string(i->alias));
        return j;
}

static int list_sandboxes(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_node *n = data;
        struct sandbox_info **list;
        size_t count;
        int r = sandbox_list(n->sandboxes, NULL, &list, &count, err);

        (void)request;
        if (r < 0)
                return r;
        response->status = 200;
        response->json = json_array();
        for (size_t i = 0; i < count; i++) {
                json_array_append_new(response->json, sandbox_json(n, list[i]));
                sandbox_info_free(list[i]);
        }
        free(list);
        return 0;
}

static int kill_sandbox(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_node *n = data;
        char id[SANDBOX_ID_MAX + 1];

        if (sandbox_id_parse(request->params[0], id) < 0)
                return error_set(err, ERROR_NOT_FOUND, "that is no ID of a sandbox; list-sandboxes shows them");
        response->status = 204;
        return sandbox_kill(n->sandboxes, NULL, id, err);
}

/* The machine that a build runs in just now. */
static int build_console(struct admin_node *n, const char *build_id, char **ret, struct error *err)
{
        CLEANUP_FREE char *dir = xasprintf("%s/scratch/%s/vm", n->data_dir, build_id);
        struct vm *vm;

        if (!path_exists(dir) || vm_adopt(dir, &vm, NULL) < 0)
                return error_set(err, ERROR_NOT_FOUND, "no machine of build '%s' runs on this node; list-builds shows the builds", build_id);
        *ret = vm_console(vm);
        vm_close(vm);
        return 0;
}

static int show_console(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_node *n = data;
        char id[SANDBOX_ID_MAX + 1];

        response->status = 200;
        response->content_type = "text/plain; charset=utf-8";
        if (uuid_valid(request->params[0]))
                return build_console(n, request->params[0], &response->text, err);
        if (sandbox_id_parse(request->params[0], id) < 0)
                return error_set(err, ERROR_NOT_FOUND, "that is no ID of a sandbox or a build");
        return sandbox_console(n->sandboxes, id, &response->text, err);
}

/* "ready", or why nothing can be started. */
static void add_kit(struct admin_node *n, json_t *j)
{
        CLEANUP(cleanup_kit) struct kit *kit = NULL;
        const char *backend;
        struct error err = {};

        if (kit_open(n->kit_dir, NULL, NULL, &kit, &err) < 0 || n->need_backend(n->need_backend_data, &backend, &err) < 0) {
                json_object_set_new(j, "status", json_string("unavailable"));
                json_object_set_new(j, "reason", json_string(err.message));
                return;
        }
        json_object_set_new(j, "status", json_string(records_node_admits(n->records, n->name, NULL) < 0 ? "cordoned" : "ready"));
        json_object_set_new(j, "backend", json_string(backend));
        json_object_set_new(j, "kit", json_string(kit->version));
}

/* One node serves alone in this release. */
static int list_nodes(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_node *n = data;
        struct build_record **builds;
        struct statvfs s;
        size_t count, running = 0;
        json_t *j;
        int r = records_builds_active(n->records, &builds, &count, err);

        (void)request;
        if (r < 0)
                return r;
        for (size_t i = 0; i < count; i++)
                running += builds[i]->state == BUILD_BUILDING;
        build_records_free(builds, count);
        j = json_pack("{s:s, s:s, s:I, s:I, s:I}", "name", n->name, "version", VMON_VERSION, "sandboxes",
                      (json_int_t)sandbox_count(n->sandboxes, NULL), "builds", (json_int_t)count, "running",
                      (json_int_t)running);
        if (statvfs(n->data_dir, &s) == 0)
                json_object_set_new(j, "diskFreeMB", json_integer((json_int_t)((uint64_t)s.f_bavail * s.f_frsize >> 20)));
        add_kit(n, j);
        response->status = 200;
        response->json = json_array();
        json_array_append_new(response->json, j);
        return 0;
}

static json_t *garbage_json(const struct garbage *items, size_t count, bool dry_run)
{
        json_t *list = json_array();
        uint64_t bytes = 0;

        for (size_t i = 0; i < count; i++) {
                json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I}", "kind", items[i].kind, "name", items[i].name, "reason",
                                                      items[i].reason, "bytes", (json_int_t)items[i].bytes));
                bytes += items[i].bytes;
        }
        return json_pack("{s:b, s:I, s:o}", "dryRun", dry_run, "bytes", (json_int_t)bytes, "items", list);
}

static int collect_garbage(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_node *n = data;
        const json_t *dry = json_object_get(request->json, "dryRun");
        struct garbage *items;
        size_t count;
        int r;

        if (dry && !json_is_boolean(dry))
                return error_set(err, ERROR_INVALID, "dryRun must be a boolean");
        r = housekeeping_run(n->housekeeping, json_is_true(dry), &items, &count, err);
        if (r == 0) {
                response->status = 200;
                response->json = garbage_json(items, count, json_is_true(dry));
        }
        free(items);
        return r;
}

void api_admin_node_routes(struct api *a, struct admin_node *n)
{
        const struct api_route routes[] = {
                { "GET", "/cluster/nodes", API_AUTH_CLUSTER, 0, list_nodes, n },
                { "GET", "/cluster/sandboxes", API_AUTH_CLUSTER, 0, list_sandboxes, n },
                { "DELETE", "/cluster/sandboxes/{id}", API_AUTH_CLUSTER, 0, kill_sandbox, n, .action = "kill-sandbox" },
                { "GET", "/cluster/vms/{id}/console", API_AUTH_CLUSTER, 0, show_console, n },
                { "POST", "/cluster/gc", API_AUTH_CLUSTER, API_JSON | API_JSON_OPTIONAL, collect_garbage, n, .action = "gc" },
        };

        api_add_routes(a, routes, sizeof(routes) / sizeof(*routes));
}
