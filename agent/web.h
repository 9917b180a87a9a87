/* The HTTP side of the agent: listener, checks that precede every request (envd.md 1.8), routes, and helpers to
 * answer. Loop thread only.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "http/server.h"
#include "user.h"

/* Starts to listen on every address of options.listen:options.port. */
int web_start(struct error *err);

/* Response headers that every answer to `x` carries (CORS); add to them, then http_headers_free(). */
struct http_headers web_headers(const struct http_exchange *x);

/* Answers: start + body + end with the CORS headers. `content_type` may be NULL with an empty body. */
void web_reply(struct http_exchange *x, int status, const char *content_type, const void *body, size_t len);

/* {"code":status,"message":…} of the plain endpoints (envd.md 1.9). */
void web_error(struct http_exchange *x, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same as a complete handler, for requests refused from their head alone. */
void web_refuse(struct http_exchange *x, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Accepts an exchange that needs no body and no cleaning up. */
void web_accept_plain(struct http_exchange *x);

/* The user of a well-formed Basic header: 1 = `ret` is filled, 0 = no such header, -ENOENT = unknown, with the
 * name in `ret_name` (caller frees) in both last cases (NULL without header). */
int web_basic_user(const struct http_exchange *x, struct user *ret, char **ret_name);

/* Collects a small request body, then calls `done` with it. A body above `limit` is answered 413. */
typedef void (*web_body)(struct http_exchange *x, const char *data, size_t len);
void web_collect(struct http_exchange *x, size_t limit, web_body done);
