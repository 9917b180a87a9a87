/* The identity of this sandbox and the defaults for its processes (envd.md 4): set over the serial channel or
 * by POST /init, read by every request. Thread-safe; strings are returned as copies that the caller frees.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define STATE_TOKEN_MAX 1024

/* What one init call asks for; a NULL member is left as it is. All borrowed. */
struct state_update {
        bool set_token;            /* `token` applies: NULL clears it */
        const char *token;
        const json_t *env;         /* object of strings: replaces the user's global variables */
        const json_t *image_env;   /* object of strings: lowest precedence */
        const char *default_user;
        const char *default_workdir;
        const char *sandbox_id;
        const char *template_id;
        int64_t time_ns;           /* realtime; 0 = leave the clock alone */
        bool ordered;              /* refuse data older than the newest time_ns seen (POST /init) */
        bool by_host;              /* came over the serial channel: from now on nobody claims the agent by POST /init */
        bool set_token_hash;       /* `token_hash` applies: NULL forgets it */
        const char *token_hash;    /* lower-case hex SHA-512 of the token that a POST /init may set ("" = none) */
};

/* Applies an update as one step. ERROR_INVALID names a bad member and then nothing has changed. */
int state_apply(const struct state_update *update, struct error *err);

/* May a POST /init with this token (NULL = none) change the state (envd.md 4)? Yes when it is the current one, when its hash is the one
 * that the host announced, or when there is neither and no host has ever spoken over the serial channel: a process of the guest reaches
 * the port of an agent without a token, and must not make itself its owner. */
bool state_init_authorised(const char *token);

/* Is the clock at `now` so far off a host's time `wanted` (both realtime, in ns) that it is to be stepped (envd.md 4)? */
bool state_clock_is_off(int64_t now, int64_t wanted);

bool state_has_token(void);
/* Does `given` (may be NULL) equal the access token? True when no token is set. Constant-time. */
bool state_token_matches(const char *given);
/* The access token, NULL when none is set. */
char *state_token(void);

char *state_default_user(void);
char *state_default_workdir(void); /* NULL when none */

/* Global variables by rising precedence: what the image brought (image_env), then the user's, then the
 * internal ones, which nothing but a request may override. New objects; the caller decrefs. */
json_t *state_image_env(void);
json_t *state_user_env(void); /* the user's alone */
json_t *state_global_env(void);

/* Writes /run/e2b/.E2B_SANDBOX and, once known, the two IDs beside it. */
void state_write_files(void);
