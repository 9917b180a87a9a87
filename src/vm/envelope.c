#include "vm/envelope.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"

#define HEADER 5
#define FLAG_END 2

void envelope_format(struct buf *b, unsigned char flags, const json_t *message)
{
        CLEANUP_FREE char *text = json_text(message);
        size_t len = strlen(text);
        const unsigned char header[HEADER] = {flags, (unsigned char)(len >> 24), (unsigned char)(len >> 16),
                                              (unsigned char)(len >> 8), (unsigned char)len};

        buf_add(b, header, sizeof header);
        buf_add(b, text, len);
}

int envelope_take(struct buf *b, json_t **ret, bool *ret_end)
{
        const unsigned char *p = (const unsigned char *)b->data;
        json_t *j;
        size_t len;
        bool end;

        if (b->len < HEADER)
                return 0;
        len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
        if (p[0] & ~FLAG_END)
                return -EPROTO;
        if (len > ENVELOPE_MAX)
                return -EMSGSIZE;
        if (b->len - HEADER < len)
                return 0;
        end = p[0] & FLAG_END;
        if (json_parse(b->data + HEADER, len, &j, NULL) < 0)
                return -EBADMSG;
        buf_consume(b, HEADER + len);
        if (!json_is_object(j)) {
                json_decref(j);
                return -EBADMSG;
        }
        *ret = j;
        *ret_end = end;
        return 1;
}
