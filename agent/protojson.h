/* Reading proto3 JSON (envd.md 1.5): either spelling of a name, null = unset, numbers as strings, bytes in any
 * base64. Every reader returns 1 when the member is set, 0 when not, or -EINVAL with a message.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* Parses a message: any JSON object. Zero bytes are an error here; a caller that allows them says "{}". */
int proto_parse(const char *data, size_t len, json_t **ret, struct error *err);

/* The member, under its lowerCamelCase `name` or the snake_case spelling of it; NULL when unset or null. */
json_t *proto_get(const json_t *message, const char *name);

int proto_string(const json_t *message, const char *name, const char **ret, struct error *err);
int proto_bool(const json_t *message, const char *name, bool *ret, struct error *err);
int proto_uint32(const json_t *message, const char *name, uint32_t *ret, struct error *err);
int proto_message(const json_t *message, const char *name, json_t **ret, struct error *err);
int proto_bytes(const json_t *message, const char *name, struct buf *ret, struct error *err);
/* An array of strings / an object of strings (a map). */
int proto_strings(const json_t *message, const char *name, json_t **ret, struct error *err);
int proto_map(const json_t *message, const char *name, json_t **ret, struct error *err);
