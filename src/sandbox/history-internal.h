/* The files of a sandbox's history, for those who write and read them: history-log.c, history-metrics.c, history-trim.c. */
#pragma once

#include <pthread.h>

#include "sandbox/history.h"

#define HISTORY_STRIPES 16

struct history {
        char *root;
        pthread_mutex_t stripes[HISTORY_STRIPES]; /* of one sandbox's files */
};

pthread_mutex_t *history_stripe(struct history *h, const char *id);
bool history_is_name(const char *s); /* of [a-z0-9-], not empty */

/* Appends to the file `name` of a sandbox. `record`: the length of its records, of which `data` is a whole number; 0: whole lines. What a crash has
 * left torn at the end is cut off, or ended. */
void history_append(struct history *h, const char *team, const char *id, const char *name, size_t record, const void *data, size_t len);
/* The old file and the current one behind each other, each cut to whole records, or ending with a line's end. */
void history_read(struct history *h, const char *team, const char *id, const char *name, size_t record, struct buf *out);
