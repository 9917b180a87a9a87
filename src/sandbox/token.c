/* HKDF-SHA256 turns the root secret into one key a purpose (the label), HMAC-SHA256 turns that key and the sandbox's
 * identifier into the token. A leaked token therefore tells nothing about another sandbox or another purpose.
 */
#include "sandbox/token.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "store/secret.h"

#define LABEL_ENVD "vmon envd access token v1"
#define LABEL_TRAFFIC "vmon traffic access token v1"
#define TRAFFIC_PREFIX "sandbox-traffic-"

/* OpenSSL fails here only when it is broken or out of memory: both end the program, as failing malloc does. */
static void must(int ok)
{
        if (ok <= 0)
                abort();
}

static void token(const unsigned char *root_secret, const char *label, const char *text, char *out)
{
        unsigned char key[SECRET_LEN];
        secret_derive(root_secret, label, key);
        secret_mac(key, text, strlen(text), out);
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
