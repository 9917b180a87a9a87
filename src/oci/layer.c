/* Decompression of a layer with its diff_id checked, on two threads: this one reads and inflates, a helper hashes and
 * writes, so that a layer costs about what inflating alone costs. Full blocks go over in a small ring.
 *
 * The content decides how it is decoded: registries hold zstd layers under gzip types and plain tars under any, and the
 * diff_id settles in the end whether the right tar came out. When it does not, the blob is hashed: a blob damaged on
 * disk is removed, so that the next pull fetches it again; an intact one is the image's own fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/decode.h"
#include "oci/digest.h"
#include "oci/oci.h"
#include "oci/progress.h"

#define BLOCK (512U << 10)
#define BLOCKS 4
#define TAR_BLOCK 512
#define INPUT_BLOCK (256U << 10)
#define WRITEBACK_BYTES (16U << 20)

struct ring {
        char *blocks[BLOCKS];
        size_t len[BLOCKS];
        size_t head, tail;    /* blocks handed over, blocks done with */
        bool ended;           /* no more will come */
        int result;           /* of the helper: its first -errno */
        pthread_mutex_t lock;
        pthread_cond_t moved;
        int fd;
        struct digest_state hash;
};

struct extraction {
        struct ring ring;
        size_t fill;          /* of the block under way */
        uint64_t total, limit;
        const struct oci_progress *progress;
        struct error *err;
};

static int write_block(struct ring *g, size_t slot, uint64_t *at)
{
        int r;

        digest_add(&g->hash, g->blocks[slot], g->len[slot]);
        r = fd_write_all(g->fd, g->blocks[slot], g->len[slot]);
        *at += g->len[slot];
        if (*at / WRITEBACK_BYTES != (*at - g->len[slot]) / WRITEBACK_BYTES)
                sync_file_range(g->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        return r;
}

static void *helper(void *data)
{
        struct ring *g = data;
        uint64_t at = 0;

        pthread_mutex_lock(&g->lock);
        for (;;) {
                size_t slot = g->tail % BLOCKS;
                int r = 0;

                while (g->tail == g->head && !g->ended)
                        pthread_cond_wait(&g->moved, &g->lock);
                if (g->tail == g->head)
                        break;
                pthread_mutex_unlock(&g->lock);
                if (g->result == 0)
                        r = write_block(g, slot, &at);
                pthread_mutex_lock(&g->lock);
                if (g->result == 0)
                        g->result = r;
                g->tail++;
                pthread_cond_signal(&g->moved);
        }
        pthread_mutex_unlock(&g->lock);
        return NULL;
}

/* Hands the block under way to the helper and waits until the next is free. */
static int hand_over(struct extraction *x)
{
        struct ring *g = &x->ring;
        int r;

        pthread_mutex_lock(&g->lock);
        g->len[g->head % BLOCKS] = x->fill;
        g->head++;
        pthread_cond_signal(&g->moved);
        while (g->head - g->tail == BLOCKS)
                pthread_cond_wait(&g->moved, &g->lock);
        r = g->result;
        pthread_mutex_unlock(&g->lock);
        x->fill = 0;
        return r < 0 ? error_errno(x->err, r, "write the unpacked layer") : 0;
}

/* Where the decoder puts its next bytes. */
static void *out_space(void *data, size_t *ret_len)
{
        struct extraction *x = data;

        *ret_len = BLOCK - x->fill;
        return x->ring.blocks[x->ring.head % BLOCKS] + x->fill;
}

static int out_filled(void *data, size_t len)
{
        struct extraction *x = data;

        x->fill += len;
        x->total += len;
        if (x->total > x->limit)
                return error_set(x->err, ERROR_LIMIT, "it unpacks to more than the limit of %llu MB",
                                 (unsigned long long)(x->limit / 1000000));
        return x->fill == BLOCK ? hand_over(x) : 0;
}

static int decode_file(struct extraction *x, int fd)
{
        struct decoder d = { .space = out_space, .filled = out_filled, .data = x };
        CLEANUP_FREE char *in = xmalloc(INPUT_BLOCK);
        int r = 0;

        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        while (r == 0) {
                ssize_t n = read(fd, in, INPUT_BLOCK);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        r = error_errno(x->err, errno, "read the layer");
                else if (progress_cancelled(x->progress))
                        r = error_set(x->err, ERROR_CANCELLED, "cancelled");
                else if (n == 0) {
                        r = decoder_end(&d, x->err);
                        break;
                } else
                        r = decoder_feed(&d, in, (size_t)n, x->err);
        }
        decoder_free(&d);
        if (r == 0 && x->fill)
                r = hand_over(x);
        return r;
}

static void ring_end(struct ring *g)
{
        pthread_mutex_lock(&g->lock);
        g->ended = true;
        pthread_cond_signal(&g->moved);
        pthread_mutex_unlock(&g->lock);
}

static int run(struct extraction *x, int in, char diff_id[DIGEST_TEXT_MAX])
{
        struct ring *g = &x->ring;
        pthread_t thread;
        int r;

        pthread_mutex_init(&g->lock, NULL);
        pthread_cond_init(&g->moved, NULL);
        digest_start(&g->hash);
        for (size_t i = 0; i < BLOCKS; i++)
                g->blocks[i] = xmalloc(BLOCK);
        r = pthread_create(&thread, NULL, helper, g);
        if (r == 0) {
                r = decode_file(x, in);
                ring_end(g);
                pthread_join(thread, NULL);
                if (r == 0 && g->result < 0)
                        r = error_errno(x->err, g->result, "write the unpacked layer");
        } else
                r = error_errno(x->err, r, "start a thread");
        digest_final(&g->hash, diff_id);
        digest_free(&g->hash);
        for (size_t i = 0; i < BLOCKS; i++)
                free(g->blocks[i]);
        pthread_cond_destroy(&g->moved);
        pthread_mutex_destroy(&g->lock);
        return r;
}

/* Some writers leave the padding of the last file's content out (umoci does). The diff_id has said that this is how the layer was
 * published; a tar that is cut anywhere else stays cut. */
static int pad(struct extraction *x, int out)
{
        uint64_t whole = (x->total + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;

        return whole == x->total || ftruncate(out, (off_t)whole) == 0 ? 0 : error_errno(x->err, errno, "write the unpacked layer");
}

static int extract(struct extraction *x, const char *blob, const char *path, const char *expected)
{
        CLEANUP_CLOSE int in = open(blob, O_RDONLY | O_CLOEXEC);
        CLEANUP_CLOSE int out = -1;
        char diff_id[DIGEST_TEXT_MAX];
        int r;

        if (in < 0)
                return error_errno(x->err, errno, "open %s", blob);
        out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (out < 0)
                return error_errno(x->err, errno, "create %s", path);
        x->ring.fd = out;
        r = run(x, in, diff_id);
        if (r == 0 && !streq(diff_id, expected)) {
                error_set(x->err, ERROR_INVALID, "diff_id mismatch: expected %s, got %s", expected, diff_id);
                r = -EBADMSG;
        }
        if (r == 0)
                r = pad(x, out);
        if (r < 0)
                unlink(path);
        return r;
}

int oci_extract(const struct oci_options *o, const struct oci_image *image, size_t index, const char *path,
                uint64_t limit, uint64_t *ret_size, const struct oci_progress *progress, struct error *err)
{
        const struct oci_layer *layer = &image->layers[index];
        CLEANUP_FREE char *blob = blob_path(o->cache_dir, layer->digest);
        struct extraction x = { .limit = limit, .progress = progress };
        struct error own = {}, damage = {};
        int r;

        x.err = &own;
        r = extract(&x, blob, path, layer->diff_id);
        if (r == -EBADMSG && blob_verify(o->cache_dir, layer->digest, &damage) == -EBADMSG) {
                own = damage;
                own.kind = ERROR_UNAVAILABLE;
                error_wrap(&own, 0, "pull the image again");
        }
        if (r == 0) {
                if (ret_size)
                        *ret_size = x.total;
                return 0;
        }
        if (err)
                *err = own;
        if (own.kind == ERROR_CANCELLED)
                return -ECANCELED;
        return error_wrap(err, error_kind_to_errno(own.kind), "image '%s': layer %zu/%zu", image->reference, index + 1,
                          image->layer_count);
}
