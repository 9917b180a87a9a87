/* The build log: entries with a level and a step, and the splitting of command output into them.
 *
 * Entries are valid UTF-8; control sequences pass unchanged (known-failures 92). The texts are template-api 13 and
 * 14.3. Nothing here is thread-safe: a build logs from its one worker thread.
 */
#pragma once

#include <stddef.h>

#include "base/buf.h"
#include "base/log.h"
#include "build/build.h"

struct build_log {
        const struct build_events *events;
        const char *build_id;
        char step[16]; /* "base", "finalize", a number, or "" for none */
        int64_t mark_ns; /* when the last phase ended; 0 at first */
};

/* One entry at `level` (enum log_level). */
void build_log(const struct build_log *l, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A phase has ended: logs "[time] <what>: <n> ms" since the end of the one before, at debug. bench/run build reads it. */
void build_log_time(struct build_log *l, const char *what);

/* Splits a stream of bytes into trimmed lines, blank ones dropped. A line longer than BUILD_LOG_LINE_MAX is handed out
 * in pieces, cut between characters. */
struct line_splitter {
        struct buf pending;
        void (*on_line)(const char *line, void *data); /* valid UTF-8 */
        void *data;
        bool continues; /* a piece of the pending line has been handed out */
};
void line_splitter_feed(struct line_splitter *s, const char *data, size_t len);
/* The end of the stream: an unfinished line is handed out. */
void line_splitter_end(struct line_splitter *s);
void line_splitter_free(struct line_splitter *s);

/* Output of one command on its way into the log, "<prefix><stream name>: <line>" as the format says; keeps the last
 * lines for an error message. */
struct output_log {
        const struct build_log *log;
        int level;
        const char *prefix; /* "[builder 1/2] " */
        bool name_streams;  /* put "[stdout]: " or "[stderr]: " after the prefix */
        bool (*take)(const char *line, void *data); /* may take a line away before it is logged; or NULL */
        void *take_data;
        struct line_splitter out, err;
        char **tail; /* the last BUILD_SCRIPT_TAIL_LINES lines, oldest first */
        size_t tail_count;
};
void output_log_init(struct output_log *o, const struct build_log *log, int level, const char *prefix,
                     bool name_streams);
/* Matches agent_process.on_output; `stream` 2 is stderr. */
void output_log_feed(struct output_log *o, int stream, const char *data, size_t len);
void output_log_end(struct output_log *o);
/* The last line ("" when there was none), cut between characters to at most `max` bytes; the caller frees. */
char *output_log_last(const struct output_log *o, size_t max);
void output_log_free(struct output_log *o);

/* "1m12s", "45s", "1h0m5s": as upstream prints durations. The caller frees. */
char *format_seconds(unsigned long seconds);
