/* Allocation that aborts instead of failing; see buf.h for why. */
#pragma once

#include <stddef.h>

void *xmalloc(size_t size);
void *xcalloc(size_t n, size_t size); /* zeroed; aborts when n * size overflows */
void *xrealloc(void *p, size_t size);
void *xreallocarray(void *p, size_t n, size_t size);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n);
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *xmemdup(const void *p, size_t n);

/* xstrdup that passes NULL through. */
char *xstrdup_or_null(const char *s);
