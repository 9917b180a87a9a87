/* The `unpack` operation: from the host's share onto the root disk (docs/agent-protocol.md). */
#pragma once

#include <jansson.h>

#include "base/error.h"

/* Mounts disk and share, applies `layers` of the request in order, installs the agent and the three files of the
 * guest's identity. Events go out under `id`. `ret` is the result object. */
int unpack_layers(const json_t *request, json_t *id, json_t **ret, struct error *err);

/* What follows the layers, on any root directory: the running binary as /usr/bin/envd, hostname, hosts and
 * resolver. */
int unpack_install(const char *root, struct error *err);
