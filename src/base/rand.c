#include "base/rand.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void random_bytes(void *out, size_t len)
{
        unsigned char *p = out;

        while (len) {
                ssize_t n = getrandom(p, len, 0);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        abort();
                }
                p += n;
                len -= (size_t)n;
        }
}

void random_id(char *out, size_t len)
{
        static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";

        for (size_t i = 0; i < len;) {
                uint8_t byte;

                random_bytes(&byte, 1);
                if (byte >= 252) /* 7 * 36: a larger one would favour the first letters */
                        continue;
                out[i++] = alphabet[byte % 36];
        }
        out[len] = '\0';
}

void random_uuid(char *out)
{
        uint8_t b[16];

        random_bytes(b, sizeof(b));
        b[6] = (b[6] & 0x0F) | 0x40;
        b[8] = (b[8] & 0x3F) | 0x80;
        snprintf(out, UUID_LEN + 1, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

int uuid_valid(const char *s)
{
        if (strlen(s) != UUID_LEN)
                return 0;
        for (int i = 0; i < UUID_LEN; i++) {
                if (i == 8 || i == 13 || i == 18 || i == 23) {
                        if (s[i] != '-')
                                return 0;
                } else if (!strchr("0123456789abcdefABCDEF", s[i])) {
                        return 0;
                }
        }
        return 1;
}
