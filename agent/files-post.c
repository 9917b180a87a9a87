/* POST /files (envd.md 3.6). Theory of operation: bytes go through an optional inflater into either the multipart
 * parser or the one raw file; each file is written as its bytes come. The first failure answers and everything
 * after it is dropped; what had been written stays, as upstream has it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "endpoints.h"
#include "entry.h"
#include "fileops.h"
#include "files.h"
#include "metadata.h"
#include "multipart.h"
#include "web.h"

#define INFLATE_CHUNK (64 * 1024)
#define STOP (-ECANCELED) /* an answer went out: no more parsing */

struct upload {
        struct http_exchange *x;
        struct file_query query;
        struct user user;
        json_t *metadata;
        json_t *results;        /* what is answered */
        bool raw, gzip, answered, member_done, fed;
        z_stream z;
        struct multipart parser;
        char *path;             /* of the file under way */
        int fd;
};

static void fail(struct upload *u, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void fail(struct upload *u, int status, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        va_list ap;

        if (u->answered)
                return;
        u->answered = true;
        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        web_error(u->x, status, "%s", buf_str(&b));
}

static int fail_space(struct upload *u)
{
        int64_t length = http_exchange_request(u->x)->content_length;

        if (length > 0)
                fail(u, 507, "attempted to write %lld bytes: not enough disk space available", (long long)length);
        else
                fail(u, 507, "not enough disk space available");
        return STOP;
}

static int fail_open(struct upload *u, int number)
{
        if (number == ENOSPC || number == EDQUOT)
                fail(u, 507, "not enough inodes available: open %s: %s", u->path, strerror(number));
        else if (number == EISDIR)
                fail(u, 400, "path is a directory: %s", u->path);
        else
                fail(u, 500, "error opening file: open %s: %s", u->path, strerror(number));
        return STOP;
}

static bool already_written(const struct upload *u, const char *path)
{
        size_t i;
        json_t *item;

        json_array_foreach(u->results, i, item)
                if (streq(json_str(item, "path"), path))
                        return true;
        return false;
}

static int open_file(struct upload *u)
{
        struct error err;
        struct stat st;

        if (fileops_make_parents(u->path, &u->user, &err) < 0) {
                fail(u, err.number == ENOSPC || err.number == EDQUOT ? 507 : 500, "error ensuring directories: %s",
                     err.message);
                return STOP;
        }
        if (stat(u->path, &st) == 0) {
                if (S_ISDIR(st.st_mode))
                        return fail_open(u, EISDIR);
                if (chown(u->path, u->user.uid, u->user.gid) < 0 && errno != EROFS && errno != EPERM) {
                        fail(u, 500, "error changing file ownership: %s", strerror(errno));
                        return STOP;
                }
        }
        u->fd = open(u->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
        if (u->fd < 0)
                return fail_open(u, errno);
        if (fchown(u->fd, u->user.uid, u->user.gid) < 0 && errno != EROFS && errno != EPERM) {
                fail(u, 500, "error changing file ownership: %s", strerror(errno));
                return STOP;
        }
        return 0;
}

static int begin_file(struct upload *u, const char *name)
{
        CLEANUP_FREE char *message = NULL;

        free(u->path);
        u->path = file_path(name, &u->user, &message);
        if (!u->path) {
                fail(u, 400, "%s", message);
                return STOP;
        }
        if (already_written(u, u->path)) {
                fail(u, 400, "you cannot upload multiple files to the same path '%s' in one upload request, only the "
                             "first specified file was uploaded", u->path);
                return STOP;
        }
        return open_file(u);
}

static int write_file(struct upload *u, const void *data, size_t len)
{
        int r = fd_write_all(u->fd, data, len);

        if (r == -ENOSPC || r == -EDQUOT)
                return fail_space(u);
        if (r < 0) {
                fail(u, 500, "error writing file: write %s: %s", u->path, strerror(-r));
                return STOP;
        }
        return 0;
}

static int end_file(struct upload *u)
{
        int r = metadata_replace(u->fd, u->metadata);
        json_t *result = json_object(), *metadata;
        const char *slash = strrchr(u->path, '/');

        if (close(u->fd) < 0 && (errno == ENOSPC || errno == EDQUOT))
                r = -errno;
        u->fd = -1;
        json_object_set_new(result, "path", entry_string(u->path));
        json_object_set_new(result, "name", entry_string(slash ? slash + 1 : u->path));
        json_object_set_new(result, "type", json_string("file"));
        metadata = entry_metadata(u->path);
        if (json_object_size(metadata))
                json_object_set(result, "metadata", metadata);
        json_decref(metadata);
        json_array_append_new(u->results, result);
        return r < 0 ? fail_space(u) : 0;
}

static int on_part(const char *name, const char *filename, void *data)
{
        struct upload *u = data;

        if (!streq(name, "file"))
                return 0;
        if (*u->query.path)
                return begin_file(u, u->query.path);
        if (!filename || !*filename) {
                fail(u, 400, "error getting multipart form file name: the part has no filename");
                return STOP;
        }
        return begin_file(u, filename);
}

static int on_content(const void *bytes, size_t len, void *data)
{
        struct upload *u = data;

        return u->fd >= 0 ? write_file(u, bytes, len) : 0;
}

static int on_part_end(void *data)
{
        struct upload *u = data;

        return u->fd >= 0 ? end_file(u) : 0;
}

static const struct multipart_ops part_ops = { on_part, on_content, on_part_end };

static void feed_plain(struct upload *u, const void *data, size_t len)
{
        struct error err;

        if (u->answered)
                return;
        if (u->raw) {
                write_file(u, data, len);
                return;
        }
        if (multipart_feed(&u->parser, data, len, &err) < 0)
                fail(u, 500, "error reading form: %s", err.message); /* silent when an op has answered */
}

static void feed_gzip(struct upload *u, const void *data, size_t len)
{
        unsigned char out[INFLATE_CHUNK];
        int r = Z_OK;

        u->fed = u->fed || len > 0;
        u->z.next_in = (unsigned char *)data;
        u->z.avail_in = (unsigned)len;
        while (!u->answered && (u->z.avail_in > 0 || (r == Z_OK && u->z.avail_out == 0))) {
                if (u->member_done) { /* concatenated members are one stream */
                        inflateReset(&u->z);
                        u->member_done = false;
                }
                u->z.next_out = out;
                u->z.avail_out = sizeof(out);
                r = inflate(&u->z, Z_NO_FLUSH);
                if (sizeof(out) > u->z.avail_out)
                        feed_plain(u, out, sizeof(out) - u->z.avail_out);
                u->member_done = r == Z_STREAM_END;
                if (r == Z_BUF_ERROR)
                        return;
                if (r != Z_OK && r != Z_STREAM_END) {
                        fail(u, 400, "error decompressing request body: gzip: %s", u->z.msg ? u->z.msg : "invalid data");
                        return;
                }
        }
}

static void on_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        struct upload *u = userdata;

        (void)x;
        if (u->answered)
                return;
        if (u->gzip)
                feed_gzip(u, data, len);
        else
                feed_plain(u, data, len);
}

static void on_end(struct http_exchange *x, void *userdata)
{
        struct upload *u = userdata;
        CLEANUP_FREE char *text = NULL;
        struct error err;

        (void)x;
        if (u->answered)
                return;
        if (u->gzip && !u->member_done) {
                fail(u, 400, "error decompressing request body: gzip: %s", u->fed ? "unexpected end" : "empty body");
                return;
        }
        if (u->raw)
                end_file(u);
        else if (multipart_finish(&u->parser, &err) < 0)
                fail(u, 500, "error reading form: %s", err.message);
        if (u->answered)
                return;
        u->answered = true;
        text = json_text(u->results);
        web_reply(u->x, 200, "application/json", text, strlen(text));
}

static void on_close(struct http_exchange *x, bool aborted, void *userdata)
{
        struct upload *u = userdata;

        (void)x, (void)aborted;
        if (u->fd >= 0)
                close(u->fd);
        if (u->gzip)
                inflateEnd(&u->z);
        multipart_free(&u->parser);
        user_free(&u->user);
        file_query_free(&u->query);
        json_decref(u->metadata);
        json_decref(u->results);
        free(u->path);
        free(u);
}

static const struct http_exchange_ops ops = { .on_data = on_data, .on_end = on_end, .on_close = on_close };

static void begin_multipart(struct upload *u, const char *type)
{
        struct error err;

        if (multipart_init(&u->parser, type, &part_ops, u, &err) < 0)
                fail(u, 500, "error parsing multipart form: %s", err.message);
}

/* Everything that is known from the head. */
static void begin(struct upload *u)
{
        const struct http_headers *h = &http_exchange_request(u->x)->headers;
        const char *encoding = http_headers_get(h, "Content-Encoding"), *type = http_headers_get(h, "Content-Type");
        CLEANUP_FREE char *message = NULL;
        const char *refusal = file_authorise(u->x, &u->query, "write", time(NULL));
        struct error err;

        if (refusal)
                fail(u, 401, "%s", refusal);
        else if (file_user(&u->query, &u->user, &message) < 0)
                fail(u, 401, "%s", message);
        else if (encoding && *encoding && strcasecmp(encoding, "identity") != 0 && strcasecmp(encoding, "gzip") != 0)
                fail(u, 400, "error decompressing request body: unsupported Content-Encoding: %s, supported: [gzip]", encoding);
        else if (metadata_from_headers(h, &u->metadata, &err) < 0)
                fail(u, 400, "%s", err.message);
        if (u->answered)
                return;
        u->gzip = encoding && strcasecmp(encoding, "gzip") == 0;
        if (u->gzip && inflateInit2(&u->z, 15 + 16) != Z_OK)
                abort();
        if (type && strncasecmp(type, "multipart/", 10) == 0)
                begin_multipart(u, type);
        else if (!type || strncasecmp(type, "application/octet-stream", 24) != 0)
                fail(u, 400, "unsupported content type: %s, expected multipart/form-data or application/octet-stream",
                     type ? type : "");
        else if (!*u->query.path)
                fail(u, 400, "path query parameter is required for raw body upload");
        else {
                u->raw = true;
                begin_file(u, u->query.path);
        }
}

void handle_upload(struct http_exchange *x)
{
        struct upload *u;
        struct file_query q;

        if (!file_query_read(x, &q))
                return;
        u = xcalloc(1, sizeof(*u));
        u->x = x;
        u->query = q;
        u->fd = -1;
        u->results = json_array();
        http_exchange_accept(x, &ops, u, false);
        begin(u);
}
