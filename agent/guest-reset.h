/* What a step changed outside its disk, undone, so that the next one finds what it would find after a fresh boot
 * (template-api 11: a step that comes from the cache leaves nothing but its disk). Only as PID 1.
 */
#pragma once

#include "base/error.h"

/* Remembers what is mounted now; once, at the start, before anything else runs. */
void guest_reset_prepare(void);

/* Behind process_end_all(): swap off, what was mounted since unmounted, what was unmounted mounted again, /run and
 * /dev/shm empty, /dev as it was, the root writable, loop devices free, no System V IPC and no message queues, the host's name
 * set. Kernel parameters (sysctl), loaded modules with their devices, and the network's configuration are left as the step made
 * them. An error names what could not be undone. */
int guest_reset(struct error *err);
