/* A response head and body from a guest; the first byte chooses the piece size and whether it answers a HEAD. */
#include <stdint.h>
#include <stdlib.h>

#include "base/buf.h"
#include "http/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_body(void *userdata, const void *data, size_t len)
{
        buf_add(userdata, data, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_BUF struct buf body = {};
        const char *p = (const char *)data + 1;
        struct http_response r;
        struct wire *w = NULL;
        size_t head, piece;
        ssize_t n = 1;

        if (size < 2)
                return 0;
        piece = (size_t)data[0] / 2 + 1;
        size--;
        head = wire_head_length(p, size, 0);
        if (!head || wire_response(p, head, data[0] & 1, on_body, &body, &r, &w) < 0)
                return 0;
        for (size_t at = head; at < size && !wire_complete(w) && n > 0; at += (size_t)n)
                n = wire_body(w, p + at, size - at < piece ? size - at : piece);
        wire_eof(w);
        if ((data[0] & 1) && body.len)
                abort();
        http_response_free(&r);
        wire_free(w);
        return 0;
}
