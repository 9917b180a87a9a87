/* What GET and POST /files have in common: who may, as whom, where (envd.md 3.4 to 3.8). */
#pragma once

#include <stdbool.h>
#include <time.h>

#include "http/server.h"
#include "user.h"

/* The decoded query of a /files request. Members are owned; "" when absent. */
struct file_query {
        char *path, *username, *signature, *expiration;
        bool has_expiration;
};

/* Decodes the part of a target after "?" (NULL = none). -EINVAL fills `ret_message` with the text of a 400, which the caller frees; `ret` is
 * then empty. */
int file_query_parse(const char *query, struct file_query *ret, char **ret_message);

/* Reads the query of `x`. False when a parameter is malformed: then the 400 has been sent and x accepted. */
bool file_query_read(struct http_exchange *x, struct file_query *ret);
void file_query_free(struct file_query *q);

/* The rule of 3.8: may a request with the header `given` (X-Access-Token, NULL = absent) do `operation`, where the access token is `token`
 * (NULL = none) and the time `now`? NULL when it may, else the message of the 401. */
const char *file_refusal(const struct file_query *q, const char *operation, const char *token, const char *given, time_t now);

/* The same of an exchange and the token that is set; `operation` is "read" or "write". NULL when allowed, else the message of the 401. */
const char *file_authorise(const struct http_exchange *x, const struct file_query *q, const char *operation,
                           time_t now);

/* The signature that a request needs: "v1_" + base64(SHA-256(path:operation:username:token[:expiration])) without
 * padding. The caller frees. */
char *file_signature(const struct file_query *q, const char *operation, const char *token);

/* The user of the request: `username` or the default. -ENOENT fills `ret_message` with the 401's text. */
int file_user(const struct file_query *q, struct user *ret, char **ret_message);

/* Absolute path, or NULL with `ret_message` (a 400). */
char *file_path(const char *path, const struct user *user, char **ret_message);
