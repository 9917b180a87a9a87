/* What happened in this sandbox, for its log (sandbox-api 17; envd.md appendix D): a bounded ring that the host collects by GET /telemetry.
 * Nothing of it is on disk in the guest. Thread-safe.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define JOURNAL_BYTES_MAX (256 * 1024) /* of entries; the oldest go first */
#define JOURNAL_TEXT_MAX 4096          /* bytes of a text in an entry; longer ones are cut, with an ellipsis */

/* Adds an entry: level is "debug", "info", "warn" or "error", `fields` an object of anything (taken over). */
void journal_add(const char *level, const char *logger, const char *message, json_t *fields);

/* A JSON string of at most JOURNAL_TEXT_MAX bytes of `text`. */
json_t *journal_text(const char *text);

/* Forgets everything: another sandbox begins here. */
void journal_reset(void);

/* Appends the members "epoch":"…","entries":[{"n","time_ns","level","logger","message","fields"}…]: the entries numbered above `after`, oldest first, at
 * most about `max` bytes of them. Numbers rise by one from 1 in each epoch; another epoch than `epoch` (NULL = unknown) begins at its first. */
void journal_read(const char *epoch, uint64_t after, size_t max, struct buf *out);
