/* Reading the agent's metrics, apart from the asking (metrics.c) because it is pure: the guest may answer anything. */
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "sandbox/metrics.h"

static int no_answer(struct error *err, const char *why)
{
        return error_set(err, ERROR_UNAVAILABLE, "the sandbox's agent gave no metrics: %s", why);
}

static uint64_t bytes_member(const json_t *j, const char *key)
{
        json_int_t v = json_int(j, key, 0);
        return v < 0 ? 0 : (uint64_t)v;
}

int sandbox_metrics_parse(const char *answer, size_t len, struct sandbox_metrics *ret, struct error *err)
{
        const char *body = memmem(answer, len, "\r\n\r\n", 4);
        if (len < 13 || strncmp(answer, "HTTP/1.", 7) != 0 || strncmp(answer + 8, " 200 ", 5) != 0 || !body)
                return no_answer(err, "not a successful answer");
        body += 4;
        CLEANUP_JSON json_t *j = NULL;
        if (json_parse(body, len - (body - answer), &j, NULL) < 0 || !json_is_object(j))
                return no_answer(err, "not a JSON object");
        json_int_t cpus = json_int(j, "cpu_count", 0);
        const json_t *used = json_object_get(j, "cpu_used_pct");
        if (cpus < 1 || cpus > 4096 || !json_is_number(used) || json_int(j, "ts", -1) < 0 || json_int(j, "mem_total", -1) < 0)
                return no_answer(err, "members are missing");
        *ret = (struct sandbox_metrics){
                .time_ns = clock_realtime_ns(),
                .cpu_count = (unsigned)cpus,
                .cpu_used_pct = json_number_value(used),
                .mem_used = bytes_member(j, "mem_used"),
                .mem_total = bytes_member(j, "mem_total"),
                .mem_cache = bytes_member(j, "mem_cache"),
                .disk_used = bytes_member(j, "disk_used"),
                .disk_total = bytes_member(j, "disk_total"),
        };
        return 0;
}
