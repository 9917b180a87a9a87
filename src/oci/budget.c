/* The byte budget of the blob cache; see oci_cache_trim(). */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/oci.h"
#include "oci/record.h"

struct image {
        struct image_record record;
        int64_t used_s;
};

struct trim {
        const char *cache_dir;
        uint64_t budget, held;
        int64_t before_s; /* what was used later stays */
        bool dry_run;
        void (*found)(void *data, const char *what, const char *reason, uint64_t bytes);
        void *data;
        struct image *images;
        size_t count;
};

static int by_use(const void *a, const void *b)
{
        const struct image *x = a, *y = b;

        return x->used_s < y->used_s ? -1 : x->used_s > y->used_s;
}

static int read_images(struct trim *t, struct error *err)
{
        struct image_record *list;
        int r = image_record_list(t->cache_dir, &list, &t->count, err);

        if (r < 0)
                return r;
        t->images = xcalloc(t->count + 1, sizeof(*t->images));
        for (size_t i = 0; i < t->count; i++)
                t->images[i] = (struct image){ list[i], image_record_used(t->cache_dir, list[i].reference) };
        free(list);
        if (t->count > 1)
                qsort(t->images, t->count, sizeof(*t->images), by_use);
        return 0;
}

static bool is_named(const struct trim *t, size_t from, const char *hex)
{
        for (size_t i = from; i < t->count; i++)
                for (char **b = t->images[i].record.blobs; *b; b++)
                        if (streq(digest_hex(*b), hex))
                                return true;
        return false;
}

/* Blobs that no record names, and downloads that nobody went on with. */
static void remove_strays(struct trim *t, const char *subdir, const char *reason)
{
        CLEANUP_FREE char *dir = path_join(t->cache_dir, subdir);
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        struct stat st;

        for (struct dirent *e; d && t->held > t->budget && (e = readdir(d));) {
                if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
                    st.st_mtim.tv_sec > t->before_s || is_named(t, 0, e->d_name))
                        continue;
                failpoint("remove", e->d_name);
                if (!t->dry_run && unlinkat(dirfd(d), e->d_name, 0) < 0)
                        continue;
                t->held -= (uint64_t)st.st_blocks * 512;
                t->found(t->data, e->d_name, reason, (uint64_t)st.st_blocks * 512);
        }
}

/* What the removal of image `i` frees when those before it are gone. */
static uint64_t own_bytes(const struct trim *t, size_t i)
{
        uint64_t bytes = 0;

        for (char **b = t->images[i].record.blobs; *b; b++) {
                CLEANUP_FREE char *path = blob_path(t->cache_dir, *b);

                if (!is_named(t, i + 1, digest_hex(*b)))
                        bytes += tree_allocated_bytes(path);
        }
        return bytes;
}

static int remove_image(struct trim *t, size_t i, struct error *err)
{
        const char *reference = t->images[i].record.reference;
        CLEANUP_CLOSE int lock = image_records_lock(t->cache_dir, true);
        uint64_t bytes = own_bytes(t, i), freed;
        int r = 0;

        if (image_record_used(t->cache_dir, reference) > t->before_s) /* a build has resolved it meanwhile */
                return 0;
        failpoint("remove", reference);
        if (!t->dry_run)
                r = image_record_remove(t->cache_dir, reference, &freed, err);
        if (r < 0)
                return r;
        t->held -= bytes < t->held ? bytes : t->held;
        t->found(t->data, reference, "least recently used, above the budget of the image cache", bytes);
        return 0;
}

static int trim(struct trim *t, struct error *err)
{
        int r = read_images(t, err);

        if (r < 0)
                return r;
        remove_strays(t, "partial", "a download that was not gone on with");
        remove_strays(t, "blobs/sha256", "a blob of no image");
        for (size_t i = 0; r == 0 && i < t->count && t->held > t->budget && t->images[i].used_s <= t->before_s; i++)
                if (!t->images[i].record.imported)
                        r = remove_image(t, i, err);
        return r;
}

int oci_cache_trim(const char *cache_dir, uint64_t budget, int64_t safe_seconds, bool dry_run,
                   void (*found)(void *data, const char *what, const char *reason, uint64_t bytes), void *data, struct error *err)
{
        struct trim t = {
                .cache_dir = cache_dir,
                .budget = budget,
                .held = tree_allocated_bytes(cache_dir),
                .before_s = clock_realtime_ns() / NSEC_PER_SEC - safe_seconds,
                .dry_run = dry_run,
                .found = found,
                .data = data,
        };
        int r = t.held > budget ? trim(&t, err) : 0;

        for (size_t i = 0; i < t.count; i++)
                image_record_free(&t.images[i].record);
        free(t.images);
        return r < 0 ? error_wrap(err, r, "keep the image cache below its budget") : 0;
}
