/* The serial channel below agent.h: requests in flight, for vm_restore() and vm_capture(). */
#pragma once

#include "vm/agent.h"

/* Opens the channel without asking anything. */
int agent_open(struct vm *vm, struct agent **ret, struct error *err);

/* Sends a request; *ret_id is for agent_wait(). */
int agent_send(struct agent *a, const char *op, const json_t *arguments, json_int_t *ret_id, struct error *err);

/* Waits for the answer to `id`; answers to other (abandoned) requests are dropped. -ETIMEDOUT (ERROR_UNAVAILABLE)
 * after `timeout_ms`. */
int agent_wait(struct agent *a, json_int_t id, int timeout_ms, agent_event on_event, void *data, json_t **ret,
               struct error *err);
