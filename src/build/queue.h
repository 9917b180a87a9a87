/* The queue with its seam for tests: who runs a build and who kills its VM. */
#pragma once

#include "build/run.h"

struct build_queue_ops {
        int (*run)(struct build_run *r, struct build_outcome *ret, struct error *err);
        /* Ends the VM of a stopping build; called again every BUILD_KILL_INTERVAL_MS until the build has ended. */
        void (*kill_vm)(const char *vm_dir);
};

int build_queue_new_with(const struct build_settings *s, const struct build_events *e,
                         const struct build_queue_ops *ops, struct build_queue **ret, struct error *err);
