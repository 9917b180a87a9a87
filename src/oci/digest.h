/* sha256 digests in their text form "sha256:<64 lower-case hex>": the only algorithm that registries use. */
#pragma once

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>

#define DIGEST_HEX 64
#define DIGEST_TEXT_MAX (7 + DIGEST_HEX + 1)

bool digest_valid(const char *s);
/* The hex part of a valid digest; points into `s`. */
const char *digest_hex(const char *s);

/* Hashing in pieces. digest_final() may be called once; a zeroed struct is empty and may be freed. */
struct digest_state {
        EVP_MD_CTX *md;
};
void digest_start(struct digest_state *d);
void digest_add(struct digest_state *d, const void *data, size_t len);
void digest_final(struct digest_state *d, char out[DIGEST_TEXT_MAX]);
void digest_free(struct digest_state *d);

void digest_of(const void *data, size_t len, char out[DIGEST_TEXT_MAX]);
