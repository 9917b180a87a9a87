/* HKDF-SHA256 turns the root secret into one key a purpose (the label), HMAC-SHA256 turns that key and the sandbox's
 * identifier into the token. A leaked token therefore tells nothing about another sandbox or another purpose.
 */
#include "sandbox/token.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"

#define LABEL_ENVD "vmon envd access token v1"
#define LABEL_TRAFFIC "vmon traffic access token v1"
#define TRAFFIC_PREFIX "sandbox-traffic-"

/* OpenSSL fails here only when it is broken or out of memory: both end the program, as failing malloc does. */
static void must(int ok)
{
        if (ok <= 0)
                abort();
}

static void derive_key(const unsigned char *root_secret, const char *label, unsigned char key[32])
{
        EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
        EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
        must(ctx != NULL);
        char digest[] = "SHA256";
        OSSL_PARAM params[] = {
                OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)root_secret, ROOT_SECRET_LEN),
                OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)label, strlen(label)),
                OSSL_PARAM_construct_end(),
        };
        must(EVP_KDF_derive(ctx, key, 32, params));
        EVP_KDF_CTX_free(ctx);
        EVP_KDF_free(kdf);
}

static void token(const unsigned char *root_secret, const char *label, const char *text, char *out)
{
        unsigned char key[32], mac[32];
        unsigned len = sizeof mac;
        derive_key(root_secret, label, key);
        must(HMAC(EVP_sha256(), key, sizeof key, (const unsigned char *)text, strlen(text), mac, &len) != NULL);
        hex_encode(mac, sizeof mac, out);
        explicit_bzero(key, sizeof key);
}

void sandbox_envd_token(const unsigned char *root_secret, const char *id, char *out)
{
        token(root_secret, LABEL_ENVD, id, out);
}

void sandbox_traffic_token(const unsigned char *root_secret, const char *id, char *out)
{
        CLEANUP_BUF struct buf text = {};
        buf_addf(&text, TRAFFIC_PREFIX "%s", id);
        token(root_secret, LABEL_TRAFFIC, buf_str(&text), out);
}

void file_signature(const char *path, const char *operation, const char *user, const char *token_, const char *expiration, char *out)
{
        CLEANUP_BUF struct buf raw = {};
        buf_addf(&raw, "%s:%s:%s:%s", path, operation, user, token_);
        if (expiration)
                buf_addf(&raw, ":%s", expiration);
        unsigned char digest[32], encoded[48];
        must(EVP_Digest(raw.data, raw.len, digest, NULL, EVP_sha256(), NULL));
        int len = EVP_EncodeBlock(encoded, digest, sizeof digest);
        while (len > 0 && encoded[len - 1] == '=')
                len--;
        memcpy(out, "v1_", 3);
        memcpy(out + 3, encoded, len);
        out[3 + len] = '\0';
        explicit_bzero(raw.data, raw.len);
}
