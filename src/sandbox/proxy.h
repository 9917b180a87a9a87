/* The sandbox traffic proxy (sandbox-api 23, envd.md 7): requests for guest ports arrive on the API's listener, on the same
 * connections, recognised per request by E2b-Sandbox-Id/-Port or by the host's first label. Runs on the loop thread; dialling
 * happens on libuv's pool.
 */
#pragma once

#include <stdbool.h>
#include <uv.h>

#include "http/server.h"
#include "sandbox/sandbox.h"

struct proxy;
int proxy_new(uv_loop_t *loop, struct sandbox_manager *m, struct proxy **ret);
/* Is this request for a sandbox? Host form <port>-<id>[-x].domain, or any E2b-Sandbox-* header, or a signed /files URL. */
bool proxy_wants(const struct http_request *r);
/* Handles the exchange (accepts it). */
void proxy_handle(struct proxy *p, struct http_exchange *x);
void proxy_free(struct proxy *p); /* after the server stopped */
