/* Downloads of an image's layers, several at a time. Workers take layer after layer; the calling thread alone talks to
 * the caller: it passes on lines and progress and asks whether to stop. The first failure stops the others.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/download.h"
#include "oci/oci.h"
#include "oci/progress.h"

/* Layers downloaded at once: enough to hide round trips, few enough to be polite. */
#define PARALLEL_MAX 4
#define PROGRESS_NS (2 * NSEC_PER_SEC)
#define POLL_NS (50 * NSEC_PER_MSEC)
/* Left free on the disk of the cache. */
#define DISK_MARGIN (64ULL << 20)
#define MB 1000000ULL

struct item {
        const struct oci_layer *layer;
        size_t number; /* 1-based, in the image */
        _Atomic uint64_t done;
        uint64_t reported;  /* calling thread only */
        atomic_bool active;
};

struct fetch {
        const struct oci_image *image;
        struct session session;
        struct item *items;
        size_t count, next;       /* `next` under lock */
        unsigned running;         /* under lock */
        atomic_bool stop;
        struct buf notes;         /* under lock: lines for the caller */
        struct error error;       /* under lock: the first failure */
        int result;
        pthread_mutex_t lock;
        pthread_cond_t ended;
};

static bool worker_stop(void *data)
{
        struct fetch *f = data;

        return atomic_load(&f->stop);
}

static void worker_note(void *data, const char *line)
{
        struct fetch *f = data;

        pthread_mutex_lock(&f->lock);
        buf_addf(&f->notes, "%s\n", line);
        pthread_mutex_unlock(&f->lock);
}

static struct item *take_item(struct fetch *f)
{
        struct item *i = NULL;

        pthread_mutex_lock(&f->lock);
        if (f->next < f->count && !atomic_load(&f->stop))
                i = &f->items[f->next++];
        pthread_mutex_unlock(&f->lock);
        return i;
}

static void fail(struct fetch *f, int r, const struct error *err)
{
        pthread_mutex_lock(&f->lock);
        if (f->result == 0) {
                f->result = r;
                f->error = *err;
        }
        pthread_mutex_unlock(&f->lock);
        atomic_store(&f->stop, true);
}

static void download_items(struct fetch *f, struct transfer *t)
{
        for (struct item *i; (i = take_item(f));) {
                struct error err = {};
                int r;

                atomic_store(&i->active, true);
                r = blob_download(&f->session, t, i->layer->digest, i->layer->size, &i->done, worker_note, f, &err);
                atomic_store(&i->active, false);
                if (r < 0) {
                        error_wrap(&err, r, "layer %zu/%zu", i->number, f->image->layer_count);
                        fail(f, r, &err);
                }
        }
}

static void *worker(void *data)
{
        struct fetch *f = data;
        struct transfer t = {
                .insecure = f->session.options->insecure,
                .stall_seconds = f->session.options->stall_seconds,
                .stop = worker_stop,
                .stop_data = f,
        };
        struct error err = {};
        int r = transfer_open(&t, &err);

        if (r < 0)
                fail(f, r, &err);
        else
                download_items(f, &t);
        transfer_close(&t);
        pthread_mutex_lock(&f->lock);
        f->running--;
        pthread_cond_signal(&f->ended);
        pthread_mutex_unlock(&f->lock);
        return NULL;
}

static void pass_notes(struct fetch *f, const struct oci_progress *p)
{
        CLEANUP_FREE char *notes = NULL;
        char *save = NULL;

        pthread_mutex_lock(&f->lock);
        notes = buf_steal(&f->notes);
        pthread_mutex_unlock(&f->lock);
        for (char *line = strtok_r(notes, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
                progress_log(p, 2, "%s", line);
}

/* "layer 3/7 120 of 430 MB, 45 MB/s" for each layer under way. */
static void report(struct fetch *f, const struct oci_progress *p, double seconds)
{
        for (size_t n = 0; n < f->count; n++) {
                struct item *i = &f->items[n];
                uint64_t done = atomic_load(&i->done), size = i->layer->size;
                double rate = done > i->reported ? (double)(done - i->reported) / (double)MB / seconds : 0;

                i->reported = done;
                if (atomic_load(&i->active))
                        progress_log(p, 1, size >= 10 * MB ? "layer %zu/%zu %.0f of %.0f MB, %.1f MB/s"
                                                           : "layer %zu/%zu %.2f of %.2f MB, %.2f MB/s",
                                     i->number, f->image->layer_count, (double)done / (double)MB,
                                     (double)size / (double)MB, rate);
        }
}

/* Until all workers have ended. */
static void watch(struct fetch *f, const struct oci_progress *p)
{
        int64_t last = clock_monotonic_ns();

        for (bool more = true; more;) {
                int64_t now, until = clock_realtime_ns() + POLL_NS;
                struct timespec ts = { .tv_sec = until / NSEC_PER_SEC, .tv_nsec = until % NSEC_PER_SEC };

                pthread_mutex_lock(&f->lock);
                if (f->running)
                        pthread_cond_timedwait(&f->ended, &f->lock, &ts);
                more = f->running > 0;
                pthread_mutex_unlock(&f->lock);
                pass_notes(f, p);
                if (more && progress_cancelled(p))
                        atomic_store(&f->stop, true);
                now = clock_monotonic_ns();
                if (now - last >= PROGRESS_NS) {
                        report(f, p, (double)(now - last) / (double)NSEC_PER_SEC);
                        last = now;
                }
        }
}

static int run(struct fetch *f, const struct oci_progress *p, struct error *err)
{
        size_t want = f->count < PARALLEL_MAX ? f->count : PARALLEL_MAX, n;
        pthread_t threads[PARALLEL_MAX];

        for (n = 0; n < want; n++) {
                pthread_mutex_lock(&f->lock);
                f->running++;
                pthread_mutex_unlock(&f->lock);
                if (pthread_create(&threads[n], NULL, worker, f) != 0) {
                        pthread_mutex_lock(&f->lock);
                        f->running--;
                        pthread_mutex_unlock(&f->lock);
                        break;
                }
        }
        if (n == 0)
                return error_set(err, ERROR_UNAVAILABLE, "no thread for the download could be started");
        watch(f, p);
        for (size_t i = 0; i < n; i++)
                pthread_join(threads[i], NULL);
        if (f->result < 0) {
                if (err)
                        *err = f->error;
                return f->result;
        }
        return atomic_load(&f->stop) ? error_set(err, ERROR_CANCELLED, "cancelled") : 0;
}

static bool earlier(const struct oci_image *image, size_t index)
{
        for (size_t i = 0; i < index; i++)
                if (streq(image->layers[i].digest, image->layers[index].digest))
                        return true;
        return false;
}

/* What is missing, largest concern first: the order of the image. Returns the bytes still to come. */
static uint64_t list_missing(struct fetch *f, const char *cache)
{
        uint64_t missing = 0;

        f->items = xcalloc(f->image->layer_count + 1, sizeof(*f->items));
        for (size_t i = 0; i < f->image->layer_count; i++) {
                const struct oci_layer *l = &f->image->layers[i];
                CLEANUP_FREE char *partial = NULL;
                struct stat st;

                if (earlier(f->image, i) || blob_present(cache, l->digest, l->size))
                        continue;
                partial = blob_partial_path(cache, l->digest);
                missing += l->size - (stat(partial, &st) == 0 && (uint64_t)st.st_size <= l->size ? (uint64_t)st.st_size : 0);
                f->items[f->count].layer = l;
                f->items[f->count++].number = i + 1;
        }
        return missing;
}

static int check_disk(const char *cache, uint64_t missing, struct error *err)
{
        struct statvfs v;
        uint64_t available;

        if (statvfs(cache, &v) < 0)
                return error_errno(err, errno, "look at the disk of %s", cache);
        available = (uint64_t)v.f_bavail * v.f_frsize;
        if (missing + DISK_MARGIN <= available)
                return 0;
        return error_set(err, ERROR_UNAVAILABLE,
                         "the image needs %llu MB more in %s, but only %llu MB are free there; make room or move the "
                         "data directory", (unsigned long long)(missing / MB), cache, (unsigned long long)(available / MB));
}

static int fetch_missing(struct fetch *f, const struct oci_options *o, const struct oci_auth *auth,
                         const struct oci_progress *p, struct error *err)
{
        __attribute__((cleanup(oci_reference_free))) struct oci_reference ref = {};
        int r = oci_reference_parse(f->image->reference, &ref, err);

        if (r == 0)
                r = session_open(o, &ref, auth, &f->session, err);
        if (r < 0)
                return r;
        pthread_mutex_init(&f->lock, NULL);
        pthread_cond_init(&f->ended, NULL);
        r = run(f, p, err);
        pthread_cond_destroy(&f->ended);
        pthread_mutex_destroy(&f->lock);
        session_close(&f->session);
        return r;
}

int oci_fetch(const struct oci_options *o, const struct oci_image *image, const struct oci_auth *auth,
              const struct oci_progress *progress, struct error *err)
{
        struct fetch f = { .image = image };
        struct error own = {};
        uint64_t missing;
        int r = blob_cache_prepare(o->cache_dir, err);

        if (r < 0)
                return r;
        download_sweep(o->cache_dir);
        missing = list_missing(&f, o->cache_dir);
        if (f.count)
                r = check_disk(o->cache_dir, missing, &own);
        if (r == 0 && f.count)
                r = fetch_missing(&f, o, auth, progress, &own);
        free(f.items);
        buf_free(&f.notes);
        if (r == 0)
                return 0;
        if (err)
                *err = own;
        if (own.kind == ERROR_CANCELLED)
                return -ECANCELED;
        if (own.kind == ERROR_FORBIDDEN)
                return error_wrap(err, error_kind_to_errno(own.kind), "access denied to '%s'", image->reference);
        return error_wrap(err, error_kind_to_errno(own.kind), "failed to pull image '%s'", image->reference);
}
