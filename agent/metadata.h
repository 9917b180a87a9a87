/* File metadata in extended attributes (envd.md 3.6): X-Metadata-* headers in, user.e2b.* on the file. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "http/message.h"

#define METADATA_KEY_MAX 246
#define METADATA_TOTAL_MAX 4096

/* The set that the headers ask for; ERROR_INVALID ("invalid metadata: …"). The caller decrefs. */
int metadata_from_headers(const struct http_headers *headers, json_t **ret, struct error *err);

/* Makes the file's set exactly this one. File systems without attributes are ignored; -ENOSPC and -EDQUOT are
 * returned. */
int metadata_replace(int fd, const json_t *metadata);
