/* The queue of builds: `max_builds` worker threads take jobs in order; one supervisor thread enforces the time limit
 * and carries cancellation into running builds.
 *
 * A task is queued -> running -> done, or queued -> done when it is cancelled before its turn. Exactly one of ready()
 * and failed() is called for it. A stop (cancel, time-out) is a flag that the phases poll; because most of them wait
 * for the guest, the supervisor also kills the build's VM, and goes on doing so until the build has ended: a VM may
 * just be starting when the first attempt is made.
 */
#include "build/queue.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"
#include "vm/vm.h"

#define BUILD_KILL_INTERVAL_MS 500
#define TIMED_OUT_TEXT "build status polling timed out. Maximum build time is %s."
#define CANCELLED_TEXT "build was cancelled"

enum task_state { TASK_QUEUED, TASK_RUNNING, TASK_DONE };

struct task {
        struct task *next;
        enum task_state state;
        int64_t started_ns, deadline_ns; /* monotonic */
        struct build_run run;
};

struct build_queue {
        struct build_settings settings;
        const char **insecure; /* owned copy of settings.oci.insecure */
        struct build_events events;
        struct build_queue_ops ops;
        struct build_cache *cache;

        pthread_mutex_t lock;
        pthread_cond_t work;       /* a task was queued, or the queue closes */
        pthread_cond_t supervise;  /* a deadline or a stop is new, or the queue closes */
        struct task *tasks;        /* oldest first */
        bool closing;
        pthread_t *workers;
        unsigned worker_count;
        pthread_t supervisor;
        bool supervised;
};

bool build_run_stopped(void *data)
{
        struct build_run *r = data;

        return atomic_load(&r->stop) != BUILD_GO;
}

static void stop_run(struct build_run *r, enum build_stop reason)
{
        int go = BUILD_GO;

        pthread_mutex_lock(&r->vm_lock);
        atomic_compare_exchange_strong(&r->stop, &go, reason);
        pthread_cond_broadcast(&r->stopped);
        pthread_mutex_unlock(&r->vm_lock);
}

void build_run_pause(struct build_run *r, unsigned ms)
{
        int64_t end = clock_monotonic_ns() + ms * NSEC_PER_MSEC;
        struct timespec until = {.tv_sec = end / NSEC_PER_SEC, .tv_nsec = end % NSEC_PER_SEC};

        pthread_mutex_lock(&r->vm_lock);
        while (!build_run_stopped(r) && pthread_cond_timedwait(&r->stopped, &r->vm_lock, &until) == 0)
                ;
        pthread_mutex_unlock(&r->vm_lock);
}

void build_run_phase(struct build_run *r, const char *step)
{
        snprintf(r->log.step, sizeof(r->log.step), "%s", step);
}

void build_run_vm(struct build_run *r, const char *dir)
{
        pthread_mutex_lock(&r->vm_lock);
        free(r->vm_dir);
        r->vm_dir = xstrdup_or_null(dir);
        pthread_mutex_unlock(&r->vm_lock);
}

void build_outcome_free(struct build_outcome *o)
{
        build_context_free(&o->context);
        build_context_free(&o->start_context);
        json_decref(o->image_env);
        free(o->start_cmd);
        free(o->ready_cmd);
        free(o->envd_version);
        *o = (struct build_outcome){};
}

void build_job_free(struct build_job *j)
{
        if (!j)
                return;
        free(j->build_id);
        free(j->template_id);
        free(j->team_slug);
        build_plan_free(&j->plan);
        if (j->parent) {
                free(j->parent->build_id);
                free(j->parent->dir);
                build_context_free(&j->parent->context);
                json_decref(j->parent->image_env);
                free(j->parent->start_cmd);
                free(j->parent->ready_cmd);
                build_context_free(&j->parent->start_context);
                free(j->parent);
        }
        free(j);
}

char *build_path(const struct build_settings *s, const char *sub, const char *name)
{
        return xasprintf("%s/%s%s%s", s->data_dir, sub, name ? "/" : "", name ? name : "");
}

static void task_free(struct task *t)
{
        build_job_free(t->run.job);
        free(t->run.vm_dir);
        pthread_cond_destroy(&t->run.stopped);
        pthread_mutex_destroy(&t->run.vm_lock);
        free(t);
}

static void unlink_task(struct build_queue *q, struct task *t)
{
        for (struct task **p = &q->tasks; *p; p = &(*p)->next)
                if (*p == t) {
                        *p = t->next;
                        break;
                }
}

static void report_failure(struct build_queue *q, struct task *t, const char *reason)
{
        const char *step = t->run.log.step[0] ? t->run.log.step : NULL;

        build_log(&t->run.log, LOG_LEVEL_ERROR, "Build failed: %s", reason);
        q->events.failed(q->events.data, t->run.job->build_id, reason, step);
}

/* The failure of a build that was told to stop: whatever the phases made of it, this is the reason. */
static void report_stop(struct build_queue *q, struct task *t)
{
        CLEANUP_FREE char *text = NULL, *limit = format_seconds(q->settings.max_seconds);

        build_run_phase(&t->run, "");
        if (atomic_load(&t->run.stop) == BUILD_TIMED_OUT)
                text = xasprintf(TIMED_OUT_TEXT, limit);
        else
                text = xstrdup(CANCELLED_TEXT);
        report_failure(q, t, text);
}

static void remove_artifacts(struct build_queue *q, const char *build_id)
{
        CLEANUP_FREE char *dir = build_path(&q->settings, "builds", build_id);

        tree_remove(dir, NULL);
}

static void report(struct build_queue *q, struct task *t, int r, struct build_outcome *outcome, struct error *err)
{
        CLEANUP_FREE char *took = format_seconds(
                (unsigned long)((clock_monotonic_ns() - t->started_ns + NSEC_PER_SEC / 2) / NSEC_PER_SEC));

        if (build_run_stopped(&t->run)) {
                if (r >= 0)
                        remove_artifacts(q, t->run.job->build_id);
                report_stop(q, t);
                return;
        }
        if (r < 0) {
                report_failure(q, t, err->message);
                return;
        }
        build_run_phase(&t->run, "");
        /* Before the status changes: a client that sees `ready` must find this line (checklist 121). */
        build_log(&t->run.log, LOG_LEVEL_INFO, "Build finished, took %s", took);
        r = q->events.ready(q->events.data, t->run.job, outcome, err);
        if (r < 0) {
                remove_artifacts(q, t->run.job->build_id);
                report_failure(q, t, build_run_stopped(&t->run) ? CANCELLED_TEXT : err->message);
        }
}

static void run_task(struct build_queue *q, struct task *t)
{
        struct build_outcome outcome = {};
        struct error err = {};
        int r;

        q->events.started(q->events.data, t->run.job->build_id);
        r = q->ops.run(&t->run, &outcome, &err);
        report(q, t, r, &outcome, &err);
        build_outcome_free(&outcome);
}

static struct task *next_queued(struct build_queue *q)
{
        for (struct task *t = q->tasks; t; t = t->next)
                if (t->state == TASK_QUEUED && !build_run_stopped(&t->run))
                        return t;
        return NULL;
}

static void *worker(void *data)
{
        struct build_queue *q = data;
        struct task *t;

        pthread_mutex_lock(&q->lock);
        for (;;) {
                while (!(t = next_queued(q)) && !q->closing)
                        pthread_cond_wait(&q->work, &q->lock);
                if (!t)
                        break;
                t->state = TASK_RUNNING;
                t->started_ns = clock_monotonic_ns();
                t->deadline_ns = t->started_ns + q->settings.max_seconds * NSEC_PER_SEC;
                pthread_cond_signal(&q->supervise);
                pthread_mutex_unlock(&q->lock);
                run_task(q, t);
                pthread_mutex_lock(&q->lock);
                t->state = TASK_DONE;
                unlink_task(q, t);
                pthread_cond_broadcast(&q->supervise);
                task_free(t);
        }
        pthread_mutex_unlock(&q->lock);
        return NULL;
}

/* Kills without the queue's lock held; the task lives on meanwhile because only its worker frees it, under the lock:
 * so the directory is copied. */
static void kill_vm(struct build_queue *q, struct task *t)
{
        CLEANUP_FREE char *dir = NULL;

        pthread_mutex_lock(&t->run.vm_lock);
        dir = xstrdup_or_null(t->run.vm_dir);
        pthread_mutex_unlock(&t->run.vm_lock);
        if (!dir)
                return;
        pthread_mutex_unlock(&q->lock);
        q->ops.kill_vm(dir);
        pthread_mutex_lock(&q->lock);
}

/* One cancelled task that never ran: reported without the lock. */
static bool bury_one(struct build_queue *q)
{
        for (struct task *t = q->tasks; t; t = t->next)
                if (t->state == TASK_QUEUED && build_run_stopped(&t->run)) {
                        unlink_task(q, t);
                        pthread_mutex_unlock(&q->lock);
                        report_stop(q, t);
                        task_free(t);
                        pthread_mutex_lock(&q->lock);
                        return true;
                }
        return false;
}

/* Flags overdue tasks, kills the VMs of stopping ones; returns when to look again (monotonic, 0 = when told). */
static int64_t supervise_once(struct build_queue *q)
{
        int64_t now = clock_monotonic_ns(), next = 0;

        while (bury_one(q))
                ;
        for (struct task *t = q->tasks; t; t = t->next) {
                int64_t at = t->deadline_ns;

                if (t->state != TASK_RUNNING)
                        continue;
                if (now >= t->deadline_ns)
                        stop_run(&t->run, BUILD_TIMED_OUT);
                if (build_run_stopped(&t->run))
                        at = now + BUILD_KILL_INTERVAL_MS * NSEC_PER_MSEC;
                if (!next || at < next)
                        next = at;
        }
        return next;
}

static void kill_stopping(struct build_queue *q)
{
        /* kill_vm() lets go of the lock, after which the list may be another one: one pass by build ID. */
        size_t n = 0;
        char **ids;

        for (struct task *t = q->tasks; t; t = t->next)
                n++;
        ids = xcalloc(n + 1, sizeof(*ids));
        n = 0;
        for (struct task *t = q->tasks; t; t = t->next)
                if (t->state == TASK_RUNNING && build_run_stopped(&t->run))
                        ids[n++] = xstrdup(t->run.job->build_id);
        for (size_t i = 0; i < n; i++) {
                for (struct task *t = q->tasks; t; t = t->next)
                        if (t->state == TASK_RUNNING && streq(t->run.job->build_id, ids[i])) {
                                kill_vm(q, t);
                                break;
                        }
                free(ids[i]);
        }
        free(ids);
}

static void *supervisor(void *data)
{
        struct build_queue *q = data;

        pthread_mutex_lock(&q->lock);
        while (!q->closing || q->tasks) {
                int64_t next = supervise_once(q);

                kill_stopping(q);
                if (q->closing && !q->tasks)
                        break;
                if (next) {
                        struct timespec ts = {.tv_sec = next / NSEC_PER_SEC, .tv_nsec = next % NSEC_PER_SEC};

                        pthread_cond_timedwait(&q->supervise, &q->lock, &ts);
                } else {
                        pthread_cond_wait(&q->supervise, &q->lock);
                }
        }
        pthread_mutex_unlock(&q->lock);
        return NULL;
}

static const char **copy_list(const char *const *list)
{
        const char **copy;
        size_t n = 0;

        while (list && list[n])
                n++;
        copy = xcalloc(n + 1, sizeof(*copy));
        for (size_t i = 0; i < n; i++)
                copy[i] = xstrdup(list[i]);
        return copy;
}

static void copy_settings(struct build_queue *q, const struct build_settings *s)
{
        q->settings = *s;
        q->settings.data_dir = xstrdup(s->data_dir);
        q->settings.kit_root = xstrdup_or_null(s->kit_root);
        q->settings.hypervisor = xstrdup(s->hypervisor ? s->hypervisor : "auto");
        q->settings.cpu_model = xstrdup_or_null(s->cpu_model);
        q->settings.oci.cache_dir = xstrdup_or_null(s->oci.cache_dir);
        q->settings.oci.mirror = xstrdup_or_null(s->oci.mirror);
        q->insecure = copy_list(s->oci.insecure);
        q->settings.oci.insecure = q->insecure;
}

static void free_settings(struct build_queue *q)
{
        free((char *)q->settings.data_dir);
        free((char *)q->settings.kit_root);
        free((char *)q->settings.hypervisor);
        free((char *)q->settings.cpu_model);
        free((char *)q->settings.oci.cache_dir);
        free((char *)q->settings.oci.mirror);
        for (const char **p = q->insecure; p && *p; p++)
                free((char *)*p);
        free(q->insecure);
}

static int start_threads(struct build_queue *q, struct error *err)
{
        int r = pthread_create(&q->supervisor, NULL, supervisor, q);

        if (r)
                return error_errno(err, r, "start the supervisor of builds");
        q->supervised = true;
        for (unsigned i = 0; i < q->settings.max_builds; i++) {
                r = pthread_create(&q->workers[i], NULL, worker, q);
                if (r)
                        return error_errno(err, r, "start a build worker");
                q->worker_count++;
        }
        return 0;
}

int build_queue_new_with(const struct build_settings *s, const struct build_events *e,
                         const struct build_queue_ops *ops, struct build_queue **ret, struct error *err)
{
        CLEANUP_FREE char *steps = build_path(s, "cache/steps", NULL);
        struct build_queue *q = xcalloc(1, sizeof(*q));
        int r;

        copy_settings(q, s);
        if (!q->settings.max_builds)
                q->settings.max_builds = 1;
        q->events = *e;
        q->ops = *ops;
        pthread_mutex_init(&q->lock, NULL);
        pthread_cond_init(&q->work, NULL);
        clock_cond_init(&q->supervise);
        q->workers = xcalloc(q->settings.max_builds, sizeof(*q->workers));
        r = build_cache_open(steps, BUILD_CACHE_LAYERS_MAX, s->step_cache_bytes, &q->cache, err);
        if (r >= 0)
                r = start_threads(q, err);
        if (r < 0) {
                build_queue_free(q);
                return r;
        }
        *ret = q;
        return 0;
}

int build_queue_submit(struct build_queue *q, struct build_job *job, struct error *err)
{
        struct task *t = xcalloc(1, sizeof(*t)), **p;

        t->run.job = job;
        t->run.settings = &q->settings;
        t->run.cache = q->cache;
        t->run.log = (struct build_log){.events = &q->events, .build_id = job->build_id};
        pthread_mutex_init(&t->run.vm_lock, NULL);
        clock_cond_init(&t->run.stopped);
        pthread_mutex_lock(&q->lock);
        if (q->closing) {
                pthread_mutex_unlock(&q->lock);
                task_free(t);
                return error_set(err, ERROR_UNAVAILABLE, "this node is shutting down and takes no builds");
        }
        for (p = &q->tasks; *p; p = &(*p)->next)
                ;
        *p = t;
        pthread_cond_signal(&q->work);
        pthread_mutex_unlock(&q->lock);
        return 0;
}

void build_queue_cancel(struct build_queue *q, const char *build_id)
{
        pthread_mutex_lock(&q->lock);
        for (struct task *t = q->tasks; t; t = t->next)
                if (streq(t->run.job->build_id, build_id))
                        stop_run(&t->run, BUILD_CANCELLED);
        pthread_cond_broadcast(&q->supervise);
        pthread_mutex_unlock(&q->lock);
}

bool build_queue_uses(struct build_queue *q, const char *build_id)
{
        bool uses = false;

        pthread_mutex_lock(&q->lock);
        for (struct task *t = q->tasks; t && !uses; t = t->next) {
                const struct build_parent *parent = t->run.job->parent;

                uses = streq(t->run.job->build_id, build_id) || (parent && streq(parent->build_id, build_id));
        }
        pthread_mutex_unlock(&q->lock);
        return uses;
}

void build_queue_free(struct build_queue *q)
{
        if (!q)
                return;
        pthread_mutex_lock(&q->lock);
        q->closing = true;
        for (struct task *t = q->tasks; t; t = t->next)
                stop_run(&t->run, BUILD_CANCELLED);
        pthread_cond_broadcast(&q->work);
        pthread_cond_broadcast(&q->supervise);
        pthread_mutex_unlock(&q->lock);
        for (unsigned i = 0; i < q->worker_count; i++)
                pthread_join(q->workers[i], NULL);
        pthread_mutex_lock(&q->lock);
        pthread_cond_broadcast(&q->supervise);
        pthread_mutex_unlock(&q->lock);
        if (q->supervised)
                pthread_join(q->supervisor, NULL);
        build_cache_close(q->cache);
        free_settings(q);
        free(q->workers);
        pthread_cond_destroy(&q->supervise);
        pthread_cond_destroy(&q->work);
        pthread_mutex_destroy(&q->lock);
        free(q);
}
