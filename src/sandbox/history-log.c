/* Logs. A line is JSON that begins {"t":<ns>, so that choosing and ordering lines needs no parser. Lines are in the order in which they were
 * learned of, which is not quite that of their times: the guest's are collected seconds later. Readers sort.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/history-internal.h"

#define LOG "log"

static const char *const level_names[] = { "debug", "info", "warn", "error" };

int history_level_parse(const char *s)
{
        for (int i = 0; s && i < 4; i++)
                if (streq(s, level_names[i]))
                        return i;
        return -EINVAL;
}

/* Appends one line to `out`. */
static void add_line(struct buf *out, int64_t time_ns, const char *level, const char *logger, const char *message, const json_t *fields,
                     const char *epoch, uint64_t number)
{
        CLEANUP_JSON json_t *j = json_pack("{s:s, s:s, s:s, s:O*}", "level", level, "logger", logger, "message", message, "fields", fields);
        if (epoch) {
                json_object_set_new(j, "e", json_string(epoch));
                json_object_set_new(j, "n", json_integer((json_int_t)number));
        }
        CLEANUP_FREE char *rest = json_text(j);
        if (strlen(rest) <= HISTORY_ENTRY_MAX)
                buf_addf(out, "{\"t\":%lld,%s\n", (long long)time_ns, rest + 1);
}

void history_log(struct history *h, const char *team, const char *id, const char *level, const char *message, const json_t *fields)
{
        CLEANUP_BUF struct buf line = {};
        add_line(&line, clock_realtime_ns(), level, "sandbox", message, fields, NULL, 0);
        history_append(h, team, id, LOG, 0, line.data, line.len);
}

static void take_one(const json_t *e, int64_t now, struct history_cursor *c, struct buf *out)
{
        json_int_t number = json_int(e, "n", 0), time_ns = json_int(e, "time_ns", 0);
        const char *level = json_str(e, "level"), *logger = json_str(e, "logger"), *message = json_str(e, "message");
        const json_t *fields = json_object_get(e, "fields");
        if (number <= 0 || (uint64_t)number <= c->number)
                return;
        c->number = (uint64_t)number;
        if (history_level_parse(level) < 0 || !message)
                return;
        /* A clock that the guest has moved must not order its log. */
        if (time_ns <= now - HISTORY_SECONDS * NSEC_PER_SEC || time_ns > now)
                time_ns = now;
        add_line(out, time_ns, level, logger ?: "agent", message, json_is_object(fields) ? fields : NULL, c->epoch, c->number);
}

void history_lines(const json_t *answer, int64_t now_ns, struct history_cursor *cursor, struct buf *out)
{
        const char *epoch = json_str(answer, "epoch");
        const json_t *e;
        size_t i;
        if (!epoch || !history_is_name(epoch) || strlen(epoch) > HISTORY_EPOCH_MAX)
                return;
        if (!streq(epoch, cursor->epoch)) {
                cursor->number = 0;
                strcpy(cursor->epoch, epoch);
        }
        json_array_foreach(json_object_get(answer, "entries"), i, e)
                take_one(e, now_ns, cursor, out);
}

void history_take(struct history *h, const char *team, const char *id, const json_t *answer, struct history_cursor *cursor)
{
        CLEANUP_BUF struct buf lines = {};
        history_lines(answer, clock_realtime_ns(), cursor, &lines);
        history_append(h, team, id, LOG, 0, lines.data, lines.len);
}

struct line {
        int64_t time_ns;
        const char *text;
        size_t len;
};

static bool line_time(const char *text, size_t len, int64_t *ret)
{
        char *end;
        if (len < 8 || memcmp(text, "{\"t\":", 5) != 0)
                return false;
        errno = 0;
        *ret = strtoll(text + 5, &end, 10); /* the buffer is terminated */
        return errno == 0 && *end == ',' && text[len - 1] == '}';
}

static int by_time(const void *a, const void *b)
{
        const struct line *x = a, *y = b;
        if (x->time_ns != y->time_ns)
                return x->time_ns < y->time_ns ? -1 : 1;
        return x->text < y->text ? -1 : x->text > y->text;
}

/* The lines of the time asked for, in its order; free() them. */
static struct line *choose_lines(const struct buf *b, const struct history_query *q, size_t *ret_count)
{
        struct line *lines = NULL;
        size_t n = 0, capacity = 0;
        for (const char *p = buf_str(b), *end = p + b->len, *next; p < end; p = next) {
                const char *newline = memchr(p, '\n', (size_t)(end - p));
                struct line l = { .text = p, .len = (size_t)((newline ?: end) - p) };
                next = newline ? newline + 1 : end;
                if (!line_time(l.text, l.len, &l.time_ns) || l.time_ns < q->from_ns || l.time_ns > q->to_ns)
                        continue;
                if (n == capacity) {
                        capacity = capacity ? 2 * capacity : 256;
                        lines = xreallocarray(lines, capacity, sizeof *lines);
                }
                lines[n++] = l;
        }
        if (n)
                qsort(lines, n, sizeof *lines, by_time);
        *ret_count = n;
        return lines;
}

static bool contains(const char *text, const char *part)
{
        return text && strcasestr(text, part);
}

static bool matches(const json_t *j, const struct history_query *q)
{
        const char *key;
        json_t *value;
        int level = history_level_parse(json_str(j, "level"));
        if (level < 0 || level < (int)q->level)
                return false;
        bool found = !q->search || contains(json_str(j, "message"), q->search);
        json_object_foreach(json_object_get(j, "fields"), key, value)
                found = found || contains(json_string_value(value), q->search);
        return found;
}

json_t *history_logs(struct history *h, const char *team, const char *id, const struct history_query *q)
{
        CLEANUP_BUF struct buf b = {};
        json_t *found = json_array();
        size_t n;
        history_read(h, team, id, LOG, 0, &b);
        struct line *lines = choose_lines(&b, q, &n);
        for (size_t i = 0; i < n && json_array_size(found) < q->limit; i++) {
                const struct line *l = &lines[q->backward ? n - 1 - i : i];
                json_t *j = NULL;
                if (json_parse(l->text, l->len, &j, NULL) < 0)
                        continue;
                if (matches(j, q)) {
                        json_object_set_new(j, "time_ns", json_integer(l->time_ns));
                        json_array_append(found, j);
                }
                json_decref(j);
        }
        free(lines);
        return found;
}

/* By the last line that an agent wrote. */
static void find_cursor(const char *text, size_t len, struct history_cursor *ret)
{
        while (len > 0) {
                const char *newline = memrchr(text, '\n', len - 1), *line = newline ? newline + 1 : text;
                CLEANUP_JSON json_t *j = NULL;
                const char *epoch;
                if (json_parse(line, len - (size_t)(line - text), &j, NULL) == 0 && (epoch = json_str(j, "e")) && strlen(epoch) <= HISTORY_EPOCH_MAX) {
                        strcpy(ret->epoch, epoch);
                        ret->number = (uint64_t)json_int(j, "n", 0);
                        return;
                }
                len = (size_t)(line - text);
        }
}

void history_cursor_find(struct history *h, const char *team, const char *id, struct history_cursor *ret)
{
        CLEANUP_BUF struct buf b = {};
        *ret = (struct history_cursor){ .known = true };
        history_read(h, team, id, LOG, 0, &b);
        find_cursor(buf_str(&b), b.len, ret);
}
