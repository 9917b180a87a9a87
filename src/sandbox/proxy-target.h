/* What a request to a sandbox aims at, and what the gateway answers itself (sandbox-api 23, envd.md 7). Pure. */
#pragma once

#include <stdbool.h>

#include "base/buf.h"
#include "http/message.h"

#define PROXY_AGENT_PORT 49983
#define PROXY_ID_MAX 64

struct proxy_target {
        char id[PROXY_ID_MAX + 1]; /* [a-z0-9]+ */
        int port;                  /* 1 to 65535 */
};

/* Host of the form <port>-<id>[-<anything>].<domain>, or an E2b-Sandbox-Id/-Port header? */
bool proxy_target_named(const struct http_request *r);
/* A file URL that carries a signature in place of a sandbox (sandbox-api 22.3)? */
bool proxy_target_signed(const struct http_request *r);

/* The sandbox and port of a request for which proxy_target_named(). On failure the text of a 400 answer. */
const char *proxy_target_parse(const struct http_request *r, struct proxy_target *ret);

/* The control-plane endpoint of the agent that `path` (raw) means once decoded and cleaned, "/init" and so on; NULL when
 * it is none. Static text. */
const char *proxy_reserved_path(const char *path);

/* The Host that `mask` (maskRequestHost, sandbox-api 13.1) gives a request to `port`; the caller frees. */
char *proxy_masked_host(const char *mask, int port);

/* The headers to forward: without ours, hop-by-hop ones and Forwarded/X-Forwarded-*; with Connection set anew for an upgrade. `host`, where
 * it is not NULL, takes the place of Host, whose value goes into X-Forwarded-Host. */
void proxy_request_headers(const struct http_request *r, const char *host, struct http_headers *ret);
/* The headers of a guest's response for the client; those of a 101 keep Connection and Upgrade. */
void proxy_response_headers(const struct http_response *r, struct http_headers *ret);

enum proxy_refusal {
        PROXY_RESERVED,      /* 404 */
        PROXY_NOT_FOUND,     /* 502 */
        PROXY_PORT_CLOSED,   /* 502 */
        PROXY_NOTHING_STARTED, /* 502: a closed port of a sandbox whose template has no start command */
        PROXY_TOKEN_MISSING, /* 403 */
        PROXY_TOKEN_WRONG,   /* 403 */
        PROXY_RESUME_DENIED, /* 403: to a paused sandbox, without what resumes it (sandbox-api 21) */
        PROXY_RESUME_LIMIT,  /* 429 */
        PROXY_RESUME_FAILED, /* 409 */
};

/* Writes the body of a refusal, as JSON, or as an HTML page where the request looks like a browser's navigation. `path`
 * is for PROXY_RESERVED. Returns the status. */
int proxy_refusal_body(enum proxy_refusal what, const struct http_request *r, const struct proxy_target *target, const char *path,
                       struct buf *ret, const char **ret_content_type);
