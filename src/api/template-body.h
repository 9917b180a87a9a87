/* Bodies, queries and page tokens of the template API. Pure. Types and bounds that the schema fixes are ERROR_INVALID
 * "validation error: …" (template-api 3.2); unknown members are ignored.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "store/names.h"

#define PAGE_LIMIT_MAX 100

/* POST /v3/templates, and with `v2` POST /v2/templates. */
struct create_body {
        struct name_ref name;
        char **tags; /* all tags of the build */
        unsigned vcpus, memory_mb;
};
/* Everything that needs no records: the namespace must be `slug`. Errors as template-api 4.1. */
int create_body_parse(const json_t *body, bool v2, const char *slug, struct create_body *ret, struct error *err);
void create_body_clear(struct create_body *b);

/* A member that must be an array of strings: *ret points at `*ret_count` strings that `body` owns; freed with free(). */
int body_strings(const json_t *body, const char *key, const char ***ret, size_t *ret_count, struct error *err);
/* A string that must be there. */
int body_string(const json_t *body, const char *key, const char **ret, struct error *err);

/* An integer parameter of a raw query; `*ret` keeps its value when absent. */
int query_integer(const char *query, const char *key, int64_t min, int64_t max, int64_t *ret, struct error *err);
/* One of `values` (NULL-terminated): its index; `*ret` keeps its value when absent. */
int query_choice(const char *query, const char *key, const char *const *values, int *ret, struct error *err);

/* The opaque cursor of a page: base64url of "<RFC 3339 time>__<id>". The caller frees. */
char *page_token(int64_t time_ns, const char *id);
/* ERROR_INVALID "Invalid next token". The ID is one of letters, digits and "-"; the caller frees it. */
int page_token_parse(const char *token, int64_t *ret_time_ns, char **ret_id, struct error *err);
