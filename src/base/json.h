/* Conveniences over jansson: typed reads with a message naming the field, and ownership by attribute. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

static inline void cleanup_json(json_t **j)
{
        json_decref(*j);
}
#define CLEANUP_JSON __attribute__((cleanup(cleanup_json)))

/* Parses `len` bytes of UTF-8 JSON (any value type, no duplicate-key check, nesting limited by jansson).
 * The error says where ("line 1 column 7"). The caller owns the result. */
int json_parse(const char *data, size_t len, json_t **ret, struct error *err);

/* Compact text; the caller frees. Never NULL. */
char *json_text(const json_t *j);

/* The string member `key`, or NULL when absent, null or no string. Owned by the object. */
const char *json_str(const json_t *object, const char *key);
/* The integer member, or `otherwise` when absent or of another type. */
json_int_t json_int(const json_t *object, const char *key, json_int_t otherwise);
bool json_bool(const json_t *object, const char *key, bool otherwise);

/* Sets `key`, unless `value` is NULL. */
void json_put_str(json_t *object, const char *key, const char *value);
