/* The bodies of sandbox requests (sandbox-api 5.1, 11, 12, 13.1). Pure: types and ranges first (sandbox_body_parse), the
 * rules that come after the template was resolved apart (sandbox_body_check), as sandbox-api 5.2 orders them.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define SANDBOX_METADATA_MAX (64 * 1024)  /* bytes of all keys and values */
#define SANDBOX_ENV_MAX (256 * 1024)      /* the same; it travels to the agent in one line of at most 1 MiB */
#define SANDBOX_TEMPLATE_REF_MAX 512
#define SANDBOX_EGRESS_MAX 1000           /* entries of allowOut and denyOut together */

struct sandbox_body { /* pointers are borrowed from the parsed request */
        const char *template_ref;
        int64_t timeout_s;
        bool secure;
        bool auto_pause, auto_pause_memory, auto_resume;
        const json_t *metadata, *env;               /* objects of strings, or NULL */
        const json_t *allow_internet_access;        /* true, false or NULL */
        const json_t *network;                      /* object or NULL */
        const char *mask_request_host;              /* or NULL */
        bool allow_public_traffic;
        const json_t *iam, *volume_mounts;          /* as sent, or NULL */
};

/* `v2`: POST /v2/sandboxes, where the default timeout is 300 s and every sandbox is secure. ERROR_INVALID
 * "validation error: …" naming the member. */
int sandbox_body_parse(const json_t *j, bool v2, struct sandbox_body *ret, struct error *err);

/* The rules across members, and the features that this server does not have: nothing that was asked for is ignored
 * (sandbox-api 25.6). The message names what is not available. */
int sandbox_body_check(const struct sandbox_body *b, struct error *err);

/* Egress rules: the top-level "allow_internet_access" and what both `network` of create and the body of PUT network hold.
 * Types as "validation error: …". */
int network_rules_validate(const json_t *network, struct error *err);
/* Are its addresses and domains well-formed (domains also need all else denied: by denyOut, or by `allow_internet_access` false; it may be NULL), and
 * is there nothing that this server cannot enforce (proxies, transforms)? */
int network_rules_check(const json_t *network, const json_t *allow_internet_access, struct error *err);

/* The int32 member `key`: ERROR_INVALID when absent (unless `*ret` shall keep its default: `required` false), of another
 * type or out of range. */
int body_int32(const json_t *j, const char *key, bool required, int64_t *ret, struct error *err);
/* A boolean member; `*ret` keeps its default when absent or null. */
int body_bool(const json_t *j, const char *key, bool *ret, struct error *err);
