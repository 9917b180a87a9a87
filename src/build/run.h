/* One build on its way through the pipeline: what the queue shares with the phases. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "build/build.h"
#include "build/cache.h"
#include "build/log.h"

enum build_stop {
        BUILD_GO = 0,
        BUILD_CANCELLED, /* build_queue_cancel() */
        BUILD_TIMED_OUT, /* settings.max_seconds */
};

struct build_run {
        struct build_job *job;
        const struct build_settings *settings;
        struct build_cache *cache;
        struct build_log log; /* log.step is also the step that a failure is attributed to */
        atomic_int stop;      /* enum build_stop; set by the queue under vm_lock, polled by the phases */

        /* Directory of the VM that runs now, or NULL. The queue kills what it finds there when the build is to stop,
         * which ends the call that waits for the guest. */
        pthread_mutex_t vm_lock;
        pthread_cond_t stopped; /* goes with vm_lock; monotonic clock; `stop` was set */
        char *vm_dir;
};

/* For the `cancelled` callbacks of oci.h and agent.h; `data` is the run. */
bool build_run_stopped(void *data);

/* Waits `ms` milliseconds, or less when the build is told to stop meanwhile. */
void build_run_pause(struct build_run *r, unsigned ms);

/* Sets the phase: its step is what log entries and a failure carry ("" = none). */
void build_run_phase(struct build_run *r, const char *step);

/* Announces (dir) or withdraws (NULL) the running VM. */
void build_run_vm(struct build_run *r, const char *dir);

/* The whole pipeline; 0 with builds/<buildID>/ published and `ret` filled, or negative with `err` holding the reason
 * (run->log.step the step). Leaves no VM and no scratch. */
int build_run_pipeline(struct build_run *r, struct build_outcome *ret, struct error *err);

void build_outcome_free(struct build_outcome *o);

/* Removes what interrupted builds of an earlier process left: their VMs, scratch directories, half-written builds. */
int build_clean_litter(const char *data_dir, struct error *err);

/* A path below the data directory; the caller frees. */
char *build_path(const struct build_settings *s, const char *sub, const char *name);
