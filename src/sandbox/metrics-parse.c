/* Reading the agent's answers and thinning series of them, apart from the asking (collect.c) because it is pure: the guest may answer anything. */
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/metrics.h"

int sandbox_answer_error(struct error *err, const char *why)
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
                return sandbox_answer_error(err, "not HTTP");
        char digits[4] = { answer[9], answer[10], answer[11] };
        if (!str_to_u64(digits, 599, &status))
                return sandbox_answer_error(err, "not HTTP");
        *ret_status = (int)status;
        *ret = NULL;
        if (status != 200)
                return 0;
        body += 4;
        if (json_parse(body, len - (body - answer), ret, NULL) == 0 && json_is_object(*ret))
                return 0;
        json_decref(*ret);
        *ret = NULL;
        return sandbox_answer_error(err, "not a JSON object");
}

int sandbox_metrics_read(const json_t *j, struct sandbox_metrics *ret, struct error *err)
{
        json_int_t cpus = json_int(j, "cpu_count", 0);
        const json_t *used = json_object_get(j, "cpu_used_pct");
        if (cpus < 1 || cpus > 4096 || !json_is_number(used) || json_int(j, "ts", -1) < 0 || json_int(j, "mem_total", -1) < 0)
                return sandbox_answer_error(err, "members are missing");
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

struct mean {
        struct sandbox_metrics sum;
        uint64_t count;
};

static void mean_add(struct mean *m, const struct sandbox_metrics *s)
{
        struct sandbox_metrics *sum = &m->sum;
        sum->time_ns = s->time_ns; /* the last one's */
        sum->cpu_count = s->cpu_count;
        sum->cpu_used_pct += s->cpu_used_pct;
        sum->mem_used += s->mem_used;
        sum->mem_total = s->mem_total;
        sum->mem_cache += s->mem_cache;
        sum->disk_used += s->disk_used;
        sum->disk_total = s->disk_total;
        m->count++;
}

static struct sandbox_metrics mean_of(const struct mean *m)
{
        struct sandbox_metrics s = m->sum;
        s.cpu_used_pct /= (double)m->count;
        s.mem_used /= m->count;
        s.mem_cache /= m->count;
        s.disk_used /= m->count;
        return s;
}

size_t sandbox_metrics_thin(struct sandbox_metrics *samples, size_t count, int64_t step_ns)
{
        struct mean mean = {};
        size_t n = 0;
        if (step_ns <= 0)
                return count;
        for (size_t i = 0; i < count; i++) {
                const struct sandbox_metrics s = samples[i];
                if (mean.count && s.time_ns / step_ns != mean.sum.time_ns / step_ns) {
                        samples[n++] = mean_of(&mean);
                        mean = (struct mean){};
                }
                mean_add(&mean, &s);
        }
        if (mean.count)
                samples[n++] = mean_of(&mean);
        return n;
}
