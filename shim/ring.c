#include "ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void ring_add(struct ring *r, const char *data, size_t len)
{
        if (!r->data)
                r->data = xmalloc(r->size);
        if (len > r->size) {
                data += len - r->size;
                len = r->size;
        }
        for (size_t i = 0; i < len;) {
                size_t end = (r->start + r->len) % r->size;
                size_t part = r->size - end < len - i ? r->size - end : len - i;
                size_t over;

                memcpy(r->data + end, data + i, part);
                i += part;
                r->len += part;
                over = r->len > r->size ? r->len - r->size : 0;
                r->start = (r->start + over) % r->size;
                r->len -= over;
        }
}

void ring_copy(const struct ring *r, char *out)
{
        size_t head = r->size - r->start < r->len ? r->size - r->start : r->len;

        if (!r->len)
                return;
        memcpy(out, r->data + r->start, head);
        memcpy(out + head, r->data, r->len - head);
}

void ring_free(struct ring *r)
{
        free(r->data);
        r->data = NULL;
        r->start = r->len = 0;
}
