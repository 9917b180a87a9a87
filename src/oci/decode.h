/* Streaming decoder of layers: gzip (members in a row), zstd (frames in a row) and plain content, told apart by magic. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define DECODE_MAGIC 4

enum decode_kind { DECODE_UNKNOWN = 0, DECODE_PLAIN, DECODE_GZIP, DECODE_ZSTD };

struct decoder {
        /* Where the next output goes, never of length 0; then how much was put there. Negative ends the decoding. */
        void *(*space)(void *data, size_t *ret_len);
        int (*filled)(void *data, size_t len);
        void *data;

        enum decode_kind kind;
        char magic[DECODE_MAGIC];
        size_t magic_len;
        void *state;  /* z_stream or ZSTD_DStream */
        bool between; /* a member or frame has ended */
        bool padding; /* after the last one */
};

/* Feeds input; -EBADMSG (ERROR_INVALID) when it cannot be decoded, else what filled() returned. */
int decoder_feed(struct decoder *d, const void *in, size_t len, struct error *err);
/* The input has ended: -EBADMSG when it was cut off. */
int decoder_end(struct decoder *d, struct error *err);
void decoder_free(struct decoder *d);
