/* The other side of the build queue: what builds report goes into the records.
 *
 * Log lines are gathered in memory and appended to the record of the build every LOG_FLUSH_MS, when much has come together, and
 * always before the build's status changes for the last time: a client that sees a terminal status finds all lines. The
 * keeper's thread also ends builds that nobody triggers, and removes old logs.
 *
 * One mutex guards all; it is held while lines are appended to the store, so that they keep their order. A build that was
 * cancelled here is `closed`: its record has its end already, and what its worker still says is dropped.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/templates-internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#define FLUSH_BYTES (256 * 1024)     /* of messages of one build: more is flushed at once */
#define KEEP_BYTES (4 * 1024 * 1024) /* while the store refuses them; beyond it they are dropped */
#define SWEEP_SECONDS 60

struct log_buffer {
        struct log_buffer *next;
        char *build_id;
        char *parent_id; /* what it is built on; NULL until that is resolved, and for images */
        bool closed;
        struct log_entry *entries;
        size_t count, cap, bytes;
};

static struct log_buffer *find(struct template_service *s, const char *build_id)
{
        struct log_buffer *b = s->buffers;

        while (b && !streq(b->build_id, build_id))
                b = b->next;
        return b;
}

static struct log_buffer *find_or_add(struct template_service *s, const char *build_id)
{
        struct log_buffer *b = find(s, build_id);

        if (!b) {
                b = xcalloc(1, sizeof(*b));
                b->build_id = xstrdup(build_id);
                b->next = s->buffers;
                s->buffers = b;
        }
        return b;
}

static void empty(struct log_buffer *b)
{
        log_entries_free(b->entries, b->count);
        b->entries = NULL;
        b->count = b->cap = b->bytes = 0;
}

static void forget(struct template_service *s, const char *build_id)
{
        for (struct log_buffer **p = &s->buffers; *p; p = &(*p)->next)
                if (streq((*p)->build_id, build_id)) {
                        struct log_buffer *b = *p;

                        *p = b->next;
                        empty(b);
                        free(b->build_id);
                        free(b->parent_id);
                        free(b);
                        return;
                }
}

static void flush(struct template_service *s, struct log_buffer *b)
{
        struct error err = {};

        if (b->count == 0)
                return;
        if (records_log_append(s->records, b->build_id, b->entries, b->count, &err) < 0) {
                log_warn("build %s: its log cannot be stored: %s", b->build_id, err.message);
                if (b->bytes < KEEP_BYTES)
                        return;
        }
        empty(b);
}

static void add(struct template_service *s, const char *build_id, int level, const char *step, const char *message)
{
        struct log_buffer *b = find_or_add(s, build_id);

        if (b->closed)
                return;
        if (b->count == b->cap) {
                b->cap = b->cap ? b->cap * 2 : 64;
                b->entries = xreallocarray(b->entries, b->cap, sizeof(*b->entries));
        }
        b->entries[b->count++] = (struct log_entry){ .time_ns = clock_realtime_ns(), .level = level, .step = xstrdup_or_null(step),
                                                     .message = xstrdup(message) };
        b->bytes += strlen(message) + sizeof(*b->entries);
        if (b->bytes >= FLUSH_BYTES)
                flush(s, b);
        if (b->count > 0 && !s->dirty) {
                s->dirty = true;
                pthread_cond_signal(&s->wake);
        }
}

static void flush_build(struct template_service *s, const char *build_id)
{
        struct log_buffer *b = find(s, build_id);

        if (b)
                flush(s, b);
}

/* Events, on the workers of the queue */

static void on_log(void *data, const char *build_id, int level, const char *step, const char *message)
{
        struct template_service *s = data;

        pthread_mutex_lock(&s->lock);
        add(s, build_id, level, step, message);
        pthread_mutex_unlock(&s->lock);
}

/* The record says "building" since the trigger: a queued build is shown so (design 9). */
static void on_started(void *data, const char *build_id)
{
        (void)data;
        log_info("build %s begins", build_id);
}

static json_t *context_json(const struct build_context *c)
{
        json_t *j = json_object();

        if (c->user)
                json_object_set_new(j, "user", json_string(c->user));
        if (c->workdir)
                json_object_set_new(j, "workdir", json_string(c->workdir));
        json_object_set(j, "env", c->env);
        return j;
}

static int on_ready(void *data, const struct build_job *job, const struct build_outcome *outcome, struct error *err)
{
        struct template_service *s = data;
        bool old = job->template_version < 21; /* sandboxes of such templates are always `user` at home (template-api 10.2) */
        CLEANUP_JSON json_t *start_context = context_json(&outcome->start_context);
        struct build_record result = {
                .id = job->build_id,
                .envd_version = outcome->envd_version,
                .default_user = old ? (char *)"user" : outcome->context.user,
                .workdir = old ? NULL : outcome->context.workdir,
                .context_user = outcome->context.user,
                .context_workdir = outcome->context.workdir,
                .env = outcome->context.env,
                .image_env = outcome->image_env,
                .start_cmd = outcome->start_cmd,
                .ready_cmd = outcome->ready_cmd,
                .start_context = start_context,
                .disk_bytes = outcome->disk_bytes,
                .node = s->node,
        };
        int r;

        pthread_mutex_lock(&s->lock);
        flush_build(s, job->build_id);
        r = records_build_ready(s->records, &result, err);
        if (r == 0)
                forget(s, job->build_id);
        pthread_mutex_unlock(&s->lock);
        if (r == 0)
                log_info("build %s is ready", job->build_id);
        return r;
}

static void on_failed(void *data, const char *build_id, const char *reason, const char *step)
{
        struct template_service *s = data;
        struct error err = {};

        pthread_mutex_lock(&s->lock);
        flush_build(s, build_id);
        if (records_build_fail(s->records, build_id, reason, step, &err) < 0)
                log_error("build %s failed, which cannot be stored: %s", build_id, err.message);
        forget(s, build_id);
        pthread_mutex_unlock(&s->lock);
        log_info("build %s failed: %s", build_id, reason);
}

struct build_events template_service_events(struct template_service *s)
{
        return (struct build_events){ .log = on_log, .started = on_started, .ready = on_ready, .failed = on_failed, .data = s };
}

/* What handlers ask for */

int keeper_fail(struct template_service *s, const char *build_id, const char *reason, const char *step, struct error *err)
{
        CLEANUP_FREE char *line = xasprintf("Build failed: %s", reason);
        int r;

        pthread_mutex_lock(&s->lock);
        add(s, build_id, LOG_LEVEL_ERROR, NULL, line);
        flush_build(s, build_id);
        r = records_build_fail(s->records, build_id, reason, step, err);
        forget(s, build_id);
        pthread_mutex_unlock(&s->lock);
        return r;
}

void keeper_hold(struct template_service *s, const char *build_id, const char *parent_id)
{
        struct log_buffer *b;

        pthread_mutex_lock(&s->lock);
        b = find_or_add(s, build_id);
        free(b->parent_id);
        b->parent_id = xstrdup(parent_id);
        pthread_mutex_unlock(&s->lock);
}

bool template_service_builds_on(struct template_service *s, const char *build_id)
{
        bool found = false;

        pthread_mutex_lock(&s->lock);
        for (const struct log_buffer *b = s->buffers; b && !found; b = b->next)
                found = b->parent_id && streq(b->parent_id, build_id);
        pthread_mutex_unlock(&s->lock);
        return found;
}

/* Whether the build is still building; has its buffer then, so that a cancel from now on finds it. */
static int expect_build(struct template_service *s, const char *build_id, bool *ret, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        int r;

        pthread_mutex_lock(&s->lock);
        r = records_build_get(s->records, build_id, &b, err);
        *ret = r == 0 && b->state == BUILD_BUILDING;
        if (*ret)
                find_or_add(s, build_id);
        else
                forget(s, build_id);
        pthread_mutex_unlock(&s->lock);
        return r;
}

int keeper_submit(struct template_service *s, struct build_job *job, struct error *err)
{
        CLEANUP_FREE char *id = xstrdup(job->build_id);
        struct error e = {};
        struct log_buffer *b;
        bool expected, closed;
        int r = expect_build(s, id, &expected, err);

        /* Cancelled between its trigger and here: it has its end already. */
        if (r < 0 || !expected) {
                build_job_free(job);
                return r;
        }
        if (build_queue_submit(s->queue, job, &e) < 0)
                return keeper_fail(s, id, e.message, NULL, err);
        /* Cancelled before the queue knew it. */
        pthread_mutex_lock(&s->lock);
        b = find(s, id);
        closed = b && b->closed;
        pthread_mutex_unlock(&s->lock);
        if (closed)
                build_queue_cancel(s->queue, id);
        return 0;
}

int keeper_cancel(struct template_service *s, const char *build_id, struct error *err)
{
        struct log_buffer *b;
        int r;

        pthread_mutex_lock(&s->lock);
        b = find(s, build_id);
        if (b && !b->closed) {
                add(s, build_id, LOG_LEVEL_ERROR, NULL, "Build failed: " BUILD_REASON_CANCELLED);
                flush(s, b);
                b->closed = true;
        }
        r = records_build_fail(s->records, build_id, BUILD_REASON_CANCELLED, NULL, err);
        pthread_mutex_unlock(&s->lock);
        if (s->queue)
                build_queue_cancel(s->queue, build_id);
        return r;
}

/* The thread */

static void sweep(struct template_service *s)
{
        int64_t now = clock_realtime_ns();
        struct error err = {};
        int r = records_builds_expire(s->records, now - BUILD_WAITING_SECONDS * NSEC_PER_SEC, &err);

        if (r >= 0)
                r = records_logs_expire(s->records, now - LOG_KEEP_SECONDS * NSEC_PER_SEC, &err);
        if (r < 0)
                log_warn("housekeeping of builds: %s", err.message);
}

static struct timespec to_timespec(int64_t ns)
{
        return (struct timespec){ .tv_sec = ns / NSEC_PER_SEC, .tv_nsec = ns % NSEC_PER_SEC };
}

static void flush_all(struct template_service *s)
{
        s->dirty = false;
        for (struct log_buffer *b = s->buffers; b; b = b->next) {
                flush(s, b);
                s->dirty |= b->count > 0;
        }
}

static void *keep(void *data)
{
        struct template_service *s = data;
        int64_t next_sweep = clock_monotonic_ns(), next_flush = 0;

        pthread_mutex_lock(&s->lock);
        while (!s->closing) {
                int64_t now = clock_monotonic_ns(), until;
                struct timespec t;

                if (s->dirty && next_flush == 0)
                        next_flush = now + LOG_FLUSH_MS * NSEC_PER_MSEC;
                if (next_flush && now >= next_flush) {
                        flush_all(s);
                        next_flush = s->dirty ? now + LOG_FLUSH_MS * NSEC_PER_MSEC : 0;
                }
                if (now >= next_sweep) {
                        pthread_mutex_unlock(&s->lock);
                        sweep(s);
                        pthread_mutex_lock(&s->lock);
                        next_sweep = now + SWEEP_SECONDS * NSEC_PER_SEC;
                        continue;
                }
                until = next_flush && next_flush < next_sweep ? next_flush : next_sweep;
                t = to_timespec(until);
                pthread_cond_timedwait(&s->wake, &s->lock, &t);
        }
        flush_all(s);
        pthread_mutex_unlock(&s->lock);
        return NULL;
}

int keeper_start(struct template_service *s, struct error *err)
{
        int r;

        pthread_mutex_init(&s->lock, NULL);
        clock_cond_init(&s->wake);
        r = pthread_create(&s->keeper, NULL, keep, s);
        s->keeper_runs = r == 0;
        return r == 0 ? 0 : error_errno(err, r, "start a thread");
}

void keeper_stop(struct template_service *s)
{
        if (!s->keeper_runs)
                return;
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->keeper, NULL);
        while (s->buffers)
                forget(s, s->buffers->build_id);
        pthread_cond_destroy(&s->wake);
        pthread_mutex_destroy(&s->lock);
}
