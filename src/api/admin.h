/* What `vmon admin` asks of a driver, on the cluster listener under the cluster token: teams, keys, limits, builds. Private
 * to vmon: both ends are of the same release.
 *
 *   GET    /cluster/teams               [team]
 *   POST   /cluster/teams               {name, slug?, system?, limits…} -> 201 team
 *   PATCH  /cluster/teams/{team}        {system?, blocked?, blocked_reason?, limits…} -> team; {team} is an ID or a slug
 *   DELETE /cluster/teams/{team}        204; 409 while it has templates
 *   GET    /cluster/teams/{team}/keys   [{id, hint, createdAt}]
 *   POST   /cluster/teams/{team}/keys   201 {id, key}: the only time that the key is shown
 *   DELETE /cluster/keys/{id}           204
 *   GET    /cluster/builds              the waiting and building ones
 */
#pragma once

#include "api/api.h"
#include "store/records.h"

/* `r` must outlive the dispatcher. */
void api_admin_routes(struct api *a, struct records *r);
