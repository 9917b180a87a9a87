/* GET /sandboxes/{id}/metrics and GET /sandboxes/metrics (sandbox-api 16): one sample, taken from the agent now. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/sandboxes-internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "http/message.h"
#include "sandbox/id.h"
#include "sandbox/metrics.h"

#define SANDBOXES_AT_ONCE 100

static json_t *metric_json(const struct sandbox_metrics *m)
{
        char when[RFC3339_MAX];
        rfc3339_format(m->time_ns, when);
        return json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}", "timestamp", when, "timestampUnix",
                         (json_int_t)(m->time_ns / NSEC_PER_SEC), "cpuCount", (json_int_t)m->cpu_count, "cpuUsedPct", m->cpu_used_pct,
                         "memUsed", (json_int_t)m->mem_used, "memTotal", (json_int_t)m->mem_total, "memCache", (json_int_t)m->mem_cache,
                         "diskUsed", (json_int_t)m->disk_used, "diskTotal", (json_int_t)m->disk_total);
}

/* A bound of the time range in seconds; `*ret` keeps its default when absent. */
static int bound(const char *query, const char *key, int64_t *ret, struct error *err)
{
        uint64_t v;
        bool malformed = false;
        char *text = query_get(query, key, &malformed);
        bool valid = !malformed && (!text || str_to_u64(text, INT32_MAX * 1000LL, &v));
        if (valid && text)
                *ret = (int64_t)v;
        free(text);
        return valid ? 0 : error_set(err, ERROR_INVALID, "validation error: '%s' must be a time in seconds since 1970", key);
}

/* An unknown sandbox has no samples; so has one that ends while it is asked (sandbox-api 16). */
int sandboxes_metrics(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        struct sandbox_metrics sample;
        int64_t now = clock_realtime_ns() / NSEC_PER_SEC, start = 0, end = now;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = bound(q->http->query, "start", &start, err);
        if (r == 0)
                r = bound(q->http->query, "end", &end, err);
        if (r == 0 && start > end)
                r = error_set(err, ERROR_INVALID, "Invalid time range for metrics");
        if (r < 0)
                return r;
        p->json = json_array();
        if (start <= now && now <= end + 1) {
                r = sandbox_metrics_sample(s->manager, q->team, id, &sample, err);
                if (r == 0)
                        json_array_append_new(p->json, metric_json(&sample));
                else if (err->kind != ERROR_NOT_FOUND)
                        return r;
        }
        p->status = 200;
        return 0;
}

int sandboxes_metrics_many(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        bool malformed = false;
        CLEANUP_FREE char *ids = query_get(q->http->query, "sandbox_ids", &malformed);
        CLEANUP_JSON json_t *found = json_object();
        if (malformed || !ids)
                return error_set(err, ERROR_INVALID, "validation error: 'sandbox_ids' is required");
        unsigned n = 0;
        char *save = NULL;
        for (char *item = strtok_r(ids, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
                char id[SANDBOX_ID_MAX + 1];
                struct sandbox_metrics sample;
                if (++n > SANDBOXES_AT_ONCE || sandbox_id_parse(item, id) < 0)
                        return error_set(err, ERROR_INVALID, "validation error: 'sandbox_ids' must be at most %d sandbox IDs", SANDBOXES_AT_ONCE);
                if (sandbox_metrics_sample(s->manager, q->team, id, &sample, NULL) == 0)
                        json_object_set_new(found, id, metric_json(&sample));
        }
        p->status = 200;
        p->json = json_pack("{s:O}", "sandboxes", found);
        return 0;
}
