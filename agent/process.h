/* The processes started through the agent: registry, output, input, end (envd.md 2.1, 5). Loop thread only. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "spawn.h"

#define PROCESS_RETAIN_MS 30000 /* how long the end of a process stays known */
#define PROCESS_LINGER_MS 5000  /* how long descendants may hold the output of an ordered process that has ended */

enum process_stream { STREAM_STDOUT, STREAM_STDERR, STREAM_PTY };

struct process_end {
        int code;          /* exit status, -1 by a signal */
        bool exited;
        char status[64];   /* "exit status 3", "signal: killed" */
};

struct process;

/* Who watches a process. Embedded in the watcher's own state. */
struct process_listener {
        struct process_listener *next;
        void (*output)(struct process_listener *l, enum process_stream stream, const char *data, size_t len);
        /* Last call, once; the listener is already off the list. */
        void (*ended)(struct process_listener *l, const struct process_end *end);
        bool blocked;      /* set by the listener when its queue is full; see process_unblock() */
        struct process *process;
};

struct process_start {
        struct spawn spawn;
        const char *cwd_given;  /* as in the request, or NULL */
        const char *tag;        /* or NULL */
        int64_t deadline_ms;    /* SIGKILL after this long; negative = never */
};

/* Starts and registers a process. */
int process_start(const struct process_start *start, struct process **ret, struct error *err);

/* The live process with that PID or tag, else NULL. */
struct process *process_by_pid(pid_t pid);
struct process *process_by_tag(const char *tag);

/* The retained end of a process that is gone for at most 30 s, else NULL. */
const struct process_end *process_ended_by_pid(pid_t pid, pid_t *ret_pid);
const struct process_end *process_ended_by_tag(const char *tag, pid_t *ret_pid);

pid_t process_pid(const struct process *p);
bool process_is_pty(const struct process *p);

/* A new array of ProcessInfo. */
json_t *process_list(void);

void process_listen(struct process *p, struct process_listener *l);
void process_unlisten(struct process_listener *l);
/* The listener's queue drained: reading goes on once no listener is blocked. */
void process_unblock(struct process_listener *l);

/* Queues input. `done` is called once, perhaps at once: 0 when everything was written, else -errno (-EPIPE when
 * the process closed its side, -EBADF when there is no open input). */
void process_write(struct process *p, const void *data, size_t len, void (*done)(void *data, int result), void *userdata);
/* Forgets the callbacks of `userdata`: its requester went away. What was queued is still written. */
void process_forget_writer(void *userdata);
void process_close_stdin(struct process *p);

/* kill(2) to that PID; after SIGKILL and SIGTERM the end does not wait for the pipes' EOF. -errno. */
int process_signal(struct process *p, int number);
/* Calls `done` when the process has been reaped (at once if it has been). */
void process_when_reaped(struct process *p, void (*done)(void *data), void *data);
void process_forget_reaped(void *data);

int process_resize(struct process *p, unsigned short cols, unsigned short rows);

/* Collects every child that ended: ours by their PID, and orphans when the agent is PID 1. On SIGCHLD. */
void process_reap(void);

/* "signal: killed" and the like; for tests. */
void process_describe(int wait_status, struct process_end *ret);
