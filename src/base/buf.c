#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define FORMAT_GUESS 60 /* bytes; what is formatted is mostly shorter, and is then formatted once */

char *buf_reserve(struct buf *b, size_t extra)
{
        size_t need;

        if (__builtin_add_overflow(b->len, extra, &need) || __builtin_add_overflow(need, 1, &need))
                abort();
        if (need > b->cap) {
                size_t cap = b->cap ? b->cap : 64;

                while (cap < need)
                        cap = cap > (size_t)-1 / 2 ? need : cap * 2;
                b->data = xrealloc(b->data, cap);
                b->cap = cap;
        }
        return b->data + b->len;
}

void buf_grew(struct buf *b, size_t len)
{
        b->len += len;
        b->data[b->len] = '\0';
}

void buf_add(struct buf *b, const void *data, size_t len)
{
        char *to = buf_reserve(b, len);

        if (len)
                memcpy(to, data, len);
        buf_grew(b, len);
}

void buf_adds(struct buf *b, const char *s)
{
        buf_add(b, s, strlen(s));
}

void buf_addc(struct buf *b, char c)
{
        buf_add(b, &c, 1);
}

void buf_vaddf(struct buf *b, const char *format, va_list ap)
{
        va_list again;
        int n;

        va_copy(again, ap);
        buf_reserve(b, FORMAT_GUESS);
        n = vsnprintf(b->data + b->len, b->cap - b->len, format, again);
        va_end(again);
        if (n < 0)
                abort();
        if ((size_t)n >= b->cap - b->len)
                vsnprintf(buf_reserve(b, (size_t)n), (size_t)n + 1, format, ap);
        buf_grew(b, (size_t)n);
}

void buf_addf(struct buf *b, const char *format, ...)
{
        va_list ap;

        va_start(ap, format);
        buf_vaddf(b, format, ap);
        va_end(ap);
}

void buf_consume(struct buf *b, size_t len)
{
        if (len >= b->len) {
                buf_clear(b);
                return;
        }
        memmove(b->data, b->data + len, b->len - len + 1);
        b->len -= len;
}

const char *buf_str(const struct buf *b)
{
        return b->data ? b->data : "";
}

char *buf_steal(struct buf *b)
{
        char *data;

        buf_reserve(b, 0);
        b->data[b->len] = '\0';
        data = b->data;
        *b = (struct buf){};
        return data;
}

void buf_clear(struct buf *b)
{
        b->len = 0;
        if (b->data)
                b->data[0] = '\0';
}

void buf_free(struct buf *b)
{
        free(b->data);
        *b = (struct buf){};
}
