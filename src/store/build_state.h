/* The life of a build as one table of moves: pure, no I/O. Whoever changes the state of a build record asks it first.
 *
 *                 TRIGGER    READY   FAIL    SUPERSEDE  INTERRUPT  EXPIRE
 *   waiting       building   -       error   error      -          error
 *   building      -          ready   error   -          error      -
 *   ready         -          -       -       -          -          -
 *   error         -          -       -       -          -          -
 *
 * "-": the event does not move a build in this state. A build that waits for its turn in the queue is building: the
 * 40 minutes of EXPIRE are for builds that nobody triggered.
 */
#pragma once

#include <stdbool.h>

enum build_state { BUILD_WAITING = 0, BUILD_BUILDING, BUILD_READY, BUILD_ERROR };
#define BUILD_STATES (BUILD_ERROR + 1)
const char *build_state_name(enum build_state s); /* "waiting" … (template-api W9) */
enum build_state build_state_from(const char *name); /* BUILD_ERROR for anything unknown, as in template-api 14.1 */

enum build_event {
        BUILD_EVENT_TRIGGER = 0,
        BUILD_EVENT_READY,     /* its artifacts are durable */
        BUILD_EVENT_FAIL,      /* the build's own failure, its cancellation, the deletion of its template */
        BUILD_EVENT_SUPERSEDE, /* a newer build with an overlapping tag was registered (template-api 16.2) */
        BUILD_EVENT_INTERRUPT, /* the server that ran it has ended */
        BUILD_EVENT_EXPIRE,    /* nobody triggered it in time (template-api 14.1) */
};
#define BUILD_EVENTS (BUILD_EVENT_EXPIRE + 1)

/* Whether `event` moves a build in state `from`; if so, `*ret` is its new state, else untouched. */
bool build_state_next(enum build_state from, enum build_event event, enum build_state *ret);
/* No event moves it any more. */
bool build_state_is_final(enum build_state s);
