/* The serial channel to the host (docs/agent-protocol.md): JSON lines, one request after another. */
#pragma once

#include <jansson.h>

#include "base/error.h"

#define SERIAL_LINE_MAX (1024 * 1024)
#define SERIAL_QUEUE_MAX 64 /* requests waiting behind a long one */

/* Starts the two threads. `path` is a character device or a UNIX socket to listen at, or NULL to wait for the
 * virtio port `vmon.agent`. */
void serial_start(const char *path);

/* For the operation under way: an event of it, {"id":…,"event":event}. Steals `event`. */
void serial_event(json_t *id, json_t *event);

/* One operation. Fills `ret` with the result object, or `err`. `after` may be set to a function that runs when the
 * answer is on its way (switch-root, power-off). Off the loop thread. */
int serial_operation(const json_t *request, json_t *id, json_t **ret, void (**after)(void), struct error *err);
