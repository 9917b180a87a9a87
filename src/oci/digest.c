/* sha256 by OpenSSL, which uses the CPU's instructions for it. A failure inside OpenSSL (it has none for a known
 * algorithm) aborts rather than letting an unverified blob pass.
 */
#include "oci/digest.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

bool digest_valid(const char *s)
{
        return s && str_starts(s, "sha256:") && str_is_hex(s + 7, DIGEST_HEX);
}

const char *digest_hex(const char *s)
{
        return s + 7;
}

void digest_start(struct digest_state *d)
{
        if (!d->md)
                d->md = EVP_MD_CTX_new();
        if (!d->md || EVP_DigestInit_ex(d->md, EVP_sha256(), NULL) != 1)
                abort();
}

void digest_add(struct digest_state *d, const void *data, size_t len)
{
        if (EVP_DigestUpdate(d->md, data, len) != 1)
                abort();
}

void digest_final(struct digest_state *d, char out[DIGEST_TEXT_MAX])
{
        unsigned char hash[EVP_MAX_MD_SIZE];
        unsigned int len = 0;

        if (EVP_DigestFinal_ex(d->md, hash, &len) != 1 || len != DIGEST_HEX / 2)
                abort();
        memcpy(out, "sha256:", 7);
        hex_encode(hash, len, out + 7);
}

void digest_free(struct digest_state *d)
{
        EVP_MD_CTX_free(d->md);
        d->md = NULL;
}

void digest_of(const void *data, size_t len, char out[DIGEST_TEXT_MAX])
{
        struct digest_state d = {};

        digest_start(&d);
        digest_add(&d, data, len);
        digest_final(&d, out);
        digest_free(&d);
}
