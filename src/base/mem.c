#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *p)
{
        if (!p)
                abort();
        return p;
}

void *xmalloc(size_t size)
{
        return must(malloc(size ? size : 1));
}

void *xcalloc(size_t n, size_t size)
{
        return must(calloc(n ? n : 1, size ? size : 1));
}

void *xrealloc(void *p, size_t size)
{
        return must(realloc(p, size ? size : 1));
}

void *xreallocarray(void *p, size_t n, size_t size)
{
        return must(reallocarray(p, n ? n : 1, size ? size : 1));
}

char *xstrdup(const char *s)
{
        return must(strdup(s));
}

char *xstrndup(const char *s, size_t n)
{
        return must(strndup(s, n));
}

char *xasprintf(const char *format, ...)
{
        va_list ap;
        char *s;
        int n;

        va_start(ap, format);
        n = vasprintf(&s, format, ap);
        va_end(ap);
        if (n < 0)
                abort();
        return s;
}

void *xmemdup(const void *p, size_t n)
{
        void *copy = xmalloc(n);

        if (n)
                memcpy(copy, p, n);
        return copy;
}

char *xstrdup_or_null(const char *s)
{
        return s ? xstrdup(s) : NULL;
}
