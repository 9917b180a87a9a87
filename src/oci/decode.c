/* The first four bytes choose the decoder; they are held back until all are there or the input ends. Behind a gzip
 * member comes the next one, or zero padding as tape tools leave it; anything else is an error, as it is for Go's
 * reader, which every other registry client uses.
 */
#include "oci/decode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"

/* Frames may ask for a window of this size at most, as the zstd tool decodes by default. */
#define ZSTD_WINDOW_LOG 27

static int bad(struct error *err, const char *what)
{
        error_set(err, ERROR_INVALID, "%s", what);
        return -EBADMSG;
}

static enum decode_kind kind_of(const unsigned char *m, size_t len)
{
        if (len >= 3 && m[0] == 0x1f && m[1] == 0x8b && m[2] == 8)
                return DECODE_GZIP;
        if (len == 4 && m[0] == 0x28 && m[1] == 0xb5 && m[2] == 0x2f && m[3] == 0xfd)
                return DECODE_ZSTD;
        if (len == 4 && (m[0] & 0xf0) == 0x50 && m[1] == 0x2a && m[2] == 0x4d && m[3] == 0x18) /* skippable frame */
                return DECODE_ZSTD;
        return DECODE_PLAIN;
}

static int start(struct decoder *d, struct error *err)
{
        d->kind = kind_of((const unsigned char *)d->magic, d->magic_len);
        if (d->kind == DECODE_GZIP) {
                z_stream *z = xcalloc(1, sizeof(*z));

                d->state = z;
                if (inflateInit2(z, 15 + 16) != Z_OK)
                        return error_set(err, ERROR_INTERNAL, "zlib cannot be initialised");
        } else if (d->kind == DECODE_ZSTD) {
                d->state = ZSTD_createDStream();
                if (!d->state)
                        return error_set(err, ERROR_INTERNAL, "zstd cannot be initialised");
                ZSTD_DCtx_setParameter(d->state, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG);
        }
        d->between = true;
        return 0;
}

static int feed_plain(struct decoder *d, const char *in, size_t len)
{
        int r = 0;

        while (len && r == 0) {
                size_t room, n;
                void *to = d->space(d->data, &room);

                n = len < room ? len : room;
                memcpy(to, in, n);
                in += n;
                len -= n;
                r = d->filled(d->data, n);
        }
        return r;
}

static int only_zeros(const struct z_stream_s *z, struct error *err)
{
        for (unsigned i = 0; i < z->avail_in; i++)
                if (z->next_in[i])
                        return bad(err, "there is garbage behind the gzip data");
        return 0;
}

/* One call of inflate(); *more tells whether it left something to do. */
static int inflate_some(struct decoder *d, z_stream *z, bool *more, struct error *err)
{
        size_t room;
        int r;

        z->next_out = d->space(d->data, &room);
        z->avail_out = (unsigned)room;
        r = inflate(z, Z_NO_FLUSH);
        if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
                return bad(err, "the gzip data is damaged");
        d->between = r == Z_STREAM_END;
        *more = z->avail_in > 0 || z->avail_out == 0;
        return d->filled(d->data, room - z->avail_out);
}

static int feed_gzip(struct decoder *d, const void *in, size_t len, struct error *err)
{
        z_stream *z = d->state;
        bool more = true;

        z->next_in = (unsigned char *)in;
        z->avail_in = (unsigned)len;
        while (more) {
                int r;

                if (d->padding)
                        return only_zeros(z, err);
                if (d->between && z->avail_in == 0)
                        return 0;
                if (d->between && z->total_in && *z->next_in == 0) {
                        d->padding = true;
                        continue;
                }
                if (d->between)
                        inflateReset(z);
                r = inflate_some(d, z, &more, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int feed_zstd(struct decoder *d, const void *in, size_t len, struct error *err)
{
        ZSTD_inBuffer from = { .src = in, .size = len };
        bool more = true;

        while (more) {
                ZSTD_outBuffer to = {};
                size_t left;
                int r;

                to.dst = d->space(d->data, &to.size);
                left = ZSTD_decompressStream(d->state, &to, &from);
                if (ZSTD_isError(left))
                        return bad(err, "the zstd data is damaged or needs too large a window");
                d->between = left == 0;
                more = from.pos < from.size || (to.pos == to.size && left != 0);
                r = d->filled(d->data, to.pos);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int feed(struct decoder *d, const void *in, size_t len, struct error *err)
{
        switch (d->kind) {
        case DECODE_GZIP:
                return feed_gzip(d, in, len, err);
        case DECODE_ZSTD:
                return feed_zstd(d, in, len, err);
        default:
                return feed_plain(d, in, len);
        }
}

static int feed_magic(struct decoder *d, struct error *err)
{
        int r = start(d, err);

        return r < 0 ? r : feed(d, d->magic, d->magic_len, err);
}

int decoder_feed(struct decoder *d, const void *in, size_t len, struct error *err)
{
        if (d->kind == DECODE_UNKNOWN) {
                size_t want = DECODE_MAGIC - d->magic_len, n = len < want ? len : want;
                int r;

                memcpy(d->magic + d->magic_len, in, n);
                d->magic_len += n;
                if (d->magic_len < DECODE_MAGIC)
                        return 0;
                r = feed_magic(d, err);
                if (r < 0)
                        return r;
                in = (const char *)in + n;
                len -= n;
        }
        return len ? feed(d, in, len, err) : 0;
}

int decoder_end(struct decoder *d, struct error *err)
{
        if (d->kind == DECODE_UNKNOWN) {
                int r = feed_magic(d, err);

                if (r < 0)
                        return r;
        }
        if (d->kind != DECODE_PLAIN && !d->between)
                return bad(err, "the compressed data is cut off");
        return 0;
}

void decoder_free(struct decoder *d)
{
        if (d->kind == DECODE_GZIP && d->state) {
                inflateEnd(d->state);
                free(d->state);
        } else if (d->kind == DECODE_ZSTD)
                ZSTD_freeDStream(d->state);
        d->state = NULL;
}
