/* Layer decompression, fed in two pieces. */
#include <stdint.h>
#include <stdlib.h>

#include "oci/decode.h"

#define OUT_MAX (8U << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char block[4096];
static size_t total;

static void *space(void *data, size_t *ret_len)
{
        (void)data;
        *ret_len = sizeof(block);
        return block;
}

static int filled(void *data, size_t len)
{
        (void)data;
        total += len;
        return total > OUT_MAX ? -1 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct decoder d = { .space = space, .filled = filled };
        size_t cut = size ? data[size - 1] % (size + 1) : 0;
        struct error err;

        total = 0;
        if (decoder_feed(&d, data, cut, &err) == 0 && decoder_feed(&d, data + cut, size - cut, &err) == 0)
                decoder_end(&d, &err);
        decoder_free(&d);
        return 0;
}
