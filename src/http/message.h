/* Requests and responses as values: headers, targets, queries. No I/O. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_header {
        char *name;  /* as received */
        char *value; /* trimmed */
};

/* In order of arrival; names compare case-insensitively; the same name may repeat. */
struct http_headers {
        struct http_header *items;
        size_t count;
};

void http_headers_add(struct http_headers *h, const char *name, const char *value);
void http_headers_addf(struct http_headers *h, const char *name, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* Removes all of that name, then adds. */
void http_headers_set(struct http_headers *h, const char *name, const char *value);
void http_headers_remove(struct http_headers *h, const char *name);
/* The first value, or NULL. */
const char *http_headers_get(const struct http_headers *h, const char *name);
/* Does a comma-separated list header contain `token` (case-insensitively)? */
bool http_headers_has_token(const struct http_headers *h, const char *name, const char *token);
void http_headers_copy(struct http_headers *to, const struct http_headers *from);
void http_headers_free(struct http_headers *h);

struct http_request {
        char *method;   /* "GET"; upper-case as sent */
        char *target;   /* raw request target, starts with "/" ("*" and absolute forms are reduced or refused) */
        char *path;     /* raw, still percent-encoded, without the query (template-api W5) */
        char *query;    /* raw, without "?"; "" when none */
        struct http_headers headers;
        int64_t content_length; /* -1 when chunked, 0 when no body */
        bool chunked;
        int version_minor; /* HTTP/1.x */
        bool upgrade;      /* Connection: upgrade with an Upgrade header */
};
void http_request_free(struct http_request *r); /* frees the members */

struct http_response {
        int status;
        char *reason;
        struct http_headers headers;
        int64_t content_length; /* -1 when unknown (chunked or until close) */
        bool chunked;
};
void http_response_free(struct http_response *r);

/* Percent-decodes `len` bytes; with `plus` a "+" becomes a blank. NULL when malformed ("%zz", "%00"). The
 * caller frees. */
char *url_decode(const char *s, size_t len, bool plus);
/* Percent-encodes everything but unreserved characters; "/" too unless `keep_slash`. The caller frees. */
char *url_encode(const char *s, bool keep_slash);

/* The decoded first value of `key` in a raw query, NULL when absent or malformed (then *ret_malformed is set
 * if not NULL). The caller frees. */
char *query_get(const char *query, const char *key, bool *ret_malformed);

/* "OK" for 200 and so on; "Unknown" otherwise. */
const char *http_status_text(int status);
