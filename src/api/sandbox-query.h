/* The queries of the sandbox lists (sandbox-api 6): filters, order, cursor. Pure. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "sandbox/sandbox.h"

#define LIST_LIMIT_MAX 100

struct sandbox_query {
        json_t *metadata;        /* object of strings that must all match, or NULL */
        bool running, paused;    /* which states are wanted */
        char *template_;         /* trimmed, lower-case, without a tag; or NULL */
        int64_t started_after_ns; /* INT64_MIN when not asked for */
        bool ascending;
        unsigned limit;          /* 1 … LIST_LIMIT_MAX */
        bool after;              /* a cursor was given: */
        int64_t after_started_ns;
        char after_id[65];
};

/* From the raw query of `GET /v2/sandboxes`; ERROR_INVALID naming the parameter. Unknown parameters are ignored. */
int sandbox_query_parse(const char *query, struct sandbox_query *ret, struct error *err);
void sandbox_query_free(struct sandbox_query *q);

/* Decodes the value of `metadata` after the usual query decoding (sandbox-api 6.2, steps 2 to 4) into an object. ERROR_INVALID
 * "Error parsing metadata". */
int metadata_decode(const char *value, json_t **ret, struct error *err);

/* Does `metadata` (NULL = none) hold every pair of `wanted` (NULL = anything matches)? */
bool metadata_matches(const json_t *metadata, const json_t *wanted);

#define CURSOR_MAX 256

/* The cursor that stands after this element, valid in this order only; `out` has CURSOR_MAX bytes. */
void cursor_format(int64_t started_ns, const char *id, bool ascending, char *out);
/* ERROR_INVALID "Invalid next token". `ret_id` has 65 bytes. */
int cursor_parse(const char *cursor, bool ascending, int64_t *ret_started_ns, char *ret_id, struct error *err);

/* Orders by start (latest first unless `ascending`), then identifier; the two orders are exact mirrors. As strcmp. */
int sandbox_order(int64_t a_started_ns, const char *a_id, int64_t b_started_ns, const char *b_id, bool ascending);

/* Do state-independent filters (metadata, startedAfter) let this sandbox through? The template filter is the caller's:
 * it needs the store. */
bool sandbox_query_matches(const struct sandbox_query *q, const struct sandbox_info *i);
bool sandbox_query_is_after(const struct sandbox_query *q, const struct sandbox_info *i);
