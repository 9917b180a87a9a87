/* Blocking client of the guest agent: the host-only serial channel and the process API on port 49983.
 * See docs/agent-protocol.md. Called on worker threads; one thread a handle.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "vm/vm.h"

struct agent;

/* Connects to the serial channel and waits until the agent answers ping in one of the `mode`s wanted (NULL = any):
 * "initramfs", "init", "service". A guest that panics, an exited VM and `timeout_s` end it with an error that
 * holds the last console lines. `cancelled` is polled (may be NULL). */
int agent_connect(struct vm *vm, const char *mode, unsigned timeout_s, bool (*cancelled)(void *), void *data,
                  struct agent **ret, struct error *err);
void agent_close(struct agent *a); /* NULL is fine */

typedef void (*agent_event)(const json_t *event, void *data);

/* One request on the serial channel: {"op":op, …arguments}. Events arrive at `on_event` (may be NULL); the result
 * object is returned in `ret` (may be NULL; caller decrefs). An agent-side failure becomes err with its kind. */
int agent_request(struct agent *a, const char *op, const json_t *arguments, unsigned timeout_s, agent_event on_event,
                  void *data, json_t **ret, struct error *err);

struct agent_process {
        const char *const *argv;      /* NULL-terminated; argv[0] looked up in the guest */
        const char *user;             /* NULL = the agent's default user */
        const char *cwd;              /* NULL = the user's home or default workdir */
        const char *const *env;       /* "K=V", NULL-terminated, or NULL */
        const char *tag;              /* or NULL */
        const char *access_token;     /* or NULL */
        bool ordered;                 /* output of both streams in the order of the writes; slower */
        unsigned timeout_s;           /* 0 = none: process is not bounded */
        /* Output as it comes; stream 1 or 2. */
        void (*on_output)(int stream, const char *data, size_t len, void *data_);
        bool (*cancelled)(void *data_);
        void *data;
};
struct agent_exit {
        int code;           /* -1 when killed by a signal */
        char status[64];    /* "exit status 3", "signal: killed" */
};
/* Runs a process through Process.Start and waits for its end. RPC errors (unknown user, missing cwd) become
 * ERROR_INVALID with the agent's text. An end is reported exactly once (known-failures D7 85): a stream that
 * breaks before the end event is an error, never success. */
int agent_run(struct vm *vm, const struct agent_process *p, struct agent_exit *ret, struct error *err);

/* Starts a process and leaves it running; `*ret_fd` is the open stream (read it for output with
 * agent_stream_read; closing it lets the process live on). */
struct agent_stream;
int agent_spawn(struct vm *vm, const struct agent_process *p, struct agent_stream **ret, struct error *err);
/* Delivers pending output to on_output for at most `wait_ms`; returns 1 while running, 0 when it ended (`ret`
 * filled), negative on a broken stream. */
int agent_stream_poll(struct agent_stream *s, unsigned wait_ms, struct agent_exit *ret, struct error *err);
void agent_stream_close(struct agent_stream *s);
