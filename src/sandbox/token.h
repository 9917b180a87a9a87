/* Tokens of sandboxes, derived from the root secret (sandbox-api 3), and the signatures of file URLs made with them
 * (envd.md 3.8). Nothing here is stored: the same secret and identifier always give the same token, so a restarted driver
 * and every other driver of the cluster know it too. Pure.
 */
#pragma once

#define ROOT_SECRET_LEN 32
#define SANDBOX_TOKEN_LEN 64 /* lower-case hex */

/* What envd demands as X-Access-Token. `out` has SANDBOX_TOKEN_LEN + 1 bytes. */
void sandbox_envd_token(const unsigned char *root_secret, const char *id, char *out);

/* What the proxy demands as e2b-traffic-access-token when public traffic is off. */
void sandbox_traffic_token(const unsigned char *root_secret, const char *id, char *out);

#define FILE_SIGNATURE_MAX 64

/* "v1_" + unpadded base64 of SHA-256("path:operation:user:token[:expiration]"). `expiration` may be NULL. `out` has
 * FILE_SIGNATURE_MAX bytes. */
void file_signature(const char *path, const char *operation, const char *user, const char *token, const char *expiration, char *out);
