/* Reading the agent's answers, apart from the asking (collect.c) because it is pure: the guest may answer anything. */
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/metrics.h"

static int no_answer(struct error *err, const char *why)
{
        return error_set(err, ERROR_UNAVAILABLE, "the sandbox's agent gave no metrics and logs: %s", why);
}

static uint64_t bytes_member(const json_t *j, const char *key)
{
        json_int_t v = json_int(j, key, 0);
        return v < 0 ? 0 : (uint64_t)v;
}

int sandbox_answer_parse(const char *answer, size_t len, int *ret_status, json_t **ret, struct error *err)
{
        const char *body = memmem(answer, len, "\r\n\r\n", 4);
        uint64_t status;
        if (len < 13 || strncmp(answer, "HTTP/1.", 7) != 0 || answer[8] != ' ' || answer[12] != ' ' || !body)
                return no_answer(err, "not HTTP");
        char digits[4] = { answer[9], answer[10], answer[11] };
        if (!str_to_u64(digits, 599, &status))
                return no_answer(err, "not HTTP");
        *ret_status = (int)status;
        *ret = NULL;
        if (status != 200)
                return 0;
        body += 4;
        if (json_parse(body, len - (body - answer), ret, NULL) == 0 && json_is_object(*ret))
                return 0;
        json_decref(*ret);
        *ret = NULL;
        return no_answer(err, "not a JSON object");
}

int sandbox_metrics_read(const json_t *j, struct sandbox_metrics *ret, struct error *err)
{
        json_int_t cpus = json_int(j, "cpu_count", 0);
        const json_t *used = json_object_get(j, "cpu_used_pct");
        if (cpus < 1 || cpus > 4096 || !json_is_number(used) || json_int(j, "ts", -1) < 0 || json_int(j, "mem_total", -1) < 0)
                return no_answer(err, "members are missing");
        double share = json_number_value(used);
        *ret = (struct sandbox_metrics){
                .time_ns = clock_realtime_ns(),
                .cpu_count = (unsigned)cpus,
                .cpu_used_pct = share > 0 ? share < 100 ? share : 100 : 0,
                .mem_used = bytes_member(j, "mem_used"),
                .mem_total = bytes_member(j, "mem_total"),
                .mem_cache = bytes_member(j, "mem_cache"),
                .disk_used = bytes_member(j, "disk_used"),
                .disk_total = bytes_member(j, "disk_total"),
        };
        return 0;
}
