/* Sealed text is base64(nonce[12] | tag[16] | ciphertext). Failures of the crypto library besides a wrong tag mean that
 * it is broken or out of memory: they abort like a failed malloc.
 */
#include "store/secret.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define NONCE_LEN 12
#define TAG_LEN 16
#define HEADER_LEN (NONCE_LEN + TAG_LEN)

static void must(int ok)
{
        if (ok <= 0)
                abort();
}

int secret_load(const char *path, unsigned char ret[SECRET_LEN], struct error *err)
{
        CLEANUP_BUF struct buf b = {};
        struct error e = {};
        int r = file_read(path, SECRET_LEN, &b, &e);

        if (r == -ENOENT) {
                random_bytes(ret, SECRET_LEN);
                return file_write_atomic(path, ret, SECRET_LEN, 0600, err);
        }
        if (r == 0 && b.len == SECRET_LEN) {
                memcpy(ret, b.data, SECRET_LEN);
                return 0;
        }
        if (r == 0 || e.kind == ERROR_LIMIT)
                return error_set(err, ERROR_INVALID, "%s must hold exactly %d bytes; restore it from a backup", path, SECRET_LEN);
        return error_set(err, e.kind, "read %s: %s", path, e.message);
}

void secret_derive(const unsigned char root[SECRET_LEN], const char *label, unsigned char ret[SECRET_LEN])
{
        EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
        EVP_KDF_CTX *ctx = EVP_KDF_CTX_new(kdf);
        OSSL_PARAM params[] = {
                OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
                OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)root, SECRET_LEN),
                OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)label, strlen(label)),
                OSSL_PARAM_construct_end(),
        };

        must(ctx && EVP_KDF_derive(ctx, ret, SECRET_LEN, params));
        EVP_KDF_CTX_free(ctx);
        EVP_KDF_free(kdf);
}

void secret_mac(const unsigned char key[SECRET_LEN], const void *data, size_t len, char *ret)
{
        unsigned char mac[32];

        must(HMAC(EVP_sha256(), key, SECRET_LEN, data, len, mac, NULL) != NULL);
        hex_encode(mac, sizeof(mac), ret);
}

void secret_digest(const void *data, size_t len, char *ret)
{
        unsigned char digest[32];

        must(EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL));
        hex_encode(digest, sizeof(digest), ret);
}

char *secret_seal(const unsigned char key[SECRET_LEN], const char *context, const void *data, size_t len)
{
        CLEANUP_FREE unsigned char *raw = xmalloc(HEADER_LEN + len);
        EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
        char *text;
        int n;

        random_bytes(raw, NONCE_LEN);
        must(ctx && EVP_EncryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, raw));
        must(EVP_EncryptUpdate(ctx, NULL, &n, (const unsigned char *)context, (int)strlen(context)));
        must(EVP_EncryptUpdate(ctx, raw + HEADER_LEN, &n, data, (int)len));
        must(EVP_EncryptFinal_ex(ctx, raw + HEADER_LEN + n, &n));
        must(EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG_LEN, raw + NONCE_LEN));
        EVP_CIPHER_CTX_free(ctx);
        text = xmalloc((HEADER_LEN + len + 2) / 3 * 4 + 1);
        EVP_EncodeBlock((unsigned char *)text, raw, (int)(HEADER_LEN + len));
        return text;
}

/* The bytes of base64 text without its padding, or -1. */
static int decode(const char *text, unsigned char *raw)
{
        size_t len = strlen(text);
        int n = EVP_DecodeBlock(raw, (const unsigned char *)text, (int)len);

        if (n < 0 || len < 4)
                return -1;
        return n - (text[len - 1] == '=') - (text[len - 2] == '=');
}

static bool decrypt(const unsigned char *key, const char *context, unsigned char *raw, int raw_len, char *plain)
{
        EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
        bool ok;
        int n;

        must(ctx && EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, raw));
        must(EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG_LEN, raw + NONCE_LEN));
        must(EVP_DecryptUpdate(ctx, NULL, &n, (const unsigned char *)context, (int)strlen(context)));
        must(EVP_DecryptUpdate(ctx, (unsigned char *)plain, &n, raw + HEADER_LEN, raw_len - HEADER_LEN));
        ok = EVP_DecryptFinal_ex(ctx, (unsigned char *)plain + n, &n) > 0;
        EVP_CIPHER_CTX_free(ctx);
        return ok;
}

int secret_open(const unsigned char key[SECRET_LEN], const char *context, const char *sealed, char **ret, size_t *ret_len,
                struct error *err)
{
        CLEANUP_FREE unsigned char *raw = xmalloc(strlen(sealed) + 4);
        CLEANUP_FREE char *plain = NULL;
        int n = decode(sealed, raw);

        if (n >= HEADER_LEN) {
                plain = xcalloc(1, (size_t)(n - HEADER_LEN) + 1);
                if (decrypt(key, context, raw, n, plain)) {
                        *ret = STEAL(plain);
                        *ret_len = (size_t)(n - HEADER_LEN);
                        return 0;
                }
        }
        return error_set(err, ERROR_INTERNAL, "stored data cannot be unsealed: the root secret changed or the data was altered");
}
