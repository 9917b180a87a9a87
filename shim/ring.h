/* The last bytes of a stream: a fixed ring, allocated on first use. */
#pragma once

#include <stddef.h>

struct ring {
        char *data;
        size_t size;  /* set by the owner before use */
        size_t start; /* oldest byte */
        size_t len;
};

void ring_add(struct ring *r, const char *data, size_t len);
/* Copies the content, oldest first, into `out` (r->len bytes). */
void ring_copy(const struct ring *r, char *out);
void ring_free(struct ring *r);
