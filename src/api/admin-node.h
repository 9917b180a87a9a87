/* What `vmon admin` asks of a node, on the cluster listener under the cluster token; see admin.h.
 *
 *   GET    /cluster/nodes               [{name, status (ready, cordoned, unavailable), reason?, backend?, kit?, sandboxes, builds, running, diskFreeMB, version}]
 *   GET    /cluster/sandboxes           [{sandboxID, templateID, buildID, team, alias?, cpuCount, memoryMB, startedAt, endAt}]
 *   DELETE /cluster/sandboxes/{id}      204
 *   GET    /cluster/vms/{id}/console    the last bytes of the console of a sandbox, or of the VM of a running build, as text
 *   POST   /cluster/gc                  {dryRun?} -> {dryRun, bytes, items: [{kind (build, context, image), name, reason, bytes}]}
 */
#pragma once

#include "api/api.h"
#include "cluster/housekeeping.h"
#include "sandbox/sandbox.h"
#include "store/records.h"

struct admin_node {
        const char *name, *data_dir, *kit_dir;
        struct records *records;
        struct sandbox_manager *sandboxes;
        struct housekeeping *housekeeping;
        int (*need_backend)(void *data, const char **ret, struct error *err); /* as in sandbox.h */
        void *need_backend_data;
};

/* `n` must outlive the dispatcher. */
void api_admin_node_routes(struct api *a, struct admin_node *n);
