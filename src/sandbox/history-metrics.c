/* Metrics: a record is nine little-endian numbers. */
#include <endian.h>
#include <string.h>

#include "base/mem.h"
#include "sandbox/history-internal.h"

#define METRICS "metrics"

struct record {
        uint64_t time_ns, cpu_count, cpu_hundredths, mem_used, mem_total, mem_cache, disk_used, disk_total, magic;
};
#define RECORD_MAGIC 0x766d6f6e6d657431ULL

void history_sample(struct history *h, const char *team, const char *id, const struct sandbox_metrics *s)
{
        const struct record r = {
                htole64((uint64_t)s->time_ns), htole64(s->cpu_count), htole64((uint64_t)(s->cpu_used_pct * 100 + 0.5)), htole64(s->mem_used),
                htole64(s->mem_total), htole64(s->mem_cache), htole64(s->disk_used), htole64(s->disk_total), htole64(RECORD_MAGIC),
        };
        history_append(h, team, id, METRICS, sizeof r, &r, sizeof r);
}

static bool read_record(const char *data, struct sandbox_metrics *ret)
{
        struct record r;
        memcpy(&r, data, sizeof r);
        *ret = (struct sandbox_metrics){
                .time_ns = (int64_t)le64toh(r.time_ns), .cpu_count = (unsigned)le64toh(r.cpu_count),
                .cpu_used_pct = (double)le64toh(r.cpu_hundredths) / 100, .mem_used = le64toh(r.mem_used), .mem_total = le64toh(r.mem_total),
                .mem_cache = le64toh(r.mem_cache), .disk_used = le64toh(r.disk_used), .disk_total = le64toh(r.disk_total),
        };
        return le64toh(r.magic) == RECORD_MAGIC;
}

size_t history_metrics(struct history *h, const char *team, const char *id, int64_t from_ns, int64_t to_ns, struct sandbox_metrics **ret)
{
        CLEANUP_BUF struct buf b = {};
        size_t n = 0;
        history_read(h, team, id, METRICS, sizeof(struct record), &b);
        *ret = xcalloc(b.len / sizeof(struct record) + 1, sizeof **ret);
        for (size_t at = 0; at + sizeof(struct record) <= b.len; at += sizeof(struct record)) {
                struct sandbox_metrics s;
                if (read_record(b.data + at, &s) && s.time_ns >= from_ns && s.time_ns <= to_ns)
                        (*ret)[n++] = s;
        }
        return n;
}
