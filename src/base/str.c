#include "base/str.h"

#include <ctype.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"

bool streq(const char *a, const char *b)
{
        if (!a || !b)
                return a == b;
        return strcmp(a, b) == 0;
}

bool str_starts(const char *s, const char *prefix)
{
        return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
        size_t n = strlen(s), m = strlen(suffix);

        return n >= m && strcmp(s + n - m, suffix) == 0;
}

char *str_lower(char *s)
{
        for (char *p = s; *p; p++)
                if (*p >= 'A' && *p <= 'Z')
                        *p += 'a' - 'A';
        return s;
}

static bool is_blank(char c)
{
        return c == ' ' || (c >= '\t' && c <= '\r');
}

char *str_trim(char *s)
{
        size_t n;

        while (is_blank(*s))
                s++;
        n = strlen(s);
        while (n && is_blank(s[n - 1]))
                n--;
        s[n] = '\0';
        return s;
}

char *str_one_line(const char *s)
{
        CLEANUP_BUF struct buf out = {};
        bool broken = false;
        size_t blanks = 0;

        for (; *s; s++) {
                unsigned char c = (unsigned char)*s;

                if (c == '\n' || c == '\r') {
                        broken = true;
                } else if (c <= ' ' || c == 0x7f) {
                        blanks++;
                } else {
                        if (broken && out.len)
                                buf_add(&out, " | ", 3);
                        for (; !broken && blanks && out.len; blanks--)
                                buf_add(&out, " ", 1);
                        buf_add(&out, s, 1);
                        broken = false;
                        blanks = 0;
                }
        }
        return xstrdup(buf_str(&out));
}

bool str_is_hex(const char *s, size_t len)
{
        return strlen(s) == len && strspn(s, "0123456789abcdef") == len;
}

bool str_to_u64(const char *s, uint64_t max, uint64_t *ret)
{
        uint64_t v = 0;

        if (!*s)
                return false;
        for (; *s; s++) {
                if (*s < '0' || *s > '9' || __builtin_mul_overflow(v, 10, &v) ||
                    __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
                        return false;
        }
        if (v > max)
                return false;
        *ret = v;
        return true;
}

void hex_encode(const void *data, size_t len, char *out)
{
        static const char digits[] = "0123456789abcdef";
        const unsigned char *p = data;

        for (size_t i = 0; i < len; i++) {
                out[2 * i] = digits[p[i] >> 4];
                out[2 * i + 1] = digits[p[i] & 15];
        }
        out[2 * len] = '\0';
}

static int hex_value(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        if (c >= 'A' && c <= 'F')
                return c - 'A' + 10;
        return -1;
}

bool hex_decode(const char *hex, void *out, size_t len)
{
        unsigned char *p = out;

        if (strlen(hex) != 2 * len)
                return false;
        for (size_t i = 0; i < len; i++) {
                int hi = hex_value(hex[2 * i]), lo = hex_value(hex[2 * i + 1]);

                if (hi < 0 || lo < 0)
                        return false;
                p[i] = (unsigned char)(hi << 4 | lo);
        }
        return true;
}

bool str_equal_constant_time(const char *a, const char *b)
{
        size_t n = strlen(a);
        unsigned char diff = 0;

        if (n != strlen(b))
                return false;
        for (size_t i = 0; i < n; i++)
                diff |= (unsigned char)(a[i] ^ b[i]);
        return diff == 0;
}

/* Length of the valid sequence at p (1 to 4), or 0. Follows table 3-7 of the Unicode standard. */
static size_t utf8_sequence(const unsigned char *p, size_t len)
{
        unsigned char lo = 0x80, hi = 0xBF;
        size_t n;

        if (p[0] < 0x80)
                return p[0] ? 1 : 0;
        if (p[0] >= 0xC2 && p[0] <= 0xDF)
                n = 2;
        else if ((p[0] & 0xF0) == 0xE0)
                n = 3;
        else if (p[0] >= 0xF0 && p[0] <= 0xF4)
                n = 4;
        else
                return 0;
        if (n > len)
                return 0;
        if (p[0] == 0xE0)
                lo = 0xA0;
        else if (p[0] == 0xED)
                hi = 0x9F;
        else if (p[0] == 0xF0)
                lo = 0x90;
        else if (p[0] == 0xF4)
                hi = 0x8F;
        if (p[1] < lo || p[1] > hi)
                return 0;
        for (size_t i = 2; i < n; i++)
                if (p[i] < 0x80 || p[i] > 0xBF)
                        return 0;
        return n;
}

char *utf8_scrub(const char *data, size_t len)
{
        struct buf b = {};

        for (size_t i = 0; i < len;) {
                size_t n = utf8_sequence((const unsigned char *)data + i, len - i);

                if (n)
                        buf_add(&b, data + i, n);
                else
                        buf_adds(&b, "\xEF\xBF\xBD");
                i += n ? n : 1;
        }
        return buf_steal(&b);
}

bool utf8_valid(const char *data, size_t len)
{
        for (size_t i = 0; i < len;) {
                size_t n = utf8_sequence((const unsigned char *)data + i, len - i);

                if (!n)
                        return false;
                i += n;
        }
        return true;
}
