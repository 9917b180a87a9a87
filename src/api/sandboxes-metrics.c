/* GET /sandboxes/{id}/metrics and GET /sandboxes/metrics (sandbox-api 16). */
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
#define SECONDS_MAX (INT32_MAX * 4LL)  /* as nanoseconds it fits 64 bits */
#define TIME_MAX (SECONDS_MAX * 1000)  /* in either unit */
#define LATEST_NS (60 * NSEC_PER_SEC)

static json_t *metric_json(const struct sandbox_metrics *m)
{
        char when[RFC3339_MAX];
        rfc3339_format(m->time_ns, when);
        return json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}", "timestamp", when, "timestampUnix",
                         (json_int_t)(m->time_ns / NSEC_PER_SEC), "cpuCount", (json_int_t)m->cpu_count, "cpuUsedPct", m->cpu_used_pct,
                         "memUsed", (json_int_t)m->mem_used, "memTotal", (json_int_t)m->mem_total, "memCache", (json_int_t)m->mem_cache,
                         "diskUsed", (json_int_t)m->disk_used, "diskTotal", (json_int_t)m->disk_total);
}

int sandboxes_time_bound(const char *query, const char *key, const char *unit, int64_t *ret, struct error *err)
{
        uint64_t v;
        bool malformed = false;
        char *text = query_get(query, key, &malformed);
        bool valid = !malformed && (!text || str_to_u64(text, TIME_MAX, &v));
        if (valid && text)
                *ret = (int64_t)v;
        free(text);
        return valid ? 0 : error_set(err, ERROR_INVALID, "validation error: '%s' must be a time in %s since 1970", key, unit);
}

/* An unknown sandbox has no samples (sandbox-api 16). */
int sandboxes_metrics(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        struct sandbox_metrics *samples;
        int64_t start = 0, end = clock_realtime_ns() / NSEC_PER_SEC + 1;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = sandboxes_time_bound(q->http->query, "start", "seconds", &start, err);
        if (r == 0)
                r = sandboxes_time_bound(q->http->query, "end", "seconds", &end, err);
        if (r == 0 && start > end)
                r = error_set(err, ERROR_INVALID, "Invalid time range for metrics");
        if (r < 0)
                return r;
        start = start < SECONDS_MAX ? start : SECONDS_MAX;
        end = end < SECONDS_MAX ? end : SECONDS_MAX;
        size_t n = sandbox_metrics(s->manager, q->team, id, start * NSEC_PER_SEC, (end + 1) * NSEC_PER_SEC - 1, &samples);
        p->json = json_array();
        for (size_t i = 0; i < n; i++)
                json_array_append_new(p->json, metric_json(&samples[i]));
        free(samples);
        p->status = 200;
        return 0;
}

/* The newest sample of a running sandbox. */
static bool newest(struct sandboxes_api *s, const struct team *team, const char *id, struct sandbox_metrics *ret)
{
        struct sandbox_info *info = NULL;
        struct sandbox_metrics *samples = NULL;
        int64_t now = clock_realtime_ns();
        if (sandbox_get(s->manager, team, id, &info, NULL) < 0)
                return false;
        bool running = !info->paused;
        sandbox_info_free(info);
        size_t n = running ? sandbox_metrics(s->manager, team, id, now - LATEST_NS, INT64_MAX, &samples) : 0;
        if (n)
                *ret = samples[n - 1];
        free(samples);
        return n > 0;
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
                if (newest(s, q->team, id, &sample))
                        json_object_set_new(found, id, metric_json(&sample));
        }
        p->status = 200;
        p->json = json_pack("{s:O}", "sandboxes", found);
        return 0;
}
