/* A stream of envelopes that arrives in pieces of a size that the first byte gives (agent/envelope.h). What is taken off is encoded again and
 * must be the bytes that came. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/envelope.h"
#include "base/cleanup.h"

#define MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_BUF struct buf in = {}, out = {};
        size_t piece = size ? data[0] + 1u : 1;
        struct envelope e;
        int r = 0;

        for (size_t at = 0; at < size && r >= 0; at += piece) {
                buf_add(&in, data + at, at + piece < size ? piece : size - at);
                while ((r = envelope_read(&in, MAX, &e)) > 0) {
                        envelope_add(&out, e.flags, e.payload, e.len);
                        buf_consume(&in, ENVELOPE_HEAD + e.len);
                }
        }
        if (out.len > size || (out.len && memcmp(out.data, data, out.len) != 0) || (r < 0 && e.len <= MAX))
                abort();
        return 0;
}
