/* GET /files (envd.md 3.5). Theory of operation: the file is read in chunks as the connection drains; identity
 * answers have a length and honour one range, gzip answers are chunked. Files of pseudo file systems say size 0
 * and are sent chunked until their end.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "endpoints.h"
#include "files.h"
#include "negotiate.h"
#include "web.h"

#define CHUNK (64 * 1024)
#define SNIFF 512
#define HTTP_DATE "%a, %d %b %Y %H:%M:%S GMT"

struct download {
        int fd;
        uint64_t offset, left;
        bool until_end;        /* size unknown */
        bool gzip, ended;
        z_stream z;
};

static void finish(struct http_exchange *x, struct download *d)
{
        d->ended = true;
        http_exchange_end(x);
}

static size_t write_gzip(struct http_exchange *x, struct download *d, char *data, size_t len, int flush)
{
        unsigned char out[CHUNK];
        size_t queued = http_exchange_queued(x);

        d->z.next_in = (unsigned char *)data;
        d->z.avail_in = (unsigned)len;
        do {
                d->z.next_out = out;
                d->z.avail_out = sizeof(out);
                deflate(&d->z, flush);
                if (d->z.avail_out < sizeof(out))
                        queued = http_exchange_write(x, out, sizeof(out) - d->z.avail_out);
        } while (d->z.avail_out == 0);
        return queued;
}

static void pump(struct http_exchange *x, struct download *d)
{
        char data[CHUNK];

        while (!d->ended && http_exchange_queued(x) <= HTTP_HIGH_WATER) {
                size_t want = d->until_end || d->left > CHUNK ? CHUNK : d->left;
                ssize_t n = want ? pread(d->fd, data, want, (off_t)d->offset) : 0;

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 || (n == 0 && !d->until_end && d->left > 0)) {
                        /* The file shrank or cannot be read: a short body must not look complete. */
                        d->ended = true;
                        http_exchange_abort(x);
                        return;
                }
                d->offset += (uint64_t)n;
                d->left -= d->until_end ? 0 : (uint64_t)n;
                if (d->gzip)
                        write_gzip(x, d, data, (size_t)n, n == 0 || (!d->until_end && d->left == 0) ? Z_FINISH : Z_NO_FLUSH);
                else if (n > 0)
                        http_exchange_write(x, data, (size_t)n);
                if (n == 0 || (!d->until_end && d->left == 0))
                        finish(x, d);
        }
}

static void on_drain(struct http_exchange *x, void *userdata)
{
        pump(x, userdata);
}

static void on_close(struct http_exchange *x, bool aborted, void *userdata)
{
        struct download *d = userdata;

        (void)x, (void)aborted;
        if (d->gzip)
                deflateEnd(&d->z);
        if (d->fd >= 0)
                close(d->fd);
        free(d);
}

static const struct http_exchange_ops ops = { .on_drain = on_drain, .on_close = on_close };

static bool is_pseudo(int fd)
{
        struct statfs fs;

        return fstatfs(fd, &fs) == 0 && (fs.f_type == 0x9fa0 /* proc */ || fs.f_type == 0x62656572 /* sysfs */ ||
                                         fs.f_type == 0x63677270 /* cgroup2 */ || fs.f_type == 0x64626720 /* debugfs */ ||
                                         fs.f_type == 0x74726163 /* tracefs */);
}

static bool not_modified(const struct http_headers *h, const struct stat *st)
{
        const char *since = http_headers_get(h, "If-Modified-Since");
        struct tm tm = {};

        return since && !http_headers_get(h, "If-None-Match") && strptime(since, HTTP_DATE, &tm) &&
               st->st_mtime <= timegm(&tm);
}

/* If-Range with a date that is not the file's makes the range void; there are no entity tags. */
static bool range_is_void(const struct http_headers *h, const struct stat *st)
{
        const char *date = http_headers_get(h, "If-Range");
        struct tm tm = {};

        return date && (!strptime(date, HTTP_DATE, &tm) || timegm(&tm) != st->st_mtime);
}

static struct http_headers file_headers(struct http_exchange *x, const char *path, int fd)
{
        struct http_headers headers = web_headers(x);
        const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
        CLEANUP_FREE char *disposition = negotiate_disposition(name);
        char head[SNIFF];
        ssize_t n = pread(fd, head, sizeof(head), 0);

        http_headers_add(&headers, "Content-Disposition", disposition);
        http_headers_add(&headers, "Vary", "Accept-Encoding");
        http_headers_add(&headers, "Content-Type", negotiate_type(name, head, n > 0 ? (size_t)n : 0));
        return headers;
}

static void send_gzip(struct http_exchange *x, struct download *d, struct http_headers *headers)
{
        http_headers_add(headers, "Content-Encoding", "gzip");
        d->gzip = true;
        deflateInit2(&d->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
        http_exchange_start(x, 200, headers, -1);
        pump(x, d);
}

static void send_status(struct http_exchange *x, struct download *d, int status, const struct http_headers *headers)
{
        d->ended = true;
        http_exchange_start(x, status, headers, 0);
        http_exchange_end(x);
}

static void send_identity(struct http_exchange *x, struct download *d, struct http_headers *headers, const struct stat *st)
{
        const struct http_headers *h = &http_exchange_request(x)->headers;
        uint64_t size = (uint64_t)st->st_size, start = 0, length = size;
        enum range range = range_is_void(h, st) ? RANGE_ALL
                                                : negotiate_range(http_headers_get(h, "Range"), size, &start, &length);
        char date[64];
        struct tm tm;

        gmtime_r(&st->st_mtime, &tm);
        strftime(date, sizeof(date), HTTP_DATE, &tm);
        http_headers_add(headers, "Last-Modified", date);
        http_headers_add(headers, "Accept-Ranges", "bytes");
        if (not_modified(h, st)) {
                send_status(x, d, 304, headers);
                return;
        }
        if (range == RANGE_UNSATISFIABLE) {
                http_headers_addf(headers, "Content-Range", "bytes */%llu", (unsigned long long)size);
                send_status(x, d, 416, headers);
                return;
        }
        if (range == RANGE_PART)
                http_headers_addf(headers, "Content-Range", "bytes %llu-%llu/%llu", (unsigned long long)start,
                                  (unsigned long long)(start + length - 1), (unsigned long long)size);
        d->offset = start;
        d->left = length;
        http_exchange_start(x, range == RANGE_PART ? 206 : 200, headers, (int64_t)length);
        pump(x, d);
}

static void send_file(struct http_exchange *x, const char *path, int fd, const struct stat *st, enum encoding encoding)
{
        struct download *d = xcalloc(1, sizeof(*d));
        struct http_headers headers = file_headers(x, path, fd);

        d->fd = fd;
        d->left = (uint64_t)st->st_size;
        d->until_end = !S_ISREG(st->st_mode) || (st->st_size == 0 && is_pseudo(fd));
        http_exchange_accept(x, &ops, d, false);
        if (encoding == ENCODING_GZIP)
                send_gzip(x, d, &headers);
        else if (d->until_end) {
                http_exchange_start(x, 200, &headers, -1);
                pump(x, d);
        } else
                send_identity(x, d, &headers, st);
        http_headers_free(&headers);
}

/* The encoding, or ENCODING_NONE after having refused. */
static enum encoding choose_encoding(struct http_exchange *x)
{
        static const char *const conditions[] = { "Range", "If-Range", "If-Modified-Since", "If-None-Match" };
        const struct http_headers *h = &http_exchange_request(x)->headers;
        const char *accept = http_headers_get(h, "Accept-Encoding");
        enum encoding encoding = negotiate_encoding(accept);

        if (encoding == ENCODING_NONE) {
                web_refuse(x, 406, "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]");
                return encoding;
        }
        for (size_t i = 0; i < sizeof(conditions) / sizeof(conditions[0]); i++) {
                if (!http_headers_get(h, conditions[i]))
                        continue;
                if (negotiate_identity(accept))
                        return ENCODING_IDENTITY;
                web_refuse(x, 406, "identity encoding not acceptable for Range or conditional request");
                return ENCODING_NONE;
        }
        return encoding;
}

static void open_and_send(struct http_exchange *x, const char *path)
{
        enum encoding encoding;
        struct stat st;
        int fd;

        if (stat(path, &st) < 0) {
                if (errno == ENOENT)
                        web_refuse(x, 404, "path '%s' does not exist", path);
                else
                        web_refuse(x, 500, "error checking if path exists '%s': %s", path, strerror(errno));
                return;
        }
        if (S_ISDIR(st.st_mode)) {
                web_refuse(x, 400, "path '%s' is a directory", path);
                return;
        }
        encoding = choose_encoding(x);
        if (encoding == ENCODING_NONE)
                return;
        /* Non-blocking, so that a FIFO without a writer is no trap for the loop. */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0 || S_ISFIFO(st.st_mode)) {
                web_refuse(x, 500, "error opening file '%s': %s", path, fd < 0 ? strerror(errno) : "it is a pipe");
                if (fd >= 0)
                        close(fd);
                return;
        }
        send_file(x, path, fd, &st, encoding);
}

void handle_download(struct http_exchange *x)
{
        CLEANUP_FREE char *message = NULL, *path = NULL;
        struct user user = {};
        struct file_query q;
        const char *refusal;

        if (!file_query_read(x, &q))
                return;
        refusal = file_authorise(x, &q, "read", time(NULL));
        if (refusal)
                web_refuse(x, 401, "%s", refusal);
        else if (file_user(&q, &user, &message) < 0)
                web_refuse(x, 401, "%s", message);
        else if (!(path = file_path(q.path, &user, &message)))
                web_refuse(x, 400, "%s", message);
        else
                open_and_send(x, path);
        user_free(&user);
        file_query_free(&q);
}
