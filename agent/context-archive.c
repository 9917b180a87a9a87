/* Theory of operation: three readers in a row. zlib's gzread() unpacks gzip (any number of members) with its checksums, which
 * libarchive 3.6 skips, and hands on all else as it is; libarchive's raw format unpacks zstd; its tar format reads entries.
 * What passes into the tar reader is counted and its last two blocks are kept: a complete tar ends in two blocks of zeros.
 */
#include "context-archive.h"

#include <errno.h>
#include <string.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "tar.h"

#define TAR_BLOCK 512
#define END_MARK ((size_t)2 * TAR_BLOCK)
#define CHUNK (128 * 1024)

struct context_archive {
        gzFile file;
        struct archive *raw, *tar;
        uint64_t length;      /* bytes given to the tar reader */
        char tail[END_MARK];  /* the last of them */
        char packed[CHUNK], plain[CHUNK];
};

static int incomplete(struct error *err, const char *why)
{
        return error_set(err, ERROR_INVALID, "the archive is incomplete or damaged (%s): upload it again", why);
}

/* Bytes read, 0 at the end, -1 after setting the error of `a`. */
static la_ssize_t read_file(struct archive *a, void *data, const void **ret)
{
        struct context_archive *c = data;
        int n = gzread(c->file, c->packed, sizeof(c->packed)), code;
        const char *text = gzerror(c->file, &code);

        *ret = c->packed;
        if (n > 0 || (n == 0 && code == Z_OK))
                return n;
        archive_set_error(a, EIO, "%s", code == Z_ERRNO ? strerror(errno) : text);
        return -1;
}

static void keep_tail(struct context_archive *c, const char *data, size_t len)
{
        size_t n = len < END_MARK ? len : END_MARK;

        memmove(c->tail, c->tail + n, END_MARK - n);
        memcpy(c->tail + END_MARK - n, data + len - n, n);
        c->length += len;
}

static la_ssize_t read_unpacked(struct archive *a, void *data, const void **ret)
{
        struct context_archive *c = data;
        la_ssize_t n = archive_read_data(c->raw, c->plain, sizeof(c->plain));

        *ret = c->plain;
        if (n > 0)
                keep_tail(c, c->plain, (size_t)n);
        if (n >= 0)
                return n;
        archive_set_error(a, EIO, "%s", archive_error_string(c->raw));
        return -1;
}

static int open_readers(struct context_archive *c, struct error *err)
{
        struct archive_entry *e;
        int r;

        archive_read_support_filter_zstd(c->raw);
        archive_read_support_format_raw(c->raw);
        archive_read_support_format_tar(c->tar);
        r = archive_read_open(c->raw, c, NULL, read_file, NULL);
        if (r == ARCHIVE_OK)
                r = archive_read_next_header(c->raw, &e);
        if (r != ARCHIVE_OK && gzeof(c->file) && gztell(c->file) == 0)
                return incomplete(err, "it is empty");
        if (r != ARCHIVE_OK)
                return incomplete(err, archive_error_string(c->raw));
        if (archive_read_open(c->tar, c, NULL, read_unpacked, NULL) != ARCHIVE_OK)
                return incomplete(err, archive_error_string(c->tar));
        return 0;
}

int context_archive_open(const char *path, struct context_archive **ret, struct error *err)
{
        struct context_archive *c = xcalloc(1, sizeof(*c));
        int r;

        c->file = gzopen(path, "rbe");
        if (!c->file) {
                r = error_errno(err, errno ? errno : ENOMEM, "open %s", path);
                free(c);
                return r;
        }
        gzbuffer(c->file, CHUNK);
        c->raw = archive_read_new();
        c->tar = archive_read_new();
        if (!c->raw || !c->tar)
                abort();
        r = open_readers(c, err);
        if (r < 0) {
                context_archive_close(c);
                return r;
        }
        *ret = c;
        return 0;
}

struct archive *context_archive_tar(struct context_archive *c)
{
        return c->tar;
}

int context_archive_finish(struct context_archive *c, struct error *err)
{
        uint64_t end = c->length;
        la_ssize_t n;

        while ((n = archive_read_data(c->raw, c->plain, sizeof(c->plain))) > 0) {
                keep_tail(c, c->plain, (size_t)n);
                if (c->length - end > CONTEXT_PADDING_MAX)
                        return incomplete(err, "it goes on behind its end mark");
        }
        if (n < 0)
                return incomplete(err, archive_error_string(c->raw));
        if (c->length % TAR_BLOCK)
                return incomplete(err, "it is cut off within a block");
        for (size_t i = 0; i < END_MARK; i++)
                if (c->tail[i] || c->length < END_MARK)
                        return incomplete(err, "it does not end with its end mark");
        return 0;
}

struct context_archive *context_archive_close(struct context_archive *c)
{
        if (!c)
                return NULL;
        archive_read_free(c->tar);
        archive_read_free(c->raw);
        gzclose(c->file);
        free(c);
        return NULL;
}
