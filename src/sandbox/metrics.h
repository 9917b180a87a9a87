/* What a guest uses, asked of its agent (envd.md 3.3). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "sandbox/sandbox.h"

struct sandbox_metrics {
        int64_t time_ns;
        unsigned cpu_count;
        double cpu_used_pct;
        uint64_t mem_used, mem_total, mem_cache, disk_used, disk_total; /* bytes */
};

/* Blocking (worker thread), at most a few seconds. NOT_FOUND for an unknown sandbox, UNAVAILABLE when its agent does not
 * answer. */
int sandbox_metrics_sample(struct sandbox_manager *m, const struct team *team, const char *id, struct sandbox_metrics *ret, struct error *err);

/* Reads the agent's whole HTTP/1.0 answer. Pure; ERROR_UNAVAILABLE when it is no 200 with the members of envd.md 3.3. */
int sandbox_metrics_parse(const char *answer, size_t len, struct sandbox_metrics *ret, struct error *err);
