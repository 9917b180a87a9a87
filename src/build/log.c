#include "build/log.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"

void build_log(const struct build_log *l, int level, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        CLEANUP_FREE char *text = NULL;
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        text = utf8_scrub(buf_str(&b), b.len);
        l->events->log(l->events->data, l->build_id, level, l->step[0] ? l->step : NULL, text);
}

void build_log_time(struct build_log *l, const char *what)
{
        int64_t now = clock_monotonic_ns();

        if (l->mark_ns)
                build_log(l, LOG_LEVEL_DEBUG, "[time] %s: %lld ms", what, (long long)((now - l->mark_ns) / NSEC_PER_MSEC));
        l->mark_ns = now;
}

static bool blank(char c)
{
        return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f';
}

static void emit_raw(struct line_splitter *s, const char *data, size_t len)
{
        CLEANUP_FREE char *line = utf8_scrub(data, len);

        s->on_line(line, s->data);
}

/* The end of a line; blanks before the last piece of a long one belong to its middle. */
static void emit(struct line_splitter *s, const char *data, size_t len)
{
        while (len && !s->continues && blank(data[0])) {
                data++;
                len--;
        }
        s->continues = false;
        while (len && blank(data[len - 1]))
                len--;
        if (len)
                emit_raw(s, data, len);
}

/* The last place at or before `max` that does not cut a UTF-8 sequence. */
static size_t cut(const char *data, size_t max)
{
        size_t n = max;

        while (n > max - 4 && ((unsigned char)data[n] & 0xc0) == 0x80)
                n--;
        return n > max - 4 ? n : max;
}

/* Hands out everything that is complete. */
static void hand_out(struct line_splitter *s)
{
        size_t at = 0;

        for (;;) {
                const char *p = s->pending.data + at;
                size_t left = s->pending.len - at;
                const char *nl = left ? memchr(p, '\n', left) : NULL;
                size_t n;

                if (nl && (size_t)(nl - p) <= BUILD_LOG_LINE_MAX) {
                        emit(s, p, (size_t)(nl - p));
                        at += (size_t)(nl - p) + 1;
                        continue;
                }
                if (left <= BUILD_LOG_LINE_MAX)
                        break;
                n = cut(p, BUILD_LOG_LINE_MAX);
                emit_raw(s, p, n); /* untrimmed: the pieces joined are the line */
                s->continues = true;
                at += n;
        }
        if (at)
                buf_consume(&s->pending, at);
}

void line_splitter_feed(struct line_splitter *s, const char *data, size_t len)
{
        buf_add(&s->pending, data, len);
        if (memchr(data, '\n', len) || s->pending.len > BUILD_LOG_LINE_MAX)
                hand_out(s);
}

void line_splitter_end(struct line_splitter *s)
{
        hand_out(s);
        emit(s, buf_str(&s->pending), s->pending.len);
        buf_clear(&s->pending);
}

void line_splitter_free(struct line_splitter *s)
{
        buf_free(&s->pending);
}

static void keep(struct output_log *o, const char *line)
{
        if (o->tail_count == BUILD_SCRIPT_TAIL_LINES) {
                free(o->tail[0]);
                memmove(o->tail, o->tail + 1, (--o->tail_count) * sizeof(char *));
        }
        o->tail[o->tail_count++] = xstrdup(line);
}

static void on_line(struct output_log *o, const char *stream, const char *line)
{
        if (o->take && o->take(line, o->take_data))
                return;
        keep(o, line);
        if (o->name_streams)
                build_log(o->log, o->level, "%s[%s]: %s", o->prefix, stream, line);
        else
                build_log(o->log, o->level, "%s%s", o->prefix, line);
}

static void on_out(const char *line, void *data)
{
        on_line(data, "stdout", line);
}

static void on_err(const char *line, void *data)
{
        on_line(data, "stderr", line);
}

void output_log_init(struct output_log *o, const struct build_log *log, int level, const char *prefix,
                     bool name_streams)
{
        *o = (struct output_log){
                .log = log,
                .level = level,
                .prefix = prefix,
                .name_streams = name_streams,
                .out = {.on_line = on_out, .data = o},
                .err = {.on_line = on_err, .data = o},
                .tail = xcalloc(BUILD_SCRIPT_TAIL_LINES, sizeof(char *)),
        };
}

void output_log_feed(struct output_log *o, int stream, const char *data, size_t len)
{
        line_splitter_feed(stream == 2 ? &o->err : &o->out, data, len);
}

void output_log_end(struct output_log *o)
{
        line_splitter_end(&o->out);
        line_splitter_end(&o->err);
}

char *output_log_last(const struct output_log *o, size_t max)
{
        const char *line = o->tail_count ? o->tail[o->tail_count - 1] : "";
        size_t len = strlen(line);

        return xstrndup(line, len > max ? cut(line, max) : len);
}

void output_log_free(struct output_log *o)
{
        line_splitter_free(&o->out);
        line_splitter_free(&o->err);
        for (size_t i = 0; i < o->tail_count; i++)
                free(o->tail[i]);
        free(o->tail);
        *o = (struct output_log){};
}

char *format_seconds(unsigned long s)
{
        if (s >= 3600)
                return xasprintf("%luh%lum%lus", s / 3600, s / 60 % 60, s % 60);
        if (s >= 60)
                return xasprintf("%lum%lus", s / 60, s % 60);
        return xasprintf("%lus", s);
}
