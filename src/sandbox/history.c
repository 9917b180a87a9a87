/* Files of a sandbox's history. Appending is one write() to a file opened for it, so entries are whole or, after a crash, torn at the end of the
 * file; the next one then begins on a new line, and readers pass over lines and records that make no sense. A file that has reached
 * HISTORY_FILE_MAX is renamed to <name>.old, in place of the one before.
 *
 * A line of `log` is JSON that begins {"t":<ns>, so that choosing and ordering lines needs no parser. Lines are in the order in which they were
 * learned of, which is not quite that of their times: the guest's are collected seconds later. Readers sort.
 *
 * A record of `metrics` is ten little-endian numbers (struct record).
 */
#include "sandbox/history.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#define STRIPES 16
#define TAIL_BYTES 65536 /* of the log in which the cursor is looked for first */

struct history {
        char *root;
        pthread_mutex_t stripes[STRIPES]; /* of one sandbox's files */
};

struct record {
        uint64_t time_ns, cpu_count, cpu_hundredths, mem_used, mem_total, mem_cache, disk_used, disk_total, magic;
};
#define RECORD_MAGIC 0x766d6f6e6d657431ULL

static const char *const level_names[] = { "debug", "info", "warn", "error" };

int history_level_parse(const char *s)
{
        for (int i = 0; s && i < 4; i++)
                if (streq(s, level_names[i]))
                        return i;
        return -EINVAL;
}

struct history *history_new(const char *data_dir)
{
        struct history *h = xcalloc(1, sizeof *h);
        h->root = path_join(data_dir, "history");
        for (int i = 0; i < STRIPES; i++)
                pthread_mutex_init(&h->stripes[i], NULL);
        return h;
}

void history_free(struct history *h)
{
        if (!h)
                return;
        for (int i = 0; i < STRIPES; i++)
                pthread_mutex_destroy(&h->stripes[i]);
        free(h->root);
        free(h);
}

static pthread_mutex_t *stripe(struct history *h, const char *id)
{
        unsigned sum = 0;
        for (; *id; id++)
                sum = sum * 31 + (unsigned char)*id;
        return &h->stripes[sum % STRIPES];
}

static bool is_name(const char *s)
{
        return *s && !s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-")];
}

/* NULL when there can be none. */
static char *file_of(const struct history *h, const char *team, const char *id, const char *name)
{
        return is_name(team) && is_name(id) ? xasprintf("%s/%s/%s/%s", h->root, team, id, name) : NULL;
}

/* Writing */

static void rotate(const char *path)
{
        CLEANUP_FREE char *old = xasprintf("%s.old", path);
        if (rename(path, old) < 0)
                log_warn("rename %s: errno %d", path, errno);
}

static int open_for_append(const char *path)
{
        int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 && errno == ENOENT) {
                CLEANUP_FREE char *dir = xstrndup(path, (size_t)(strrchr(path, '/') - path));
                struct error err = {};
                if (dir_make(dir, 0700, &err) < 0)
                        log_warn("%s", err.message);
                fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        }
        return fd;
}

/* With the stripe. `text`: of lines, so that one torn by a crash is ended first; else of whole records, and a torn one is cut off. */
static void append(const char *path, bool text, const void *data, size_t len)
{
        CLEANUP_CLOSE int fd = open_for_append(path);
        struct stat st;
        char last = '\n';
        if (fd < 0 || fstat(fd, &st) < 0) {
                log_warn("write %s: errno %d", path, errno);
                return;
        }
        if (st.st_size + (off_t)len > HISTORY_FILE_MAX) {
                rotate(path);
                close(fd);
                fd = open_for_append(path);
                st.st_size = 0;
        }
        off_t torn = text ? 0 : st.st_size % (off_t)sizeof(struct record);
        if (torn > 0 && ftruncate(fd, st.st_size - torn) < 0)
                log_warn("truncate %s: errno %d", path, errno);
        if (text && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n')
                fd_write_all(fd, "\n", 1);
        int r = fd_write_all(fd, data, len);
        if (r < 0)
                log_warn("write %s: errno %d", path, -r);
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

static void append_lines(struct history *h, const char *team, const char *id, const struct buf *lines)
{
        CLEANUP_FREE char *path = file_of(h, team, id, "log");
        if (!path || !lines->len)
                return;
        pthread_mutex_lock(stripe(h, id));
        append(path, true, lines->data, lines->len);
        pthread_mutex_unlock(stripe(h, id));
}

void history_log(struct history *h, const char *team, const char *id, const char *level, const char *message, const json_t *fields)
{
        CLEANUP_BUF struct buf line = {};
        add_line(&line, clock_realtime_ns(), level, "sandbox", message, fields, NULL, 0);
        append_lines(h, team, id, &line);
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
        if (!epoch || !is_name(epoch) || strlen(epoch) > HISTORY_EPOCH_MAX)
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
        append_lines(h, team, id, &lines);
}

/* Reading */

/* The old file and the current one, behind each other. */
static void read_both(struct history *h, const char *id, const char *path, struct buf *out)
{
        CLEANUP_FREE char *old = xasprintf("%s.old", path);
        pthread_mutex_lock(stripe(h, id));
        file_read(old, HISTORY_FILE_MAX + HISTORY_ENTRY_MAX, out, NULL);
        /* It may end with what a crash has left. */
        if (!str_ends(path, "/log"))
                out->len -= out->len % sizeof(struct record);
        else if (out->len && out->data[out->len - 1] != '\n')
                buf_addc(out, '\n');
        file_read(path, HISTORY_FILE_MAX + HISTORY_ENTRY_MAX, out, NULL);
        pthread_mutex_unlock(stripe(h, id));
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
        CLEANUP_FREE char *path = file_of(h, team, id, "log");
        CLEANUP_BUF struct buf b = {};
        json_t *found = json_array();
        size_t n;
        if (!path)
                return found;
        read_both(h, id, path, &b);
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

/* The last line that an agent wrote; false when there is none in `text`. */
static bool find_cursor(const char *text, size_t len, struct history_cursor *ret)
{
        while (len > 0) {
                const char *newline = memrchr(text, '\n', len - 1), *line = newline ? newline + 1 : text;
                CLEANUP_JSON json_t *j = NULL;
                const char *epoch;
                if (json_parse(line, len - (size_t)(line - text), &j, NULL) == 0 && (epoch = json_str(j, "e")) && strlen(epoch) <= HISTORY_EPOCH_MAX) {
                        strcpy(ret->epoch, epoch);
                        ret->number = (uint64_t)json_int(j, "n", 0);
                        return true;
                }
                len = (size_t)(line - text);
        }
        return false;
}

void history_cursor_find(struct history *h, const char *team, const char *id, struct history_cursor *ret)
{
        CLEANUP_FREE char *path = file_of(h, team, id, "log");
        CLEANUP_BUF struct buf b = {};
        *ret = (struct history_cursor){ .known = true };
        if (!path)
                return;
        read_both(h, id, path, &b);
        size_t tail = b.len < TAIL_BYTES ? b.len : TAIL_BYTES;
        if (tail && !find_cursor(b.data + b.len - tail, tail, ret))
                find_cursor(b.data, b.len, ret);
}

/* Metrics */

void history_sample(struct history *h, const char *team, const char *id, const struct sandbox_metrics *s)
{
        CLEANUP_FREE char *path = file_of(h, team, id, "metrics");
        const struct record r = {
                htole64((uint64_t)s->time_ns), htole64(s->cpu_count), htole64((uint64_t)(s->cpu_used_pct * 100 + 0.5)), htole64(s->mem_used),
                htole64(s->mem_total), htole64(s->mem_cache), htole64(s->disk_used), htole64(s->disk_total), htole64(RECORD_MAGIC),
        };
        if (!path)
                return;
        pthread_mutex_lock(stripe(h, id));
        append(path, false, &r, sizeof r);
        pthread_mutex_unlock(stripe(h, id));
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

size_t history_metrics(struct history *h, const char *team, const char *id, int64_t from_ns, int64_t to_ns, int64_t step_ns,
                       struct sandbox_metrics **ret)
{
        CLEANUP_FREE char *path = file_of(h, team, id, "metrics");
        CLEANUP_BUF struct buf b = {};
        struct mean mean = {};
        size_t n = 0;
        if (path)
                read_both(h, id, path, &b);
        *ret = xcalloc(b.len / sizeof(struct record) + 1, sizeof **ret);
        for (size_t at = 0; at + sizeof(struct record) <= b.len; at += sizeof(struct record)) {
                struct sandbox_metrics s;
                if (!read_record(b.data + at, &s) || s.time_ns < from_ns || s.time_ns > to_ns)
                        continue;
                if (mean.count && (step_ns <= 0 || s.time_ns / step_ns != mean.sum.time_ns / step_ns)) {
                        (*ret)[n++] = mean_of(&mean);
                        mean = (struct mean){};
                }
                mean_add(&mean, &s);
        }
        if (mean.count)
                (*ret)[n++] = mean_of(&mean);
        return n;
}

/* Trimming */

struct kept {
        char *path, *id;
        int64_t written_s;
        uint64_t bytes;
};

struct kept_list {
        struct kept *items;
        size_t count;
};

static struct kept measure(const char *team_dir, const char *id)
{
        struct kept k = { .path = path_join(team_dir, id), .id = xstrdup(id) };
        for (const char *const *name = (const char *const[]){ "log", "log.old", "metrics", "metrics.old", NULL }; *name; name++) {
                CLEANUP_FREE char *file = path_join(k.path, *name);
                struct stat st;
                if (stat(file, &st) < 0)
                        continue;
                k.bytes += (uint64_t)st.st_blocks * 512;
                if (st.st_mtime > k.written_s)
                        k.written_s = st.st_mtime;
        }
        return k;
}

static void list_sandboxes(const char *team_dir, struct kept_list *l)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(team_dir);
        const struct dirent *de;
        while (d && (de = readdir(d))) {
                if (!is_name(de->d_name))
                        continue;
                l->items = xreallocarray(l->items, l->count + 1, sizeof *l->items);
                l->items[l->count++] = measure(team_dir, de->d_name);
        }
}

static int by_written(const void *a, const void *b)
{
        const struct kept *x = a, *y = b;
        return x->written_s < y->written_s ? -1 : x->written_s > y->written_s;
}

static void remove_kept(struct history *h, const struct kept *k)
{
        struct error err = {};
        pthread_mutex_lock(stripe(h, k->id));
        if (tree_remove(k->path, &err) < 0)
                log_warn("history of sandbox %s: %s", k->id, err.message);
        pthread_mutex_unlock(stripe(h, k->id));
}

static void trim(struct history *h, struct kept_list *l, uint64_t bytes_max)
{
        int64_t limit = clock_realtime_ns() / NSEC_PER_SEC - HISTORY_SECONDS;
        uint64_t total = 0;
        for (size_t i = 0; i < l->count; i++)
                total += l->items[i].bytes;
        if (l->count)
                qsort(l->items, l->count, sizeof *l->items, by_written);
        for (size_t i = 0; i < l->count; i++) {
                const struct kept *k = &l->items[i];
                if (k->written_s >= limit && (bytes_max == 0 || total <= bytes_max))
                        break;
                total -= k->bytes;
                remove_kept(h, k);
        }
}

void history_trim(struct history *h, uint64_t bytes_max)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(h->root);
        struct kept_list l = {};
        const struct dirent *de;
        while (d && (de = readdir(d))) {
                CLEANUP_FREE char *team_dir = path_join(h->root, de->d_name);
                if (is_name(de->d_name))
                        list_sandboxes(team_dir, &l);
        }
        trim(h, &l, bytes_max);
        for (size_t i = 0; i < l.count; i++) {
                free(l.items[i].path);
                free(l.items[i].id);
        }
        free(l.items);
}
