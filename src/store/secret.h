/* The root secret and what is derived from it: one HKDF-SHA256 label for each use (design 4), MACs, and sealing of
 * what must not lie in the store in clear (design 8.6: environment values, tokens). Pure besides secret_load().
 */
#pragma once

#include <stddef.h>

#include "base/error.h"

#define SECRET_LEN 32
#define MAC_HEX_LEN 64

/* Reads the SECRET_LEN bytes at `path`; makes them (0600, durable) when the file is missing. ERROR_INVALID when it has
 * another length. */
int secret_load(const char *path, unsigned char ret[SECRET_LEN], struct error *err);

/* HKDF-SHA256 of `root`, no salt, `label` as info. */
void secret_derive(const unsigned char root[SECRET_LEN], const char *label, unsigned char ret[SECRET_LEN]);

/* HMAC-SHA256 as lower-case hex; `ret` has MAC_HEX_LEN + 1 bytes. */
void secret_mac(const unsigned char key[SECRET_LEN], const void *data, size_t len, char *ret);

/* SHA-256 as lower-case hex; `ret` has MAC_HEX_LEN + 1 bytes. */
void secret_digest(const void *data, size_t len, char *ret);

/* AES-256-GCM under a random nonce, bound to `context` (where it is kept), as base64 text. The caller frees. */
char *secret_seal(const unsigned char key[SECRET_LEN], const char *context, const void *data, size_t len);
/* The plain bytes (NUL-terminated besides `ret_len`; the caller frees). ERROR_INTERNAL when the text was altered, moved to
 * another context or sealed under another secret. */
int secret_open(const unsigned char key[SECRET_LEN], const char *context, const char *sealed, char **ret, size_t *ret_len,
                struct error *err);
