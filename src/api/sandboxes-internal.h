/* Shared by the files that implement api/sandboxes.h. Handlers are api_route.handler, data is struct sandboxes_api. */
#pragma once

#include "api/sandboxes.h"

/* The sandbox of the request's first parameter for its team; ERROR_INVALID "Invalid sandbox ID" or NOT_FOUND. */
int sandboxes_target(const struct api_request *q, char *ret_id, struct error *err); /* ret_id: SANDBOX_ID_MAX + 1 bytes */

/* sandbox-api 5.3, 6.3 and 7. New references. */
json_t *sandbox_json(const struct sandbox_info *i);
json_t *sandbox_listed_json(const struct sandbox_info *i);
json_t *sandbox_detail_json(const struct sandbox_info *i);

int sandboxes_create(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_create_v2(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_fork(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_snapshot(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_snapshots(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_list(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_list_v2(void *data, struct api_request *q, struct api_response *p, struct error *err);
/* A bound of a time range in the query, in ms or s: `*ret` keeps its default when `key` is absent. As milliseconds it fits 64 bits of nanoseconds.
 * ERROR_INVALID says `unit`. */
int sandboxes_time_bound(const char *query, const char *key, const char *unit, int64_t *ret, struct error *err);
int sandboxes_logs(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_logs_v2(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_metrics(void *data, struct api_request *q, struct api_response *p, struct error *err);
int sandboxes_metrics_many(void *data, struct api_request *q, struct api_response *p, struct error *err);
