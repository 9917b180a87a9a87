/* The audit log, backups and the marks of nodes over the cluster listener; see admin.h.
 *
 *   GET    /cluster/audit?limit=N       the newest N (100) entries, oldest first: [{time, actor, action, target?, detail?, error?, status}]
 *   POST   /cluster/backup              {path} -> 201 {path, bytes}: a copy of the store in a new file (0600) on the driver's host
 *   PATCH  /cluster/nodes/{name}        {cordoned} -> 204
 *
 * Every route with an action is in the audit log, refused requests too; the actor is what the client says of itself (header
 * X-Vmon-Actor) and the address it came from: whoever has the cluster token is trusted.
 */
#pragma once

#include "api/api.h"
#include "store/records.h"
#include "store/store.h"

#define ADMIN_ACTOR_HEADER "X-Vmon-Actor"

struct admin_store {
        struct records *records;
        struct store *store;
        const char *node; /* the only one in this release */
};

/* `s` must outlive the dispatcher. */
void api_admin_store_routes(struct api *a, struct admin_store *s);

/* For api_hooks.audit: writes the entry; a store that cannot take it is logged. */
void admin_store_audit(struct admin_store *s, const struct api_request *request, const char *action, int status, const char *error);
