#include "files.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "base64.h"
#include "path.h"
#include "state.h"
#include "web.h"

static bool read_parameter(const char *query, const char *name, char **ret, bool *ret_present)
{
        bool malformed = false;

        *ret = query_get(query, name, &malformed);
        if (ret_present)
                *ret_present = *ret;
        if (!*ret)
                *ret = xstrdup("");
        return !malformed;
}

int file_query_parse(const char *query, struct file_query *q, char **ret_message)
{
        const struct {
                const char *name;
                char **value;
                bool *present;
        } parameters[] = {
                { "path", &q->path, NULL }, { "username", &q->username, NULL }, { "signature", &q->signature, NULL },
                { "signature_expiration", &q->expiration, &q->has_expiration },
        };
        uint64_t n;

        *q = (struct file_query){};
        for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++)
                if (!read_parameter(query, parameters[i].name, parameters[i].value, parameters[i].present)) {
                        *ret_message = xasprintf("Invalid format for parameter %s: malformed escape\n", parameters[i].name);
                        file_query_free(q);
                        return -EINVAL;
                }
        if (q->has_expiration && !str_to_u64(q->expiration + (*q->expiration == '-'), INT64_MAX, &n)) {
                *ret_message = xstrdup("Invalid format for parameter signature_expiration: not an integer\n");
                file_query_free(q);
                return -EINVAL;
        }
        return 0;
}

bool file_query_read(struct http_exchange *x, struct file_query *q)
{
        CLEANUP_FREE char *text = NULL;

        if (file_query_parse(http_exchange_request(x)->query, q, &text) == 0)
                return true;
        web_accept_plain(x);
        web_reply(x, 400, "text/plain; charset=utf-8", text, strlen(text));
        return false;
}

void file_query_free(struct file_query *q)
{
        free(q->path);
        free(q->username);
        free(q->signature);
        free(q->expiration);
        *q = (struct file_query){};
}

char *file_signature(const struct file_query *q, const char *operation, const char *token)
{
        CLEANUP_FREE char *raw = xasprintf("%s:%s:%s:%s%s%s", q->path, operation, q->username, token,
                                           q->has_expiration ? ":" : "", q->has_expiration ? q->expiration : "");
        CLEANUP_BUF struct buf text = {};
        unsigned char digest[SHA256_DIGEST_LENGTH];
        SHA256_CTX sha;

        /* The low-level interface: EVP would pull most of libcrypto into the static binary. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        SHA256_Init(&sha);
        SHA256_Update(&sha, raw, strlen(raw));
        SHA256_Final(digest, &sha);
#pragma GCC diagnostic pop
        explicit_bzero(raw, strlen(raw));
        buf_adds(&text, "v1_");
        base64_add(&text, digest, sizeof(digest));
        text.data[--text.len] = 0; /* 32 bytes end in one "=" */
        return buf_steal(&text);
}

const char *file_refusal(const struct file_query *q, const char *operation, const char *token, const char *given, time_t now)
{
        CLEANUP_FREE char *wanted = NULL;

        if (!token)
                return NULL;
        if (given && *given)
                return str_equal_constant_time(token, given) ? NULL : "access token present in header but does not match";
        if (!*q->signature)
                return "missing signature query parameter";
        wanted = file_signature(q, operation, token);
        if (!str_equal_constant_time(wanted, q->signature))
                return "invalid signature";
        if (q->has_expiration && strtoll(q->expiration, NULL, 10) < now)
                return "signature is already expired";
        return NULL;
}

const char *file_authorise(const struct http_exchange *x, const struct file_query *q, const char *operation,
                           time_t now)
{
        CLEANUP_FREE char *token = state_token();

        return file_refusal(q, operation, token, http_headers_get(&http_exchange_request(x)->headers, "X-Access-Token"), now);
}

int file_user(const struct file_query *q, struct user *ret, char **ret_message)
{
        CLEANUP_FREE char *name = *q->username ? xstrdup(q->username) : state_default_user();

        if (user_lookup(name, ret) == 0)
                return 0;
        *ret_message = xasprintf("error looking up user '%s': user: unknown user %s", name, name);
        return -ENOENT;
}

char *file_path(const char *path, const struct user *user, char **ret_message)
{
        CLEANUP_FREE char *workdir = state_default_workdir();
        struct error err;
        char *resolved;

        if (path_resolve(path, user->home, workdir, &resolved, &err) == 0)
                return resolved;
        *ret_message = xasprintf("error expanding and resolving path '%s': %s", path, err.message);
        return NULL;
}
