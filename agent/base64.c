#include "base64.h"

#include <stdint.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_add(struct buf *to, const void *data, size_t len)
{
        const uint8_t *p = data;
        size_t size = (len + 2) / 3 * 4;
        char *out = buf_reserve(to, size);

        for (; len >= 3; len -= 3, p += 3) {
                *out++ = alphabet[p[0] >> 2];
                *out++ = alphabet[(p[0] & 3) << 4 | p[1] >> 4];
                *out++ = alphabet[(p[1] & 15) << 2 | p[2] >> 6];
                *out++ = alphabet[p[2] & 63];
        }
        if (len > 0) {
                uint8_t second = len > 1 ? p[1] : 0;

                *out++ = alphabet[p[0] >> 2];
                *out++ = alphabet[(p[0] & 3) << 4 | second >> 4];
                *out++ = len > 1 ? alphabet[(second & 15) << 2] : '=';
                *out++ = '=';
        }
        buf_grew(to, size);
}

static int digit(char c)
{
        if (c >= 'A' && c <= 'Z')
                return c - 'A';
        if (c >= 'a' && c <= 'z')
                return c - 'a' + 26;
        if (c >= '0' && c <= '9')
                return c - '0' + 52;
        if (c == '+' || c == '-')
                return 62;
        return c == '/' || c == '_' ? 63 : -1;
}

bool base64_decode(const char *text, size_t len, struct buf *to)
{
        uint32_t bits = 0;
        unsigned count = 0;
        char *out;
        size_t n = 0;

        if (len > 0 && len % 4 == 0 && text[len - 1] == '=')
                len -= text[len - 2] == '=' ? 2 : 1;
        if (len % 4 == 1)
                return false;
        out = buf_reserve(to, len / 4 * 3 + 3);
        for (size_t i = 0; i < len; i++) {
                int d = digit(text[i]);

                if (d < 0)
                        return false;
                bits = bits << 6 | (uint32_t)d;
                count += 6;
                if (count >= 8) {
                        count -= 8;
                        out[n++] = (char)(bits >> count);
                }
        }
        buf_grew(to, n);
        return true;
}
