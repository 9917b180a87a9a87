#include "sandbox/pool.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"

#define BUILDS_MAX 64      /* whose demand is remembered; the one that was asked for longest ago goes */
#define LOOK_SECONDS 10    /* between looks for what has become too old */
#define RETRY_SECONDS 60   /* after a member could not be made */
#define EXPIRY_MARGIN_SECONDS 300

struct demand {
        char *build_id;
        int64_t created_ns[POOL_BUILD_MAX]; /* a ring */
        size_t next;
        int64_t last_ns, retry_ns;
        uint64_t member_bytes;
        size_t grant; /* of this moment, by share_budget() */
};

struct pool {
        struct sandbox_manager *m;
        size_t max;
        uint64_t budget;
        pthread_mutex_t lock; /* guards all below; never held across I/O */
        pthread_cond_t work;
        struct pool_member **members; /* oldest first */
        size_t count, capacity;
        struct demand demands[BUILDS_MAX]; /* latest create first */
        size_t demand_count;
        unsigned creating;
        int64_t creating_since_ns;
        const char *making; /* the build of the member that is being made */
        bool unwanted;      /* that build has been forgotten meanwhile */
        bool stopping;
        pthread_t thread;
};

size_t pool_wanted(const int64_t *created_ns, size_t count, int64_t now_ns)
{
        size_t recent = 0;
        int64_t last = 0;

        for (size_t i = 0; i < count; i++) {
                recent += created_ns[i] > now_ns - POOL_WINDOW_SECONDS * NSEC_PER_SEC;
                if (created_ns[i] > last)
                        last = created_ns[i];
        }
        if (last <= now_ns - POOL_IDLE_SECONDS * NSEC_PER_SEC)
                return 0;
        return recent > POOL_BUILD_MAX ? POOL_BUILD_MAX : recent > 0 ? recent : 1;
}

void pool_member_free(struct pool_member *member)
{
        if (!member)
                return;
        free(member->build_id);
        free(member);
}

static void discard(struct pool *p, struct pool_member *member)
{
        CLEANUP_FREE char *dir = manager_sandbox_dir(p->m, member->id);
        struct error err = {};

        if (member->vm && vm_kill(member->vm, &err) < 0)
                log_warn("pool: %s", err.message);
        vm_close(member->vm);
        if (tree_remove(dir, &err) < 0)
                log_warn("pool: %s", err.message);
        pool_member_free(member);
}

static bool is_alive(const struct pool_member *member)
{
        struct pollfd fd = {.fd = vm_exit_fd(member->vm), .events = POLLIN};

        return poll(&fd, 1, 0) == 0;
}

/* The functions to wait_for_work() are called with the lock. */

static size_t count_of(const struct pool *p, const char *build_id)
{
        size_t n = 0;

        for (size_t i = 0; i < p->count; i++)
                n += !build_id || streq(p->members[i]->build_id, build_id);
        return n;
}

static struct pool_member *remove_at(struct pool *p, size_t i)
{
        struct pool_member *member = p->members[i];

        memmove(p->members + i, p->members + i + 1, (p->count - i - 1) * sizeof *p->members);
        p->count--;
        return member;
}

static void insert(struct pool *p, struct pool_member *member)
{
        size_t at = p->count;

        if (p->count == p->capacity) {
                p->capacity = p->capacity ? p->capacity * 2 : 16;
                p->members = xreallocarray(p->members, p->capacity, sizeof *p->members);
        }
        while (at > 0 && p->members[at - 1]->made_ns > member->made_ns)
                at--;
        memmove(p->members + at + 1, p->members + at, (p->count - at) * sizeof *p->members);
        p->members[at] = member;
        p->count++;
}

static struct demand *find_demand(struct pool *p, const char *build_id)
{
        for (size_t i = 0; i < p->demand_count; i++)
                if (streq(p->demands[i].build_id, build_id))
                        return &p->demands[i];
        return NULL;
}

static void drop_demand(struct pool *p, struct demand *d)
{
        free(d->build_id);
        memmove(d, d + 1, (size_t)(p->demands + p->demand_count - (d + 1)) * sizeof *d);
        p->demand_count--;
}

/* To the front. */
static void note_demand(struct pool *p, const char *build_id, int64_t now)
{
        struct demand *d = find_demand(p, build_id), fresh = {.member_bytes = POOL_GUESS_BYTES};

        if (d) {
                fresh = *d;
                fresh.build_id = xstrdup(build_id);
                drop_demand(p, d);
        } else {
                fresh.build_id = xstrdup(build_id);
                if (p->demand_count == BUILDS_MAX)
                        drop_demand(p, &p->demands[BUILDS_MAX - 1]);
        }
        fresh.created_ns[fresh.next++ % POOL_BUILD_MAX] = now;
        fresh.last_ns = now;
        memmove(p->demands + 1, p->demands, p->demand_count * sizeof fresh);
        p->demands[0] = fresh;
        p->demand_count++;
}

/* Who was asked for last gets first. */
static void share_budget(struct pool *p, int64_t now)
{
        uint64_t left = p->budget;
        size_t places = p->max;

        for (size_t i = 0; i < p->demand_count; i++) {
                struct demand *d = &p->demands[i];
                uint64_t fits = left / d->member_bytes;

                d->grant = pool_wanted(d->created_ns, POOL_BUILD_MAX, now);
                if (d->grant > fits)
                        d->grant = fits;
                if (d->grant > places)
                        d->grant = places;
                places -= d->grant;
                left -= d->grant * d->member_bytes;
        }
}

/* A member to be ended, or NULL: too old, or more than its build may have. */
static struct pool_member *take_surplus(struct pool *p, int64_t now)
{
        for (size_t i = 0; i < p->count; i++) {
                const struct pool_member *member = p->members[i];
                const struct demand *d = find_demand(p, member->build_id);

                if (member->made_ns <= now - POOL_MEMBER_SECONDS * NSEC_PER_SEC || !d || count_of(p, member->build_id) > d->grant)
                        return remove_at(p, i);
        }
        return NULL;
}

/* The build that lacks a member most, or NULL. */
static const struct demand *most_wanting(struct pool *p, int64_t now)
{
        const struct demand *most = NULL;
        size_t lacks = 0;

        for (size_t i = 0; i < p->demand_count; i++) {
                const struct demand *d = &p->demands[i];
                size_t have = count_of(p, d->build_id);

                if (d->retry_ns <= now && d->grant > have && d->grant - have > lacks) {
                        most = d;
                        lacks = d->grant - have;
                }
        }
        return most;
}

static void wait_ms(struct pool *p, int64_t ms)
{
        int64_t until = clock_realtime_ns() + ms * NSEC_PER_MSEC;
        struct timespec at = {.tv_sec = until / NSEC_PER_SEC, .tv_nsec = until % NSEC_PER_SEC};

        pthread_cond_timedwait(&p->work, &p->lock, &at);
}

/* How long creates are still to be let pass. */
static int64_t patience_ms(const struct pool *p)
{
        int64_t waited = (clock_monotonic_ns() - p->creating_since_ns) / NSEC_PER_MSEC;

        return p->creating == 0 || waited >= POOL_PATIENCE_MS ? 0 : POOL_PATIENCE_MS - waited;
}

/* Waits until there is a member to end (*ret_surplus) or one to make of a build (a copy of its id); NULL twice when it is to stop. */
static char *wait_for_work(struct pool *p, struct pool_member **ret_surplus)
{
        *ret_surplus = NULL;
        while (!p->stopping) {
                int64_t now = clock_realtime_ns(), patience = patience_ms(p);
                const struct demand *d;

                share_budget(p, now);
                *ret_surplus = take_surplus(p, now);
                if (*ret_surplus)
                        return NULL;
                d = most_wanting(p, now);
                if (d && patience == 0)
                        return xstrdup(d->build_id);
                wait_ms(p, d ? patience : LOOK_SECONDS * 1000);
        }
        return NULL;
}

/* Memory that only this machine has: what its emulator has written. */
static uint64_t measure(const struct vm *vm)
{
        char path[64], line[128];
        unsigned long long kb;
        uint64_t bytes = 0;
        FILE *f;

        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)vm_pid(vm));
        f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f))
                if (sscanf(line, "Anonymous: %llu", &kb) == 1)
                        bytes = kb << 10;
        if (f)
                fclose(f);
        return bytes;
}

static int make(struct pool *p, const char *build_id, struct pool_member *member, struct error *err)
{
        CLEANUP_FREE char *dir = NULL;
        struct vm_template *template_ = NULL;
        struct vm_fork fork_ = {.id = member->id, .network = p->m->network};
        int r;

        sandbox_id_new(member->id);
        member->build_id = xstrdup(build_id);
        member->made_ns = clock_realtime_ns();
        fork_.expires_at_ns = member->made_ns + (POOL_MEMBER_SECONDS + EXPIRY_MARGIN_SECONDS) * NSEC_PER_SEC;
        fork_.dir = dir = manager_sandbox_dir(p->m, member->id);
        r = dir_make(dir, 0700, err);
        if (r == 0)
                r = manager_template(p->m, build_id, &template_, err);
        if (r < 0)
                return r;
        fork_.template_ = template_;
        r = vm_restore_warm(&fork_, &member->vm, err);
        template_cache_release(p->m->templates, template_);
        return r;
}

static void made(struct pool *p, struct pool_member *member, int r, const struct error *err)
{
        uint64_t bytes = r == 0 ? measure(member->vm) : 0;
        struct demand *d;
        bool keep;

        pthread_mutex_lock(&p->lock);
        d = find_demand(p, member->build_id);
        keep = r == 0 && d && !p->unwanted && !p->stopping;
        p->making = NULL;
        if (d && bytes)
                d->member_bytes = bytes;
        if (d && r < 0)
                d->retry_ns = clock_realtime_ns() + RETRY_SECONDS * NSEC_PER_SEC;
        if (keep)
                insert(p, member);
        pthread_mutex_unlock(&p->lock);
        if (keep)
                log_debug("pool: sandbox %s of build %s is ready (%llu MiB of its own)", member->id, member->build_id,
                          (unsigned long long)(bytes >> 20));
        else if (r < 0)
                log_warn("pool: keep a sandbox of build %s ready: %s", member->build_id, err->message);
        if (!keep)
                discard(p, member);
}

static void *refill(void *data)
{
        struct pool *p = data;

        pthread_mutex_lock(&p->lock);
        while (!p->stopping) {
                struct pool_member *surplus;
                CLEANUP_FREE char *build_id = wait_for_work(p, &surplus);
                struct error err = {};

                p->making = build_id;
                p->unwanted = false;
                pthread_mutex_unlock(&p->lock);
                if (surplus)
                        discard(p, surplus);
                if (build_id) {
                        struct pool_member *member = xcalloc(1, sizeof *member);

                        made(p, member, make(p, build_id, member, &err), &err);
                }
                pthread_mutex_lock(&p->lock);
        }
        pthread_mutex_unlock(&p->lock);
        return NULL;
}

void pool_create_begin(struct pool *p)
{
        if (!p)
                return;
        pthread_mutex_lock(&p->lock);
        if (p->creating++ == 0)
                p->creating_since_ns = clock_monotonic_ns();
        pthread_mutex_unlock(&p->lock);
}

void pool_create_end(struct pool *p)
{
        if (!p)
                return;
        pthread_mutex_lock(&p->lock);
        if (--p->creating == 0)
                pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->lock);
}

static struct pool_member *take_any(struct pool *p, const char *build_id)
{
        struct pool_member *member = NULL;

        pthread_mutex_lock(&p->lock);
        for (size_t i = 0; i < p->count && !member; i++)
                if (streq(p->members[i]->build_id, build_id))
                        member = remove_at(p, i);
        pthread_mutex_unlock(&p->lock);
        return member;
}

struct pool_member *pool_take(struct pool *p, const char *build_id)
{
        struct pool_member *member;

        if (!p)
                return NULL;
        pthread_mutex_lock(&p->lock);
        note_demand(p, build_id, clock_realtime_ns());
        pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->lock);
        while ((member = take_any(p, build_id)) && !is_alive(member)) {
                log_info("pool: sandbox %s of build %s had ended", member->id, build_id);
                discard(p, member);
        }
        return member;
}

void pool_put_back(struct pool *p, struct pool_member *member)
{
        pthread_mutex_lock(&p->lock);
        insert(p, member);
        pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->lock);
}

void pool_forget(struct pool *p, const char *build_id)
{
        struct pool_member *member;
        struct demand *d;

        if (!p)
                return;
        pthread_mutex_lock(&p->lock);
        d = find_demand(p, build_id);
        if (d)
                drop_demand(p, d);
        if (p->making && streq(p->making, build_id))
                p->unwanted = true;
        pthread_mutex_unlock(&p->lock);
        while ((member = take_any(p, build_id)))
                discard(p, member);
}

size_t pool_count(struct pool *p, const char *build_id)
{
        size_t n;

        if (!p)
                return 0;
        pthread_mutex_lock(&p->lock);
        n = count_of(p, build_id);
        pthread_mutex_unlock(&p->lock);
        return n;
}

int pool_start(struct sandbox_manager *m, unsigned max, uint64_t budget_bytes, struct pool **ret, struct error *err)
{
        struct pool *p;
        int r;

        *ret = NULL;
        if (max == 0)
                return 0;
        p = xcalloc(1, sizeof *p);
        p->m = m;
        p->max = max;
        p->budget = budget_bytes;
        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->work, NULL);
        r = pthread_create(&p->thread, NULL, refill, p);
        if (r != 0) {
                free(p);
                return error_errno(err, r, "start the thread of the warm pool");
        }
        *ret = p;
        return 0;
}

void pool_stop(struct pool *p)
{
        if (!p)
                return;
        pthread_mutex_lock(&p->lock);
        p->stopping = true;
        pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
        while (p->count)
                discard(p, remove_at(p, p->count - 1));
        while (p->demand_count)
                drop_demand(p, &p->demands[0]);
        pthread_cond_destroy(&p->work);
        pthread_mutex_destroy(&p->lock);
        free(p->members);
        free(p);
}
