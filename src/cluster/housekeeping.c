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
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

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
        CLEANUP_FREE char *from = path_join(builds, name), *to = xasprintf("%s/%s.gone.tmp", builds, name);
        int r = file_publish(from, to, err);

        return r < 0 ? r : tree_remove(to, err);
}

static int consider(const struct housekeeping_settings *s, bool dry_run, const char *builds, const char *name, struct list *l,
                    struct error *err)
{
        CLEANUP_FREE char *path = path_join(builds, name);
        struct garbage g = {};
        bool unfinished;
        int r;

        if (!take_name(name, g.build_id, &unfinished))
                return 0;
        r = judge(s, g.build_id, unfinished, &g.reason, err);
        if (r <= 0 || s->in_use(s->data, g.build_id))
                return r < 0 ? r : 0;
        g.bytes = tree_allocated_bytes(path);
        if (!dry_run) {
                if (s->forget)
                        s->forget(s->data, g.build_id);
                r = remove_directory(builds, name, err);
                if (r < 0)
                        return r;
                log_info("removed the artifacts of build %s (%s): %llu MB", g.build_id, g.reason, (unsigned long long)g.bytes >> 20);
        }
        l->items = xreallocarray(l->items, l->count + 1, sizeof(*l->items));
        l->items[l->count++] = g;
        return 0;
}

int housekeeping_collect(const struct housekeeping_settings *s, bool dry_run, struct garbage **ret, size_t *count, struct error *err)
{
        CLEANUP_FREE char *builds = path_join(s->data_dir, "builds");
        CLEANUP_CLOSEDIR DIR *d = opendir(builds);
        struct list l = {};
        struct dirent *de;
        int r = 0;

        *ret = NULL;
        *count = 0;
        if (!d)
                return errno == ENOENT ? 0 : error_errno(err, errno, "read %s", builds);
        while (r == 0 && (de = readdir(d)))
                r = consider(s, dry_run, builds, de->d_name, &l, err);
        *ret = l.items;
        *count = l.count;
        return r < 0 ? error_wrap(err, r, "remove artifacts that nobody uses") : 0;
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
        pthread_condattr_t attr;
        int r;

        h->settings = *s;
        h->settings.data_dir = xstrdup(s->data_dir);
        pthread_mutex_init(&h->run_lock, NULL);
        pthread_mutex_init(&h->lock, NULL);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&h->wake, &attr);
        pthread_condattr_destroy(&attr);
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
