/* A download collects in partial/<hex> under an flock, which is what makes two pulls of one blob share it: the second
 * waits for the lock and then finds the blob. After an interruption, of the connection or of the process, it goes on
 * from the bytes held by Range. The bytes are hashed as they come; those found at the start are hashed once.
 *
 * Answers to a Range request: 206 from where we are goes on; 200 starts over with the body at hand; 206 from elsewhere
 * or of another total, and 416, start over with a new request. A wrong digest starts over once when the file was pieced
 * together, since a piece may have been damaged on disk; else the endpoint is at fault.
 */
#include "oci/download.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/retry.h"

#define LOCK_POLL_MS 100
#define WRITEBACK_BYTES (8U << 20)
#define STALE_SECONDS (24 * 3600)
/* Requests for one blob, however much progress each makes. */
#define REQUESTS_MAX 1000

struct download {
        const char *digest;
        uint64_t size, held, flushed;
        _Atomic uint64_t *done;
        struct digest_state hash;
        int fd;
        bool pieced; /* of more than one answer */
};

static uint64_t number(const char **p, bool *good)
{
        uint64_t n = 0;

        if (**p < '0' || **p > '9')
                *good = false;
        for (; **p >= '0' && **p <= '9'; (*p)++) {
                if (n > (UINT64_MAX - 9) / 10)
                        *good = false;
                n = n * 10 + (uint64_t)(**p - '0');
        }
        return n;
}

static void expect(const char **p, char c, bool *good)
{
        if (*good && **p == c)
                (*p)++;
        else
                *good = false;
}

bool content_range_parse(const char *s, uint64_t *ret_from, uint64_t *ret_to, uint64_t *ret_total)
{
        uint64_t from, to, total = UINT64_MAX;
        bool good = str_starts(s, "bytes ");

        if (!good)
                return false;
        s += strlen("bytes ");
        from = number(&s, &good);
        expect(&s, '-', &good);
        to = number(&s, &good);
        expect(&s, '/', &good);
        if (*s == '*')
                s++;
        else
                total = number(&s, &good);
        if (!good || *s || from > to || (total != UINT64_MAX && to >= total))
                return false;
        *ret_from = from;
        *ret_to = to;
        *ret_total = total;
        return true;
}

static void set_held(struct download *d, uint64_t held)
{
        d->held = held;
        atomic_store(d->done, held);
}

static int start_over(struct download *d, struct error *err)
{
        if (ftruncate(d->fd, 0) < 0)
                return error_errno(err, errno, "empty the partial download");
        digest_start(&d->hash);
        d->flushed = 0;
        d->pieced = false;
        set_held(d, 0);
        return 0;
}

static int on_begin(void *data, const struct transfer_reply *r, struct error *err)
{
        struct download *d = data;
        uint64_t from, to, total;

        if (r->status == 200)
                return d->held ? start_over(d, err) : 0;
        if (r->content_range && content_range_parse(r->content_range, &from, &to, &total) && from == d->held &&
            (total == d->size || total == UINT64_MAX)) {
                d->pieced = true;
                return 0;
        }
        if (start_over(d, err) < 0)
                return -EIO;
        error_set(err, ERROR_UNAVAILABLE, "the registry answered a range request with another range");
        return -EAGAIN;
}

static int on_write(void *data, const void *bytes, size_t len, struct error *err)
{
        struct download *d = data;
        const char *p = bytes;

        if (len > d->size - d->held) {
                error_set(err, ERROR_INVALID, "the blob is longer than the %llu bytes that the manifest states",
                          (unsigned long long)d->size);
                return -EBADMSG;
        }
        for (size_t left = len; left;) {
                ssize_t n = pwrite(d->fd, p, left, (off_t)(d->held + (len - left)));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return error_errno(err, errno, "write to the image cache");
                p += n;
                left -= (size_t)n;
        }
        digest_add(&d->hash, bytes, len);
        set_held(d, d->held + len);
        if (d->held - d->flushed >= WRITEBACK_BYTES) { /* so that the final fsync finds little left to do */
                sync_file_range(d->fd, (off_t)d->flushed, (off_t)(d->held - d->flushed), SYNC_FILE_RANGE_WRITE);
                d->flushed = d->held;
        }
        return 0;
}

/* Takes over the bytes of an earlier try. */
static int rehash(struct download *d, struct error *err)
{
        CLEANUP_FREE char *block = xmalloc(1 << 17);
        struct stat st;

        if (fstat(d->fd, &st) < 0)
                return error_errno(err, errno, "stat the partial download");
        if ((uint64_t)st.st_size > d->size)
                return start_over(d, err);
        digest_start(&d->hash);
        for (uint64_t at = 0; at < (uint64_t)st.st_size;) {
                ssize_t n = pread(d->fd, block, 1 << 17, (off_t)at);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return error_errno(err, n < 0 ? errno : EIO, "read the partial download");
                digest_add(&d->hash, block, (size_t)n);
                at += (uint64_t)n;
        }
        set_held(d, (uint64_t)st.st_size);
        d->flushed = d->held;
        d->pieced = d->held > 0;
        return 0;
}

static int refused(struct session *s, const struct transfer_reply *r, struct error *err)
{
        CLEANUP_FREE char *why = session_describe(s, r);
        enum error_kind kind = r->status == 401 || r->status == 403 ? ERROR_FORBIDDEN
                               : r->status == 404                   ? ERROR_NOT_FOUND
                                                                    : ERROR_UNAVAILABLE;

        error_set(err, kind, "%s", why);
        return -EPROTO;
}

/* One request. 0: the answer ended well (perhaps early); -EAGAIN: worth another; -EPROTO and others: not. On a refusal
 * worth another, `reply` is kept for the pause. */
static int request(struct session *s, struct endpoint *e, struct transfer *t, struct download *d,
                   struct transfer_reply *reply, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("blobs/%s", d->digest);
        const struct transfer_request q = {
                .method = "GET",
                .ranged = d->held > 0,
                .range_from = d->held,
                .begin = on_begin,
                .write = on_write,
                .data = d,
        };
        int r = session_once(s, e, t, &q, path, reply, err);

        if (r < 0)
                return r;
        if (reply->status == 200 || reply->status == 206)
                return 0;
        refused(s, reply, err);
        if (reply->status == 416 && q.ranged)
                return start_over(d, err) < 0 ? -EIO : -EAGAIN;
        return retry_delay_ms(reply->status, reply->retry_after, 1) < 0 ? -EPROTO : -EAGAIN;
}

/* Requests until all bytes are held. */
static int complete(struct session *s, struct endpoint *e, struct transfer *t, struct download *d, struct error *err)
{
        unsigned attempt = 0;

        for (unsigned n = 0; d->held < d->size; n++) {
                struct transfer_reply reply = {};
                uint64_t before = d->held;
                struct error ignored;
                int r = request(s, e, t, d, &reply, err), wait;

                if (r == 0 && d->held < d->size) {
                        error_set(err, ERROR_UNAVAILABLE, "the registry ended the blob after %llu of %llu bytes",
                                  (unsigned long long)d->held, (unsigned long long)d->size);
                        r = -EAGAIN;
                }
                if (r < 0 && r != -EAGAIN) {
                        transfer_reply_free(&reply);
                        return r;
                }
                if (r == 0)
                        transfer_reply_free(&reply);
                else {
                        attempt = d->held > before ? 1 : attempt + 1;
                        wait = n < REQUESTS_MAX ? session_backoff(e, t, reply.status >= 400 && reply.status != 416 ? &reply : NULL,
                                                                  attempt, &ignored)
                                                : -ENOENT;
                        transfer_reply_free(&reply);
                        if (wait == -ENOENT)
                                return r;
                        if (wait < 0)
                                return error_set(err, ERROR_CANCELLED, "cancelled");
                }
        }
        return 0;
}

static int check_digest(struct download *d, struct error *err)
{
        char actual[DIGEST_TEXT_MAX];

        digest_final(&d->hash, actual);
        if (streq(actual, d->digest))
                return 0;
        error_set(err, ERROR_INVALID, "sha256 mismatch: expected %s, got %s", d->digest, actual);
        return -EBADMSG;
}

static int from_endpoint(struct session *s, struct endpoint *e, struct transfer *t, struct download *d, struct error *err)
{
        for (;;) {
                int r = complete(s, e, t, d, err);
                bool pieced = d->pieced;

                if (r == 0)
                        r = check_digest(d, err);
                if (r != -EBADMSG)
                        return r;
                if (start_over(d, NULL) < 0 || !pieced)
                        return r;
        }
}

static int from_endpoints(struct session *s, struct transfer *t, struct download *d,
                          void (*note)(void *data, const char *line), void *note_data, struct error *err)
{
        for (size_t i = 0;; i++) {
                int r = from_endpoint(s, &s->endpoints[i], t, d, err);
                CLEANUP_FREE char *line = NULL;

                if (r == 0 || r == -ECANCELED || i + 1 == s->endpoint_count)
                        return r;
                line = xasprintf("registry mirror %s: %s; going on with the registry itself", s->endpoints[i].base,
                                 err->message);
                note(note_data, line);
        }
}

/* Is `fd` still the file at `path`, or was it renamed or removed since it was opened? */
static bool same_file(int fd, const char *path)
{
        struct stat a, b;

        return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Opens the partial file and takes its lock. 1: locked, 0: the blob has appeared meanwhile. */
static int take_lock(const char *cache, const char *path, struct transfer *t, const struct download *d, int *ret_fd,
                     struct error *err)
{
        for (;;) {
                CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
                bool locked;
                int r;

                if (fd < 0)
                        return error_errno(err, errno, "open %s", path);
                locked = flock(fd, LOCK_EX | LOCK_NB) == 0 && same_file(fd, path);
                if (blob_present(cache, d->digest, d->size)) {
                        if (locked) /* made by this very open() */
                                unlink(path);
                        return 0;
                }
                if (locked) {
                        *ret_fd = STEAL_FD(fd);
                        return 1;
                }
                r = transfer_wait(t, LOCK_POLL_MS, err); /* held elsewhere */
                if (r < 0)
                        return r;
        }
}

int blob_download(struct session *s, struct transfer *t, const char *digest, uint64_t size, _Atomic uint64_t *done,
                  void (*note)(void *data, const char *line), void *note_data, struct error *err)
{
        const char *cache = s->options->cache_dir;
        CLEANUP_FREE char *partial = blob_partial_path(cache, digest), *path = blob_path(cache, digest);
        struct download d = { .digest = digest, .size = size, .done = done, .fd = -1 };
        int r;

        if (blob_present(cache, digest, size)) {
                set_held(&d, size);
                return 0;
        }
        r = take_lock(cache, partial, t, &d, &d.fd, err);
        if (r <= 0) {
                set_held(&d, r == 0 ? size : 0);
                return r;
        }
        r = rehash(&d, err);
        if (r == 0)
                r = from_endpoints(s, t, &d, note, note_data, err);
        if (r == 0)
                r = file_publish(partial, path, err);
        digest_free(&d.hash);
        close(d.fd);
        return r;
}

static void sweep_one(const char *dir, const char *name, time_t now)
{
        CLEANUP_FREE char *path = path_join(dir, name);
        CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || now - st.st_mtime < STALE_SECONDS)
                return;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
                unlink(path);
}

void download_sweep(const char *cache_dir)
{
        CLEANUP_FREE char *dir = path_join(cache_dir, "partial");
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        time_t now = time(NULL);

        for (struct dirent *e; d && (e = readdir(d));)
                if (e->d_name[0] != '.')
                        sweep_one(dir, e->d_name, now);
}
