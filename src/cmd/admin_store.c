/* vmon admin: marks of nodes, backup and restore, the audit log. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "cmd/admin.h"
#include "cmd/restore.h"
#include "http/message.h"

static int mark_node(struct admin *a, bool cordoned, struct error *err)
{
        CLEANUP_FREE char *name = url_encode(a->words[1], false), *path = xasprintf("/cluster/nodes/%s", name);
        CLEANUP_JSON json_t *body = json_pack("{s:b}", "cordoned", cordoned), *none = NULL;

        return admin_call(a, "PATCH", path, body, &none, err);
}

int admin_cordon(struct admin *a, struct error *err)
{
        return mark_node(a, streq(a->words[0], "cordon"), err);
}

/* What still runs on the node. */
static int work_left(struct admin *a, long long *ret_sandboxes, long long *ret_builds, struct error *err)
{
        CLEANUP_JSON json_t *nodes = NULL;
        int r = admin_call(a, "GET", "/cluster/nodes", NULL, &nodes, err);
        json_t *node;
        size_t i;

        if (r < 0)
                return r;
        json_array_foreach(nodes, i, node) {
                if (!streq(json_str(node, "name"), a->words[1]))
                        continue;
                *ret_sandboxes = json_int(node, "sandboxes", 0);
                *ret_builds = json_int(node, "running", 0);
                return 0;
        }
        return error_set(err, ERROR_NOT_FOUND, "there is no such node; list-nodes shows them");
}

/* The driver has no event for the end of the last machine: it is asked every second. */
int admin_drain(struct admin *a, struct error *err)
{
        int64_t deadline = clock_monotonic_ns() + a->timeout_s * NSEC_PER_SEC;
        long long sandboxes = 0, builds = 0, last = -1;
        int r = mark_node(a, true, err);

        while (r == 0 && (r = work_left(a, &sandboxes, &builds, err)) == 0 && sandboxes + builds > 0) {
                if (sandboxes + builds != last)
                        fprintf(stderr, "waiting for %lld sandboxes and %lld builds; kill-sandbox ends a sandbox\n", sandboxes, builds);
                last = sandboxes + builds;
                if (a->timeout_s && clock_monotonic_ns() >= deadline)
                        return error_set(err, ERROR_UNAVAILABLE, "%lld sandboxes and %lld builds still run after %u s; the node stays cordoned",
                                         sandboxes, builds, a->timeout_s);
                nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
        }
        if (r == 0)
                printf("node %s is drained: nothing runs on it, and it takes no new work until 'vmon admin uncordon %s'\n", a->words[1], a->words[1]);
        return r;
}

static char *absolute(const char *path)
{
        CLEANUP_FREE char *cwd = path[0] == '/' ? NULL : getcwd(NULL, 0);

        return cwd ? path_join(cwd, path) : xstrdup(path);
}

int admin_backup(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *path = absolute(a->words[1]);
        CLEANUP_JSON json_t *body = json_pack("{s:s}", "path", path), *result = NULL;
        int r = admin_call(a, "POST", "/cluster/backup", body, &result, err);

        if (r < 0)
                return r;
        if (a->json)
                admin_print_json(result);
        else
                printf("the records are in %s (%lld KiB); keep a copy of DATA/root-secret beside it: a restore needs both\n", path,
                       (long long)json_int(result, "bytes", 0) >> 10);
        return 0;
}

int admin_restore(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *dir = admin_data_dir(a);
        struct restore_summary s = {};
        int r = restore_store(dir, a->words[1], a->dry_run, &s, err);

        if (r == 0)
                printf("%s %zu teams and %zu templates %s %s\n", a->dry_run ? "could restore" : "restored", s.teams, s.templates,
                       a->dry_run ? "into" : "in", dir);
        return r;
}

int admin_audit(struct admin *a, struct error *err)
{
        static const char *const columns[] = { "time", "actor", "action", "target", "status", "error", "detail", NULL };
        const json_t *limit = json_object_get(a->body, "limit");
        CLEANUP_FREE char *path = limit ? xasprintf("/cluster/audit?limit=%lld", (long long)json_integer_value(limit)) : xstrdup("/cluster/audit");

        return admin_list(a, path, columns, err);
}
