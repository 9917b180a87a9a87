/* A request head and the body after it, fed in pieces whose size the first byte chooses. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
        const char *p = (const char *)data + 1, *why = NULL;
        struct http_request r;
        struct wire *w = NULL;
        size_t head, piece;
        ssize_t n = 1;

        if (size < 2)
                return 0;
        piece = (size_t)data[0] + 1;
        size--;
        head = wire_head_length(p, size, 0);
        if (!head)
                return 0;
        if (wire_request(p, head, on_body, &body, &r, &w, &why) != 0) {
                if (!why)
                        abort();
                return 0;
        }
        if (r.path[0] != '/' || strchr(r.path, '?') || (r.chunked && r.content_length != -1))
                abort();
        for (size_t at = head; at < size && !wire_complete(w) && n > 0; at += (size_t)n)
                n = wire_body(w, p + at, size - at < piece ? size - at : piece);
        if (!r.chunked && wire_complete(w) && (int64_t)body.len != r.content_length)
                abort();
        http_request_free(&r);
        wire_free(w);
        return 0;
}
