/* Control groups of the guest (v2) and the freezer that quiets it around snapshots (envd.md 5.3).
 *
 * Silently absent where there is no cgroup2 tree or the agent is confined; the freezer then falls back to
 * SIGSTOP. Thread-safe: freezing runs on the channel's thread, spawning on the loop.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

enum cgroup_kind {
        CGROUP_USER,
        CGROUP_PTY,
        CGROUP_AGENT, /* stays beside the agent (tag `_system`) */
};

/* Creates `user` and `ptys`; as PID 1 the agent also moves itself to `vmon-agent`. Once, at start. */
void cgroup_setup(void);

/* A descriptor into whose file a child writes "0" to join the group; -1 when it stays. The caller closes. */
int cgroup_open_procs(enum cgroup_kind kind);

/* While on, children stay in the agent's own group, so that they run though everything else is frozen (serial operation `warm`). */
void cgroup_rehearse(bool on);

/* Stops every process but the agent, kernel threads and (where cgroups exist) nothing else; waits until they are
 * stopped, 5 s at most: a task in an uninterruptible sleep does not fail a snapshot. */
void freezer_freeze(void);
/* Undoes it; harmless when nothing is frozen. */
void freezer_thaw(void);

/* Kills every process but the agent and kernel threads, and waits until they are reaped. Only as PID 1. */
int process_end_all(struct error *err);
