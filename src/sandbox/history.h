/* What happened in sandboxes and what they used: DATA/history/<team>/<sandbox>/ with `log` and `metrics` (sandbox-api 16, 17). It outlives the
 * sandbox, for HISTORY_SECONDS, and is bounded in bytes for each sandbox and for all. It is not made durable: a crash of the
 * machine may cost the last entries, and what it leaves of a torn one is passed over.
 *
 * Functions may be called on any thread. Teams and sandboxes are named by their ids, of [a-z0-9-] (others have no history).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "sandbox/metrics.h"

#define HISTORY_SECONDS (7 * 24 * 3600)
#define HISTORY_FILE_MAX (4 * 1024 * 1024) /* of a log or of metrics; two of each are kept, so at least that much */
#define HISTORY_EPOCH_MAX 32
#define HISTORY_ENTRY_MAX 65536            /* bytes of an entry; larger ones are left out */

struct history;
/* Opens DATA/history, which is made on first use. */
struct history *history_new(const char *data_dir);
void history_free(struct history *h);

/* One entry by the host itself. `fields` is borrowed, an object or NULL. Failures are logged and cost the entry. */
void history_log(struct history *h, const char *team, const char *id, const char *level, const char *message, const json_t *fields);

/* Where a sandbox's agent goes on being read: after entry `number` of `epoch` (docs/agent-protocol.md). */
struct history_cursor {
        bool known;
        char epoch[HISTORY_EPOCH_MAX + 1];
        uint64_t number;
};
/* Finds it in the log. */
void history_cursor_find(struct history *h, const char *team, const char *id, struct history_cursor *ret);
/* Adds the entries of an agent's answer and moves the cursor past them; the guest is not trusted: what is no entry is left out, levels are one
 * of the four, times are not of the future. */
void history_take(struct history *h, const char *team, const char *id, const json_t *answer, struct history_cursor *cursor);

/* The pure part of it: the lines to be added, and the cursor moved. */
void history_lines(const json_t *answer, int64_t now_ns, struct history_cursor *cursor, struct buf *out);

enum history_level { HISTORY_DEBUG, HISTORY_INFO, HISTORY_WARN, HISTORY_ERROR };
/* "debug", "info", "warn" or "error"; negative on anything else. */
int history_level_parse(const char *s);

struct history_query {
        int64_t from_ns, to_ns;    /* inclusive */
        size_t limit;
        bool backward;             /* newest first; else oldest first. Which entries the limit leaves follows from it */
        enum history_level level;  /* at least */
        const char *search;        /* part of the message or of a field, case-insensitive, or NULL */
};
/* The entries, each {"time_ns","level","logger","message","fields"}: a new array, empty for what is unknown. */
json_t *history_logs(struct history *h, const char *team, const char *id, const struct history_query *q);

void history_sample(struct history *h, const char *team, const char *id, const struct sandbox_metrics *s);
/* The samples of from_ns to to_ns, in the order in which they were taken. free() *ret; its count is returned. */
size_t history_metrics(struct history *h, const char *team, const char *id, int64_t from_ns, int64_t to_ns, struct sandbox_metrics **ret);

/* Removes what was last written HISTORY_SECONDS ago, and then the least recently written ones beyond `bytes_max` (0: no bound). */
void history_trim(struct history *h, uint64_t bytes_max);
