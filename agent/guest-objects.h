/* What lives in the kernel beyond the processes that made it: System V IPC, POSIX message queues, loop devices. */
#pragma once

#include "base/error.h"

/* Removes all shared memory segments, semaphores and message queues of both kinds. Nobody may use them any more. */
int guest_end_ipc(struct error *err);
/* Takes the files from all loop devices. Call when what was mounted of them is unmounted. */
int guest_end_loops(struct error *err);
