/* The Connect protocol, version 1, JSON codec, as far as the E2B SDKs use it (envd.md 1.3 to 1.7).
 *
 * A method gets a parsed request in a `struct rpc` that lives until the exchange closes. Unary methods end with
 * rpc_reply() or rpc_fail(), now or later; stream methods with rpc_end() or rpc_fail() after any number of
 * rpc_send(). Loop thread only.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "http/server.h"
#include "user.h"

#define RPC_MESSAGE_MAX (64 * 1024 * 1024)

enum rpc_code {
        RPC_CANCELED = 1, RPC_UNKNOWN, RPC_INVALID_ARGUMENT, RPC_DEADLINE_EXCEEDED, RPC_NOT_FOUND, RPC_ALREADY_EXISTS,
        RPC_PERMISSION_DENIED, RPC_RESOURCE_EXHAUSTED, RPC_FAILED_PRECONDITION, RPC_ABORTED, RPC_OUT_OF_RANGE,
        RPC_UNIMPLEMENTED, RPC_INTERNAL, RPC_UNAVAILABLE, RPC_DATA_LOSS, RPC_UNAUTHENTICATED,
};

struct rpc;

enum rpc_kind {
        RPC_UNARY,
        RPC_SERVER_STREAM,
        RPC_CLIENT_STREAM, /* `message` is called per request envelope, `handle` with NULL at their end */
};

struct rpc_method {
        const char *path;       /* "/process.Process/List" */
        enum rpc_kind kind;
        void (*handle)(struct rpc *c, json_t *request);
        void (*message)(struct rpc *c, json_t *request);
};

struct rpc {
        const struct rpc_method *method;
        struct http_exchange *exchange; /* NULL once it closed (work may still be under way) */
        struct user user;               /* who asked: Basic header or default user */
        bool legacy;                    /* User-Agent is exactly connect-python (envd.md 2.4) */
        int64_t deadline_ms;            /* Connect-Timeout-Ms, -1 = none */
        bool finished;                  /* the answer is complete */
        /* Set by the method as needed. */
        void *data;
        void (*on_drain)(struct rpc *c);
        void (*on_close)(struct rpc *c); /* the peer is gone or the answer is out: release data */
        /* Engine's. */
        struct buf body;
        bool started, parsed_any;
        unsigned holds;
        uint64_t keepalive_ms;
        struct timer *keepalive, *deadline;
};

/* Handles the exchange when its path is of a known RPC; false when not. */
bool rpc_route(struct http_exchange *x);

/* Unary answer: one JSON object as text. */
void rpc_reply(struct rpc *c, const char *json);
/* A stream message; returns the bytes queued. Restarts the keep-alive timer. */
size_t rpc_send(struct rpc *c, const char *json, size_t len);
/* Ends a stream with success. */
void rpc_end(struct rpc *c);
/* Either kind: the error answer. */
void rpc_fail(struct rpc *c, enum rpc_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Fails with `err`: its kind decides (INVALID -> invalid_argument, NOT_FOUND -> not_found, else internal). */
void rpc_fail_error(struct rpc *c, const struct error *err);

/* Work in the thread pool: `work` runs off the loop and may fill `result`/`err`/`code`; then, on the loop, the
 * answer goes out if somebody still waits. `request` is kept for its time. */
struct rpc_work {
        struct rpc *call;
        json_t *request;
        struct buf result;       /* the JSON answer */
        enum rpc_code code;      /* 0 = success */
        struct error err;
        void (*work)(struct rpc_work *w);
};
void rpc_in_pool(struct rpc *c, json_t *request, void (*work)(struct rpc_work *w));
