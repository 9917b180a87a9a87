/* See housekeeping.h.
 *
 * The order of the questions matters: first what the record says, then whether somebody uses the build. A build that begins
 * to be used after that is one of a template that was deleted before; its start then fails, as it would have a moment later.
 * A store that cannot be read proves nothing: the run ends there. A directory is renamed before it is removed, so that a
 * crash leaves what the next start removes, and never half of a snapshot under its name.
 */
#include "cluster/housekeeping.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "cluster/contexts.h"
#include "oci/oci.h"

#define GONE ".gone.tmp" /* behind the name of what is being removed */

struct housekeeping {
        struct housekeeping_settings settings;
        pthread_mutex_t run_lock; /* one run at a time */
        pthread_mutex_t lock;     /* of what follows */
        pthread_cond_t wake;
        pthread_t thread;
        bool running, closing;
};

struct list {
        struct garbage *items;
        size_t count;
};

/* "<build>" or "<build>.tmp"; false for what is not ours. */
static bool take_name(const char *name, char build_id[UUID_LEN + 1], bool *ret_unfinished)
{
        size_t len = strlen(name);

        *ret_unfinished = str_ends(name, ".tmp");
        if (*ret_unfinished)
                len -= strlen(".tmp");
        if (len != UUID_LEN)
                return false;
        memcpy(build_id, name, UUID_LEN);
        build_id[UUID_LEN] = '\0';
        return uuid_valid(build_id);
}

/* 1 with the reason when the record speaks for removal, 0 when it does not. */
static int judge(const struct housekeeping_settings *s, const char *build_id, bool unfinished, const char **ret, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        struct error why = {};
        int r = records_build_get(s->records, build_id, &b, &why);

        if (r < 0 && why.kind != ERROR_NOT_FOUND)
                return error_set(err, why.kind, "%s", why.message);
        *ret = "no record knows it";
        if (r < 0)
                return 1;
        if (b->state == BUILD_WAITING || b->state == BUILD_BUILDING)
                return 0;
        *ret = "the build failed";
        if (b->state == BUILD_ERROR)
                return 1;
        *ret = "it was never finished";
        if (unfinished)
                return 1;
        r = records_template_get(s->records, b->template_id, &t, &why);
        if (r < 0 && why.kind != ERROR_NOT_FOUND)
                return error_set(err, why.kind, "%s", why.message);
        *ret = "its template was deleted";
        return r < 0;
}

static int remove_directory(const char *builds, const char *name, struct error *err)
{
        CLEANUP_FREE char *from = path_join(builds, name), *to = xasprintf("%s/%s" GONE, builds, name);
        int r = file_publish(from, to, err);

        if (r < 0)
                return r;
        failpoint("remove", to);
        r = tree_remove(to, err);
        failpoint("removed", to);
        return r;
}

static void list_add(struct list *l, const struct garbage *g)
{
        l->items = xreallocarray(l->items, l->count + 1, sizeof(*l->items));
        l->items[l->count++] = *g;
}

/* What a run that was cut off has left. Runs take turns, so that nobody else is at it. */
static bool is_left(const char *name, char build_id[UUID_LEN + 1])
{
        if (strlen(name) != UUID_LEN + strlen(GONE) || !str_ends(name, GONE))
                return false;
        memcpy(build_id, name, UUID_LEN);
        build_id[UUID_LEN] = '\0';
        return uuid_valid(build_id);
}

static int remove_left(bool dry_run, const char *path, struct garbage *g, struct list *l, struct error *err)
{
        int r;

        if (!path_exists(path)) /* made and removed since the directory was opened */
                return 0;
        g->reason = "its removal was cut off";
        g->bytes = tree_allocated_bytes(path);
        r = dry_run ? 0 : tree_remove(path, err);
        if (r == 0)
                list_add(l, g);
        return r;
}

static int consider(const struct housekeeping_settings *s, bool dry_run, const char *builds, const char *name, struct list *l,
                    struct error *err)
{
        CLEANUP_FREE char *path = path_join(builds, name);
        struct garbage g = { .kind = "build" };
        bool unfinished;
        int r;

        if (is_left(name, g.name))
                return remove_left(dry_run, path, &g, l, err);
        if (!take_name(name, g.name, &unfinished))
                return 0;
        r = judge(s, g.name, unfinished, &g.reason, err);
        if (r <= 0 || s->in_use(s->data, g.name))
                return r < 0 ? r : 0;
        g.bytes = tree_allocated_bytes(path);
        if (!dry_run) {
                if (s->forget)
                        s->forget(s->data, g.name);
                r = remove_directory(builds, name, err);
                if (r < 0)
                        return r;
                log_info("removed the artifacts of build %s (%s): %llu MB", g.name, g.reason, (unsigned long long)g.bytes >> 20);
        }
        list_add(l, &g);
        return 0;
}

static void found_context(void *data, const char *slug, const char *hash, const char *reason, uint64_t bytes)
{
        struct garbage g = { .kind = "context", .reason = reason, .bytes = bytes };

        snprintf(g.name, sizeof(g.name), "%s/%s", slug, hash);
        list_add(data, &g);
}

static void found_image(void *data, const char *what, const char *reason, uint64_t bytes)
{
        struct garbage g = { .kind = "image", .reason = reason, .bytes = bytes };

        snprintf(g.name, sizeof(g.name), "%s", what);
        list_add(data, &g);
}

static int collect_builds(const struct housekeeping_settings *s, bool dry_run, struct list *l, struct error *err)
{
        CLEANUP_FREE char *builds = path_join(s->data_dir, "builds");
        CLEANUP_CLOSEDIR DIR *d = opendir(builds);
        struct dirent *de;
        int r = 0;

        if (!d)
                return errno == ENOENT ? 0 : error_errno(err, errno, "read %s", builds);
        while (r == 0 && (de = readdir(d)))
                r = consider(s, dry_run, builds, de->d_name, l, err);
        return r < 0 ? error_wrap(err, r, "remove artifacts that nobody uses") : 0;
}

int housekeeping_collect(const struct housekeeping_settings *s, bool dry_run, struct garbage **ret, size_t *count, struct error *err)
{
        CLEANUP_FREE char *images = path_join(s->data_dir, "cache/oci");
        struct list l = {};
        int r = collect_builds(s, dry_run, &l, err);

        if (r == 0)
                r = contexts_collect(s->data_dir, s->records, dry_run, clock_realtime_ns() / NSEC_PER_SEC, found_context, &l, err);
        if (r == 0 && s->image_cache_bytes)
                r = oci_cache_trim(images, s->image_cache_bytes, s->image_safe_seconds, dry_run, found_image, &l, err);
        *ret = l.items;
        *count = l.count;
        return r;
}

int housekeeping_run(struct housekeeping *h, bool dry_run, struct garbage **ret, size_t *count, struct error *err)
{
        int r;

        pthread_mutex_lock(&h->run_lock);
        r = housekeeping_collect(&h->settings, dry_run, ret, count, err);
        pthread_mutex_unlock(&h->run_lock);
        return r;
}

static void run_and_log(struct housekeeping *h)
{
        struct garbage *items;
        struct error err = {};
        size_t count;

        if (housekeeping_run(h, false, &items, &count, &err) < 0)
                log_warn("housekeeping: %s", err.message);
        free(items);
}

static void *keep_house(void *data)
{
        struct housekeeping *h = data;

        pthread_mutex_lock(&h->lock);
        while (!h->closing) {
                int64_t next;
                struct timespec until;

                pthread_mutex_unlock(&h->lock);
                run_and_log(h);
                pthread_mutex_lock(&h->lock);
                next = clock_monotonic_ns() + HOUSEKEEPING_SECONDS * NSEC_PER_SEC;
                until = (struct timespec){.tv_sec = next / NSEC_PER_SEC, .tv_nsec = next % NSEC_PER_SEC};
                while (!h->closing && pthread_cond_timedwait(&h->wake, &h->lock, &until) != ETIMEDOUT)
                        ;
        }
        pthread_mutex_unlock(&h->lock);
        return NULL;
}

int housekeeping_new(const struct housekeeping_settings *s, struct housekeeping **ret, struct error *err)
{
        struct housekeeping *h = xcalloc(1, sizeof(*h));
        int r;

        h->settings = *s;
        h->settings.data_dir = xstrdup(s->data_dir);
        pthread_mutex_init(&h->run_lock, NULL);
        pthread_mutex_init(&h->lock, NULL);
        clock_cond_init(&h->wake);
        r = pthread_create(&h->thread, NULL, keep_house, h);
        h->running = r == 0;
        if (r != 0) {
                housekeeping_free(h);
                return error_errno(err, r, "start the housekeeping");
        }
        *ret = h;
        return 0;
}

void housekeeping_free(struct housekeeping *h)
{
        if (!h)
                return;
        pthread_mutex_lock(&h->lock);
        h->closing = true;
        pthread_cond_signal(&h->wake);
        pthread_mutex_unlock(&h->lock);
        if (h->running)
                pthread_join(h->thread, NULL);
        pthread_cond_destroy(&h->wake);
        pthread_mutex_destroy(&h->lock);
        pthread_mutex_destroy(&h->run_lock);
        free((char *)h->settings.data_dir);
        free(h);
}
