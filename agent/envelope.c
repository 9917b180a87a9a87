#include "envelope.h"

#include <errno.h>

int envelope_read(const struct buf *in, size_t max, struct envelope *ret)
{
        const unsigned char *p = (const unsigned char *)in->data;

        *ret = (struct envelope){};
        if (in->len < ENVELOPE_HEAD)
                return 0;
        ret->flags = p[0];
        ret->len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
        if (ret->len > max)
                return -E2BIG;
        if (in->len - ENVELOPE_HEAD < ret->len)
                return 0;
        ret->payload = in->data + ENVELOPE_HEAD;
        return 1;
}

void envelope_add(struct buf *out, uint8_t flags, const void *payload, size_t len)
{
        const char head[ENVELOPE_HEAD] = { (char)flags, (char)(len >> 24), (char)(len >> 16), (char)(len >> 8), (char)len };

        buf_add(out, head, sizeof(head));
        buf_add(out, payload, len);
}
