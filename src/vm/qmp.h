/* QMP messages as values: what a line from QEMU is, and the command lines sent to it. No I/O.
 */
#pragma once

#include <jansson.h>

#include "base/buf.h"

enum qmp_kind {
        QMP_UNKNOWN = 0, /* to be ignored, as the protocol asks */
        QMP_GREETING,
        QMP_RETURN,
        QMP_ERROR,
        QMP_EVENT,
};

/* Members point into the parsed line. */
struct qmp_message {
        enum qmp_kind kind;
        const json_t *value; /* RETURN: the value; EVENT: "data" or NULL */
        const char *text;    /* ERROR: "desc"; EVENT: the event's name */
        json_int_t id;       /* RETURN, ERROR: as sent, -1 when absent */
};

void qmp_classify(const json_t *line, struct qmp_message *ret);

/* Appends a command line; `arguments` may be NULL. */
void qmp_format(struct buf *b, const char *command, const json_t *arguments, json_int_t id);

/* Is `event` the one described by `wanted` {"event":NAME,"status":[…]}? "status" is optional and then compared
 * with data.status. */
int qmp_event_matches(const struct qmp_message *event, const json_t *wanted);
