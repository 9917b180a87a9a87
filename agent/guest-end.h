/* The ordered end of a guest whose PID 1 is the agent. Loop thread only. */
#pragma once

/* Asks every process to end (SIGTERM), kills after GUEST_END_GRACE_MS what is left, writes the file systems out and powers off.
 * Returns at once; streams of the API go on until then, so that clients read how their processes ended. A second call
 * changes nothing. */
void guest_end(void);

/* After children were reaped: powers off when an end is under way and nothing runs any more. */
void guest_end_reaped(void);
