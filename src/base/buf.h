/* A growable run of bytes, always NUL-terminated, so that it serves as string builder and as I/O
 * buffer. Zero-initialise with `struct buf b = {};`. Allocation failure aborts: on the hosts and
 * guests that vmon runs on, malloc of small sizes does not fail, and sizes from outside are checked
 * against named limits before they get here.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>

#include "base/cleanup.h"

struct buf {
        char *data; /* NULL while empty and never used */
        size_t len;
        size_t cap;
};

void buf_add(struct buf *b, const void *data, size_t len);
void buf_adds(struct buf *b, const char *s);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_vaddf(struct buf *b, const char *format, va_list ap) __attribute__((format(printf, 2, 0), nonnull(2)));

/* Makes room for `extra` more bytes and returns where they go; buf_grew() then counts what was
 * written there. */
char *buf_reserve(struct buf *b, size_t extra);
void buf_grew(struct buf *b, size_t len);

/* Drops the first `len` bytes. */
void buf_consume(struct buf *b, size_t len);

/* The text so far, "" when empty; owned by the buffer. */
const char *buf_str(const struct buf *b);

/* Hands the text over to the caller (free() it) and empties the buffer; never NULL. */
char *buf_steal(struct buf *b);
void buf_clear(struct buf *b);
void buf_free(struct buf *b);

#define CLEANUP_BUF CLEANUP(buf_free)
