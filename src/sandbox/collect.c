/* Metrics and logs of the sandboxes (sandbox-api 16, 17): two threads ask each agent every few seconds, readers and the end of a sandbox in
 * between. One GET over a connection of its own that the shim makes; HTTP/1.0, so that the end of the connection is the end of the answer
 * and no framing is needed. The guest is not trusted: the answer is bounded in size and time, and an agent that does not
 * answer is asked more and more rarely, so that it does not hold up the others.
 *
 * An agent of a template that was built before there was GET /telemetry has metrics only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"
#include "sandbox/metrics.h"

#define PERIOD_NS (5 * NSEC_PER_SEC)
#define PERIOD_MAX_NS (60 * NSEC_PER_SEC) /* of an agent that does not answer */
#define FIRST_NS (2 * NSEC_PER_SEC)       /* after it was shown: its user's first command comes first */
#define BEFORE_END_NS (300 * NSEC_PER_MSEC)
#define TRIM_NS (600 * NSEC_PER_SEC)

#define ANSWER_MAX (512 * 1024)
#define ROUNDS_MAX 8 /* answers in a row, of an agent that has more to tell than fits into one */
#define TIMEOUT_MS 2000
#define READER_TIMEOUT_MS 5000
#define LAST_TIMEOUT_MS 250

/* Sends all of `request` and receives all of the answer, until the monotonic time `end_ns`. */
static int exchange(int fd, const struct buf *request, int64_t end_ns, struct buf *answer, struct error *err)
{
        /* MSG_NOSIGNAL: the guest may close at any time. */
        if (send(fd, request->data, request->len, MSG_NOSIGNAL) != (ssize_t)request->len)
                return sandbox_answer_error(err, "the connection broke");
        while (answer->len < ANSWER_MAX) {
                int64_t left_us = (end_ns - clock_monotonic_ns()) / 1000;
                struct timeval limit = { .tv_sec = left_us / 1000000, .tv_usec = left_us % 1000000 };
                if (left_us <= 0)
                        return sandbox_answer_error(err, "it took too long");
                setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
                ssize_t n = recv(fd, buf_reserve(answer, 16384), 16384, 0);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return sandbox_answer_error(err, errno == EAGAIN ? "it took too long" : "the connection broke");
                if (n == 0)
                        return 0;
                buf_grew(answer, (size_t)n);
        }
        return sandbox_answer_error(err, "too long an answer");
}

static int ask(const struct entry *e, const char *target, int timeout_ms, int *ret_status, json_t **ret, struct error *err)
{
        int64_t end_ns = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;
        CLEANUP_BUF struct buf request = {}, answer = {};
        CLEANUP_CLOSE int fd = -1;
        if (vm_connect(e->vm, VM_AGENT_PORT, &fd, NULL) < 0)
                return sandbox_answer_error(err, "it does not listen");
        buf_addf(&request, "GET %s HTTP/1.0\r\nHost: localhost\r\n", target);
        if (e->envd_token[0])
                buf_addf(&request, "X-Access-Token: %s\r\n", e->envd_token);
        buf_adds(&request, "\r\n");
        int r = exchange(fd, &request, end_ns, &answer, err);
        return r < 0 ? r : sandbox_answer_parse(buf_str(&answer), answer.len, ret_status, ret, err);
}

static int take_metrics(struct sandbox_manager *m, const struct entry *e, const json_t *j, struct error *err)
{
        struct sandbox_metrics sample;
        int r = sandbox_metrics_read(j, &sample, err);
        if (r == 0)
                history_sample(m->history, e->info->team_id, e->id, &sample);
        return r;
}

/* One answer. 1: there may be more. */
static int collect_once(struct sandbox_manager *m, struct entry *e, bool first, int timeout_ms, struct error *err)
{
        CLEANUP_FREE char *target = xasprintf("/telemetry?epoch=%s&after=%llu", e->cursor.epoch, (unsigned long long)e->cursor.number);
        CLEANUP_JSON json_t *answer = NULL, *old = NULL;
        int status = 0, r = ask(e, target, timeout_ms, &status, &answer, err);
        if (r == 0 && status == 404) {
                r = ask(e, "/metrics", timeout_ms, &status, &old, err);
                return r < 0 ? r : old ? take_metrics(m, e, old, err) : sandbox_answer_error(err, "it refuses");
        }
        if (r == 0 && !answer)
                r = sandbox_answer_error(err, "it refuses");
        if (r < 0)
                return r;
        if (first)
                r = take_metrics(m, e, json_object_get(answer, "metrics"), err);
        history_take(m->history, e->info->team_id, e->id, answer, &e->cursor);
        return r < 0 ? r : json_array_size(json_object_get(answer, "entries")) > 0;
}

/* For an entry with a VM, to which the caller holds a reference. */
static int collect(struct sandbox_manager *m, struct entry *e, int timeout_ms, struct error *err)
{
        int64_t end_ns = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;
        int r = 1;
        pthread_mutex_lock(&e->collect_lock);
        if (!e->cursor.known)
                history_cursor_find(m->history, e->info->team_id, e->id, &e->cursor);
        for (int i = 0; i < ROUNDS_MAX && r == 1 && clock_monotonic_ns() < end_ns; i++)
                r = collect_once(m, e, i == 0, timeout_ms, err);
        if (r >= 0)
                e->collected_ns = clock_monotonic_ns();
        pthread_mutex_unlock(&e->collect_lock);
        return r < 0 ? r : 0;
}

void collect_last(struct sandbox_manager *m, struct entry *e)
{
        collect(m, e, LAST_TIMEOUT_MS, NULL);
}

void manager_log(struct sandbox_manager *m, const struct entry *e, const char *level, const char *message, json_t *fields)
{
        history_log(m->history, e->info->team_id, e->id, level, message, fields);
        json_decref(fields);
}

/* Readers */

/* Asks a running sandbox of the team, unless that was done within `age_ns`. */
static void refresh(struct sandbox_manager *m, const struct team *team, const char *id, int64_t age_ns)
{
        struct entry *e = manager_acquire(m, team, id);
        if (!e)
                return;
        pthread_mutex_lock(&e->collect_lock);
        bool fresh = e->collected_ns && clock_monotonic_ns() - e->collected_ns < age_ns;
        pthread_mutex_unlock(&e->collect_lock);
        if (!fresh)
                collect(m, e, READER_TIMEOUT_MS, NULL);
        entry_unref(m, e);
}

/* Samples a second of the range (sandbox-api 16). */
static int64_t step_of(int64_t range_ns)
{
        int64_t hours = range_ns / (3600 * NSEC_PER_SEC);
        return (hours < 1 ? 0 : hours < 6 ? 30 : hours < 24 ? 60 : 300) * NSEC_PER_SEC;
}

size_t sandbox_metrics(struct sandbox_manager *m, const struct team *team, const char *id, int64_t from_ns, int64_t to_ns, struct sandbox_metrics **ret)
{
        if (to_ns >= clock_realtime_ns() - PERIOD_NS)
                refresh(m, team, id, PERIOD_NS);
        size_t n = history_metrics(m->history, team->id, id, from_ns, to_ns, ret);
        return n ? sandbox_metrics_thin(*ret, n, step_of((*ret)[n - 1].time_ns - (*ret)[0].time_ns)) : 0;
}

json_t *sandbox_logs(struct sandbox_manager *m, const struct team *team, const char *id, const struct history_query *q)
{
        refresh(m, team, id, 0);
        return history_logs(m->history, team->id, id, q);
}

/* The threads */

/* When to ask again; with the lock. A last time shortly before the end. */
static int64_t next_time(const struct entry *e, int64_t now_ns)
{
        int64_t period = PERIOD_NS << (e->collect_failures < 4 ? e->collect_failures : 4);
        int64_t before_end = e->info->ends_ns - clock_realtime_ns() - BEFORE_END_NS;
        if (period > PERIOD_MAX_NS)
                period = PERIOD_MAX_NS;
        return now_ns + (before_end > 0 && before_end < period ? before_end : period);
}

/* One that is due, claimed and with a reference; else NULL and when the next one is. With the lock. */
static struct entry *take_one_due(struct sandbox_manager *m, int64_t now_ns, int64_t *ret_next)
{
        int64_t now = clock_realtime_ns();
        *ret_next = INT64_MAX;
        for (size_t i = 0; i < m->count; i++) {
                struct entry *e = m->entries[i];
                if (!entry_alive(e, now) || e->collect_ns == INT64_MAX)
                        continue;
                if (e->collect_ns == 0)
                        e->collect_ns = now_ns + FIRST_NS;
                if (e->collect_ns <= now_ns) {
                        e->collect_ns = INT64_MAX;
                        e->references++;
                        return e;
                }
                if (e->collect_ns < *ret_next)
                        *ret_next = e->collect_ns;
        }
        return NULL;
}

static void collect_due(struct sandbox_manager *m, struct entry *e)
{
        struct error err = {};
        int r = collect(m, e, TIMEOUT_MS, &err);
        if (r < 0 && e->collect_failures == 0)
                log_debug("sandbox %s: %s", e->id, err.message);
        e->collect_failures = r < 0 ? e->collect_failures + 1 : 0;
        pthread_mutex_lock(&m->lock);
        e->collect_ns = next_time(e, clock_monotonic_ns());
        pthread_mutex_unlock(&m->lock);
        entry_unref(m, e);
}

static void *collector(void *data)
{
        struct sandbox_manager *m = data;
        pthread_mutex_lock(&m->lock);
        while (!m->stopping) {
                int64_t now_ns = clock_monotonic_ns(), next;
                struct entry *e = take_one_due(m, now_ns, &next);
                bool trim = !e && now_ns >= m->trim_ns;
                if (trim)
                        m->trim_ns = now_ns + TRIM_NS;
                if (e || trim) {
                        pthread_mutex_unlock(&m->lock);
                        if (e)
                                collect_due(m, e);
                        else
                                history_trim(m->history, m->history_bytes);
                        pthread_mutex_lock(&m->lock);
                        continue;
                }
                if (next > m->trim_ns)
                        next = m->trim_ns;
                struct timespec at = { .tv_sec = next / NSEC_PER_SEC, .tv_nsec = next % NSEC_PER_SEC };
                pthread_cond_timedwait(&m->collect_due, &m->lock, &at);
        }
        pthread_mutex_unlock(&m->lock);
        return NULL;
}

int collectors_start(struct sandbox_manager *m, struct error *err)
{
        for (; m->collector_count < COLLECTORS; m->collector_count++) {
                int r = pthread_create(&m->collectors[m->collector_count], NULL, collector, m);
                if (r != 0)
                        return error_errno(err, r, "start the threads that collect metrics and logs");
        }
        return 0;
}

void collectors_stop(struct sandbox_manager *m)
{
        pthread_mutex_lock(&m->lock);
        m->stopping = true;
        pthread_cond_broadcast(&m->collect_due);
        pthread_mutex_unlock(&m->lock);
        while (m->collector_count > 0)
                pthread_join(m->collectors[--m->collector_count], NULL);
}
