#include "build/key.h"

#include <openssl/evp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"

void build_sha256(const void *data, size_t len, char *ret)
{
        unsigned char digest[32];

        if (EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL) != 1)
                abort(); /* SHA-256 of memory fails only when libcrypto is broken */
        hex_encode(digest, sizeof(digest), ret);
}

static void field(struct buf *b, const char *s)
{
        size_t len = s ? strlen(s) : 0;
        unsigned char head[9];

        /* NULL and "" are different things. */
        head[0] = s ? 1 : 0;
        for (int i = 0; i < 8; i++)
                head[1 + i] = (unsigned char)((uint64_t)len >> (56 - 8 * i));
        buf_add(b, head, sizeof(head));
        if (len)
                buf_add(b, s, len);
}

static void number(struct buf *b, unsigned long n)
{
        char text[24];

        snprintf(text, sizeof(text), "%lu", n);
        field(b, text);
}

static void finish(struct buf *b, char *ret)
{
        build_sha256(b->data, b->len, ret);
        buf_free(b);
}

void build_key_image(const char *digest, const char *arch, unsigned disk_mb, const char *scripts_sha256,
                     const char *agent_sha256, char *ret)
{
        struct buf b = {};

        field(&b, "vmon-base-1");
        field(&b, digest);
        field(&b, arch);
        number(&b, disk_mb);
        field(&b, scripts_sha256);
        field(&b, agent_sha256);
        finish(&b, ret);
}

void build_key_template(const char *parent_build_id, unsigned disk_mb, char *ret)
{
        struct buf b = {};

        field(&b, "vmon-template-1");
        field(&b, parent_build_id);
        number(&b, disk_mb);
        finish(&b, ret);
}

void build_key_user(const char *previous, char *ret)
{
        struct buf b = {};

        field(&b, "vmon-user-1");
        field(&b, previous);
        field(&b, "DEFAULT USER");
        field(&b, "user");
        finish(&b, ret);
}

void build_key_step(const char *previous, const struct build_step *step, char *ret)
{
        struct buf b = {};
        size_t n = 0;

        while (step->args[n])
                n++;
        field(&b, "vmon-step-1");
        field(&b, previous);
        field(&b, step->type);
        number(&b, n);
        for (size_t i = 0; i < n; i++)
                field(&b, step->args[i]);
        field(&b, step->files_hash);
        finish(&b, ret);
}

void build_key_finalize(const char *previous, const char *scripts_sha256, char *ret)
{
        struct buf b = {};

        field(&b, "vmon-finalize-1");
        field(&b, previous);
        field(&b, scripts_sha256);
        finish(&b, ret);
}
