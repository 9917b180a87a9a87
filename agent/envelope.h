/* The frames of a Connect stream (envd.md 1.4): one byte of flags, the payload's length in four (big-endian), the payload. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define ENVELOPE_HEAD 5

enum envelope_flag {
        ENVELOPE_COMPRESSED = 1,
        ENVELOPE_END = 2,
};

struct envelope {
        uint8_t flags;
        const char *payload; /* inside the buffer that was read; valid until it changes */
        size_t len;
};

/* The envelope at the start of `in`: 1 = whole, 0 = more bytes are needed, -E2BIG = its payload is longer than `max` bytes; `ret->len` and
 * `ret->flags` are then set as well. To take it off, consume ENVELOPE_HEAD + `ret->len` bytes. */
int envelope_read(const struct buf *in, size_t max, struct envelope *ret);

/* Appends one. `len` is at most UINT32_MAX. */
void envelope_add(struct buf *out, uint8_t flags, const void *payload, size_t len);
