/* The public API's frame: routing on the raw path, authentication before anything else, straight-line
 * handlers on worker threads, errors as JSON.
 *
 * A handler runs on a bounded worker pool with the whole request body in memory (limit 16 MiB) and may
 * block. It fills the response; the dispatcher sends it. Routes are tried in order of specificity: a
 * literal segment beats "{name}". Unknown path: 404; known path, other method: 405; both as JSON
 * {"code","message"} (template-api 3.2). CORS as template-api 2.3 / sandbox-api R13. HEAD = GET without body.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "http/message.h"

struct api;        /* the dispatcher; made by serve */
struct api_team;   /* the authenticated team (store/records.h), opaque here */

enum api_auth {
        API_AUTH_NONE = 0,
        API_AUTH_KEY,      /* X-API-Key, or Authorization: Bearer with an API key */
        API_AUTH_CLUSTER,  /* the cluster token as Bearer (cluster listener) */
};

struct api_request {
        const struct http_request *http;
        const char *params[8];     /* decoded "{name}" segments in order; NULL-terminated */
        char *body;                /* NUL-terminated; "" when empty */
        size_t body_len;
        json_t *json;              /* parsed object when the route has API_JSON, else NULL */
        void *team;                /* struct team * of the key, owned by the dispatcher (API_AUTH_KEY) */
        const char *upload_path;   /* API_UPLOAD: the complete temporary file with the body; handler renames it */
        const char *peer;
};

struct api_response {
        int status;                  /* 0 = handler forgot: 500 */
        struct http_headers headers; /* extra ones */
        json_t *json;                /* body, or NULL; stolen by the dispatcher */
        char *text;                  /* body when json is NULL: raw bytes, NUL-terminated; freed by the dispatcher */
        const char *content_type;    /* for text; default application/json; charset=utf-8 */
};

enum api_flags {
        API_JSON = 1 << 0,          /* the body must be a JSON object: 400 "Error when parsing request: …" otherwise */
        API_JSON_OPTIONAL = 1 << 1, /* an empty body counts as {} */
        API_UPLOAD = 1 << 2,        /* body streams into a temporary file; see struct api_route.upload */
        API_MUTATES = 1 << 3,       /* refused with 403 for a blocked team */
        API_READS = 1 << 4,         /* reads records, and waits for nothing else: hooks.snapshot is called around authentication and handler */
};

struct api_route {
        const char *method;  /* "GET" … */
        const char *pattern; /* "/templates/{id}/builds/{build}/status" */
        enum api_auth auth;
        unsigned flags;
        /* Worker thread. On failure returns a negative value and fills err: the dispatcher answers with the
         * status of err->kind (INVALID 400, UNAUTHORISED 401, FORBIDDEN 403, NOT_FOUND 404, CONFLICT 409,
         * LIMIT 429, UNAVAILABLE 503, CANCELLED 499→503, INTERNAL 500). A handler that wants another status
         * sets response->status and body itself and returns 0. */
        int (*handler)(void *data, struct api_request *request, struct api_response *response, struct error *err);
        void *data;
        /* API_UPLOAD: called on a worker before the body is read; checks the request and returns the path of a
         * new temporary file to stream into (caller frees) and the size limit; the dispatcher removes the file
         * when the upload breaks or the handler leaves it. */
        int (*upload)(void *data, struct api_request *request, char **ret_path, unsigned long long *ret_limit,
                      struct error *err);
        /* Given to the hook `audit` after the handler with what came of it; NULL for routes that change nothing. */
        const char *action;
};

struct api_hooks {
        /* Worker thread: the team of an API key, or an error with the texts of sandbox-api 2.2. `ret_team` is
         * released with `release_team` (any thread). With *ret_blocked the call succeeds, and may leave the text for
         * refused mutating routes in `err` ("team is blocked: <reason>"). */
        int (*authenticate)(void *data, const char *key, void **ret_team, bool *ret_blocked, struct error *err);
        void (*release_team)(void *data, void *team);
        /* Worker thread, before the answer is sent, for routes with an action; may be NULL. `error` is NULL on success. */
        void (*audit)(void *data, const struct api_request *request, const char *action, int status, const char *error);
        /* Worker thread: what is read from here to the call with `false` may be of one moment; may be NULL. */
        void (*snapshot)(void *data, bool begin);
        const char *cluster_token; /* for API_AUTH_CLUSTER */
        void *data;
};

struct http_exchange;
struct uv_loop_s;

int api_new(struct uv_loop_s *loop, unsigned workers, const struct api_hooks *hooks, struct api **ret);
void api_add_routes(struct api *a, const struct api_route *routes, size_t count);
/* Handles one exchange (an http_handler's body). */
void api_dispatch(struct api *a, struct http_exchange *x);
/* Waits for running handlers; then frees. Call after the server stopped. */
void api_free(struct api *a);

/* Helpers for handlers. */
/* The HTTP status that stands for a kind of error. */
int api_status_of(enum error_kind kind);
/* Adds {"code":…,"message":…} with the status. */
void api_error(struct api_response *r, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
