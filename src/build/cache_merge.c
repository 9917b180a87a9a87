/* Evicting a layer that has a child (cache.h).
 *
 * Theory of operation: the chain is linked into a directory of the merge's own, so that whatever happens to the cache meanwhile
 * the images stay. The merged image is made there, without the lock, and moved beside the child's old disk. Then the child's
 * record is replaced, which is the instant at which the merge counts, and the old disk and the layer go. A crash before it
 * leaves a stray file, one behind it a layer without children: both are in order.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "build/cache_internal.h"
#include "vm/digest.h"
#include "vm/disk.h"

#define NAME_RANDOM 12

struct merge {
        char lower[BUILD_KEY_LEN + 1], upper[BUILD_KEY_LEN + 1];
        char lower_instance[BUILD_INSTANCE_LEN + 1], upper_instance[BUILD_INSTANCE_LEN + 1];
        char *dir;               /* of its own, below the cache's */
        char **below;            /* links of the disks under the lower one, bottom first, NULL-terminated */
        char *lower_disk, *upper_disk; /* links, or NULL */
        char *lower_digest, *upper_digest;
        uint64_t lower_bytes, gain;
        char *name;              /* of the result inside the child's directory, or NULL: no disk */
        char digest[DIGEST_HEX_LEN + 1];
};

static void merge_free(struct merge *m)
{
        if (m->dir)
                tree_remove(m->dir, NULL);
        for (char **p = m->below; p && *p; p++)
                free(*p);
        free(m->below);
        free(m->dir);
        free(m->lower_disk);
        free(m->upper_disk);
        free(m->lower_digest);
        free(m->upper_digest);
        free(m->name);
}

static char *link_into(const struct build_cache *c, const struct entry *e, const char *dir)
{
        CLEANUP_FREE char *from = NULL, *to = NULL;

        if (!e->disk)
                return NULL;
        from = cache_path(c, e->key, e->disk);
        to = xasprintf("%s/%s%s", dir, e->key, strrchr(e->disk, '.'));
        /* A link that fails shows when the image is opened. */
        (void)!link(from, to);
        return STEAL(to);
}

static void link_below(const struct build_cache *c, const struct entry *lower, struct merge *m)
{
        size_t n = 0, at;

        for (const struct entry *e = cache_parent(c, lower); e; e = cache_parent(c, e))
                n += e->disk != NULL;
        m->below = xcalloc(n + 1, sizeof(*m->below));
        at = n;
        for (const struct entry *e = cache_parent(c, lower); e; e = cache_parent(c, e))
                if (e->disk)
                        m->below[--at] = link_into(c, e, m->dir);
}

/* Says what is to be merged, and holds it. */
static int prepare(struct build_cache *c, struct entry *lower, struct entry *upper, struct merge *m)
{
        char random[NAME_RANDOM + 1];

        random_id(random, NAME_RANDOM);
        strcpy(m->lower, lower->key);
        strcpy(m->upper, upper->key);
        strcpy(m->lower_instance, lower->instance);
        strcpy(m->upper_instance, upper->instance);
        m->lower_bytes = lower->bytes;
        lower->busy = upper->busy = true;
        m->dir = xasprintf("%s/%s.%s.tmp", c->dir, upper->key, random);
        if (dir_make(m->dir, 0700, NULL) < 0)
                return -EIO;
        link_below(c, lower, m);
        m->lower_disk = link_into(c, lower, m->dir);
        m->upper_disk = link_into(c, upper, m->dir);
        m->lower_digest = xstrdup_or_null(lower->disk_digest);
        m->upper_digest = xstrdup_or_null(upper->disk_digest);
        if (m->lower_disk || m->upper_disk)
                m->name = xasprintf("layer-%s%s", random, strrchr(m->lower_disk ? m->lower_disk : m->upper_disk, '.'));
        failpoint("merge", m->dir);
        return 0;
}

/* Without the lock: what the merge would give back. 1: enough; 0: too little. */
static int weigh(struct merge *m, uint64_t min_gain)
{
        int r = 0;

        if (!m->lower_disk)
                m->gain = m->lower_bytes;
        else if (m->upper_disk)
                r = disk_overlap(m->lower_disk, m->upper_disk, &m->gain, NULL);
        return r < 0 ? r : m->gain >= min_gain;
}

/* A damaged layer must not become part of a whole one. */
static bool is_whole(const char *disk, const char *wanted)
{
        char digest[DIGEST_HEX_LEN + 1];

        return !disk || (cache_digest(disk, digest, NULL) >= 0 && streq(digest, wanted));
}

/* Without the lock: <dir>/<name>. 1 when it is there. */
static int make_image(struct merge *m)
{
        CLEANUP_FREE char *to = NULL;
        int r;

        if (!is_whole(m->lower_disk, m->lower_digest) || !is_whole(m->upper_disk, m->upper_digest))
                return -EIO;
        if (!m->name)
                return 1;
        to = path_join(m->dir, m->name);
        if (m->lower_disk && m->upper_disk)
                r = disk_merge((const char *const *)m->below, m->lower_disk, m->upper_disk, to, NULL);
        else
                r = link(m->lower_disk ? m->lower_disk : m->upper_disk, to) < 0 ? -errno : 0;
        if (r >= 0)
                r = cache_digest(to, m->digest, NULL);
        if (r < 0)
                return r;
        failpoint("merged", to);
        return 1;
}

static json_t *merged_keys(const struct entry *lower, const struct entry *upper)
{
        json_t *all = upper->merged ? json_deep_copy(upper->merged) : json_array();

        if (lower->merged)
                json_array_extend(all, lower->merged);
        json_array_append_new(all, json_string(lower->key));
        return all;
}

static void replace_text(char **to, const char *from)
{
        char *fresh = xstrdup_or_null(from);

        free(*to);
        *to = fresh;
}

/* The child's new record on the disk, then in the index. */
static int rewrite(struct build_cache *c, const struct merge *m, const struct entry *lower, struct entry *upper)
{
        CLEANUP_FREE char *dir = cache_path(c, upper->key, NULL);
        struct layer_record record = {};
        int r = layer_record_read(dir, &record, NULL);

        if (r < 0)
                return r;
        json_decref(record.merged);
        record.merged = merged_keys(lower, upper);
        replace_text(&record.parent_key, lower->parent_key);
        replace_text(&record.parent_instance, lower->parent_instance);
        replace_text(&record.disk, m->name);
        replace_text(&record.disk_digest, m->name ? m->digest : NULL);
        r = layer_record_write(dir, &record, NULL);
        if (r >= 0) {
                cache_set_time(c, upper);
                replace_text(&upper->parent_key, record.parent_key);
                replace_text(&upper->parent_instance, record.parent_instance);
                replace_text(&upper->disk, record.disk);
                replace_text(&upper->disk_digest, record.disk_digest);
                json_decref(upper->merged);
                upper->merged = json_incref(record.merged);
                upper->tried_child[0] = '\0';
        }
        layer_record_free(&record);
        return r;
}

static int take_over(struct build_cache *c, const struct merge *m, struct entry *lower, struct entry *upper)
{
        CLEANUP_FREE char *from = m->name ? path_join(m->dir, m->name) : NULL, *dir = cache_path(c, upper->key, NULL);
        CLEANUP_FREE char *to = m->name ? path_join(dir, m->name) : NULL;
        CLEANUP_FREE char *old = upper->disk ? path_join(dir, upper->disk) : NULL;
        int r = m->name ? file_publish(from, to, NULL) : 0;

        if (r >= 0)
                r = rewrite(c, m, lower, upper);
        if (r < 0) {
                if (to)
                        unlink(to);
                return r;
        }
        if (old) {
                unlink(old);
                failpoint("unlinked", old);
        }
        if (to)
                cache_verified(upper, to);
        c->bytes -= upper->bytes;
        upper->bytes = tree_allocated_bytes(dir);
        c->bytes += upper->bytes;
        cache_drop_one(c, lower);
        return 1;
}

/* Is everything as it was? */
static bool unchanged(const struct build_cache *c, const struct entry *lower, const struct entry *upper)
{
        return lower && upper && cache_only_child(c, lower) == upper && lower->pins == upper->pins;
}

/* Under the lock again, with what came of it. */
static void finish(struct build_cache *c, const struct merge *m, int r)
{
        struct entry *lower = cache_same(c, m->lower, m->lower_instance), *upper = cache_same(c, m->upper, m->upper_instance);

        if (lower)
                lower->busy = false;
        if (upper)
                upper->busy = false;
        if (!unchanged(c, lower, upper))
                return;
        if (r > 0)
                r = take_over(c, m, lower, upper);
        if (r <= 0) {
                strcpy(lower->tried_child, upper->instance);
                lower->tried_gain = r < 0 ? -1 : (int64_t)m->gain;
        }
}

void cache_merge(struct build_cache *c, struct entry *lower, struct entry *upper, uint64_t min_gain)
{
        struct merge m = {};
        int r = prepare(c, lower, upper, &m);

        pthread_mutex_unlock(&c->lock);
        if (r >= 0)
                r = weigh(&m, min_gain);
        if (r > 0)
                r = make_image(&m);
        pthread_mutex_lock(&c->lock);
        finish(c, &m, r);
        merge_free(&m);
}
