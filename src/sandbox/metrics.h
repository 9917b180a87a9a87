/* What a guest uses, asked of its agent (envd.md 3.3). */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct sandbox_metrics {
        int64_t time_ns;
        unsigned cpu_count;
        double cpu_used_pct;
        uint64_t mem_used, mem_total, mem_cache, disk_used, disk_total; /* bytes */
};

/* Reads the members of envd.md 3.3, as the agent gave them now. Pure; ERROR_UNAVAILABLE when some are missing. */
int sandbox_metrics_read(const json_t *j, struct sandbox_metrics *ret, struct error *err);

/* ERROR_UNAVAILABLE: what the agent answered, or did not, is no use, `why`. */
int sandbox_answer_error(struct error *err, const char *why);

/* Reads the agent's whole HTTP/1.0 answer: *ret_status is its status and *ret the JSON object in its body. Pure; ERROR_UNAVAILABLE when it is none. */
int sandbox_answer_parse(const char *answer, size_t len, int *ret_status, json_t **ret, struct error *err);

/* Puts in place of the samples of each `step_ns` of time (0: none are put together) their mean, with the time of the last; returns how many are
 * left, at the start of the array. Pure. */
size_t sandbox_metrics_thin(struct sandbox_metrics *samples, size_t count, int64_t step_ns);
