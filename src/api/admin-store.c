#include "api/admin-store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define AUDIT_DEFAULT 100
#define SUFFIX_LEN 8

void admin_store_audit(struct admin_store *s, const struct api_request *request, const char *action, int status, const char *error)
{
        const char *said = http_headers_get(&request->http->headers, ADMIN_ACTOR_HEADER), *target = request->params[0];
        CLEANUP_FREE char *actor = xasprintf("%s@%s", said ? said : "unknown", request->peer ? request->peer : "unknown");
        CLEANUP_FREE char *detail = json_object_size(request->json) > 0 ? json_text(request->json) : NULL;
        struct error err = {};
        const struct audit_entry e = {
                .actor = actor,
                .action = action,
                .target = target ? target : json_str(request->json, "name"),
                .detail = detail,
                .error = error,
                .status = status,
        };

        if (records_audit_append(s->records, &e, &err) < 0)
                log_error("audit: %s %s by %s is not in the audit log: %s", action, e.target ? e.target : "", actor, err.message);
}

static int list_audit(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_store *s = data;
        bool malformed = false;
        CLEANUP_FREE char *text = query_get(request->http->query, "limit", &malformed);
        uint64_t limit = AUDIT_DEFAULT;

        if (malformed || (text && (!str_to_u64(text, RECORDS_AUDIT_MAX, &limit) || limit == 0)))
                return error_set(err, ERROR_INVALID, "limit must be a number from 1 to %d", RECORDS_AUDIT_MAX);
        response->status = 200;
        return records_audit_list(s->records, limit, &response->json, err);
}

/* Written beside, then linked to its name, which must be new: link() replaces nothing. */
static int backup_to(struct store *s, const char *path, struct error *err)
{
        char suffix[SUFFIX_LEN + 1];
        CLEANUP_FREE char *temporary = NULL;
        int fd, r;

        random_id(suffix, SUFFIX_LEN);
        temporary = xasprintf("%s.%s.tmp", path, suffix);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
                return error_errno(err, errno, "create %s", temporary);
        close(fd);
        r = store_backup(s, temporary, err);
        if (r == 0)
                r = file_fsync(temporary, err);
        if (r == 0 && link(temporary, path) < 0)
                r = errno == EEXIST ? error_set(err, ERROR_CONFLICT, "%s exists already; name another file", path) :
                                      error_errno(err, errno, "create %s", path);
        unlink(temporary);
        return r;
}

static int sync_parent(const char *path, struct error *err)
{
        CLEANUP_FREE char *dir = xstrndup(path, (size_t)(strrchr(path, '/') - path + 1));

        return dir_fsync(dir, err);
}

static int make_backup(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_store *s = data;
        const char *path = json_str(request->json, "path");
        int r;

        if (!path || path[0] != '/')
                return error_set(err, ERROR_INVALID, "path must be an absolute path on the driver's host");
        if (path_exists(path))
                return error_set(err, ERROR_CONFLICT, "%s exists already; name another file", path);
        r = backup_to(s->store, path, err);
        if (r == 0)
                r = sync_parent(path, err);
        if (r < 0)
                return error_wrap(err, r, "make a backup");
        response->status = 201;
        response->json = json_pack("{s:s, s:I}", "path", path, "bytes", (json_int_t)tree_allocated_bytes(path));
        return 0;
}

static int change_node(void *data, struct api_request *request, struct api_response *response, struct error *err)
{
        struct admin_store *s = data;
        const json_t *cordoned = json_object_get(request->json, "cordoned");

        if (!streq(request->params[0], s->node))
                return error_set(err, ERROR_NOT_FOUND, "there is no such node; list-nodes shows them");
        if (!json_is_boolean(cordoned))
                return error_set(err, ERROR_INVALID, "cordoned must be a boolean");
        response->status = 204;
        return records_node_cordon(s->records, s->node, json_is_true(cordoned), err);
}

void api_admin_store_routes(struct api *a, struct admin_store *s)
{
        const struct api_route routes[] = {
                { "GET", "/cluster/audit", API_AUTH_CLUSTER, 0, list_audit, s },
                { "POST", "/cluster/backup", API_AUTH_CLUSTER, API_JSON, make_backup, s, .action = "backup" },
                { "PATCH", "/cluster/nodes/{name}", API_AUTH_CLUSTER, API_JSON, change_node, s, .action = "change-node" },
        };

        api_add_routes(a, routes, sizeof(routes) / sizeof(*routes));
}
