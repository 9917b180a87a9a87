/* A bounded pool of threads for work that may block, with completion on the loop thread. Own threads rather than
 * libuv's pool: a handler may run for minutes, and libuv's four threads also serve dials and file work. Internal
 * to src/api/.
 */
#pragma once

#include <uv.h>

struct job {
        struct job *next;
        void (*run)(struct job *j);  /* worker thread */
        void (*done)(struct job *j); /* loop thread, afterwards */
};

struct workers;
int workers_new(uv_loop_t *loop, unsigned threads, struct workers **ret);
/* Loop thread. The queue is unbounded; connections bound it (one job an exchange). */
void workers_submit(struct workers *w, struct job *j);
/* Loop thread: runs what is queued to its end, calls its `done`, ends the threads. The loop must run once more
 * afterwards to let go of the wake-up handle. */
struct workers *workers_free(struct workers *w);
