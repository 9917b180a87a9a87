/* Pausing, and resuming by connect and by traffic. manager.h has the states and what is durable when.
 *
 * Directory of a paused sandbox: overlay.qcow2, the link to its kit, and `paused` (vm.h). Resuming renames `paused` to `resumed`
 * when the new VM is complete and has not run yet: before, the sandbox is still paused whatever happens; after, its disk moves
 * on and the saved memory would no longer fit it.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"
#include "sandbox/timeout.h"

#define RETRY_NS (10 * NSEC_PER_SEC)          /* after an automatic pause that failed: the host may have room again */

char *manager_paused_dir(const struct sandbox_manager *m, const char *id)
{
        return xasprintf("%s/sandboxes/%s/paused", m->data_dir, id);
}

json_t *manager_wake_again(const struct entry *e)
{
        json_t *w = json_pack("{s:s, s:s}", "sandbox_id", e->id, "template_id", e->info->template_id);
        json_object_set_new(w, "access_token", e->envd_token[0] ? json_string(e->envd_token) : json_null());
        return w;
}

static int put_record(struct sandbox_manager *m, const struct entry *e, const struct sandbox_info *i, struct error *err)
{
        json_t *record = sandbox_record_write(i, e->envd_token[0] != '\0', e->public_traffic);
        int r = records_sandbox_put(m->records, e->id, record, err);
        json_decref(record);
        return r;
}

static void set_state(struct sandbox_manager *m, struct entry *e, enum entry_state s)
{
        pthread_mutex_lock(&m->lock);
        e->state = s;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
}

/* Pausing */

/* What stands in the table for the sandbox once its VM is gone; the caller holds the only reference. */
static struct entry *paused_entry(struct sandbox_manager *m, const struct entry *running, bool memory)
{
        struct entry *e = entry_new(running->id);
        sandbox_info_free(e->info);
        pthread_mutex_lock(&m->lock);
        e->info = sandbox_info_copy(running->info);
        pthread_mutex_unlock(&m->lock);
        e->info->paused = true;
        e->info->paused_disk = !memory;
        entry_set_tokens(m, e, running->envd_token[0] != '\0', running->public_traffic);
        return e;
}

void manager_show_paused(struct sandbox_manager *m, struct entry *e)
{
        pthread_mutex_lock(&m->lock);
        e->state = ENTRY_PAUSED;
        entry_insert(m, e);
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
}

/* The VM stands still and everything is saved: from here on the sandbox is paused, whatever fails. */
static void leave_vm(struct sandbox_manager *m, struct entry *e, bool memory)
{
        struct error err = {};
        struct entry *paused = paused_entry(m, e, memory);
        if (put_record(m, paused, paused->info, &err) < 0) /* the directory says it too */
                log_warn("sandbox %s: its record does not say that it is paused: %s", e->id, err.message);
        if (vm_kill(e->vm, &err) < 0)
                log_warn("sandbox %s: its paused machine could not be ended: %s", e->id, err.message);
        pthread_mutex_lock(&m->lock);
        entry_remove(m, e);
        paused->state = ENTRY_PAUSED;
        entry_insert(m, paused);
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
}

/* It goes on running, unless it has died meanwhile (the watcher left that to us). */
static void go_on(struct sandbox_manager *m, struct entry *e)
{
        bool running;
        if (vm_is_running(e->vm, &running, NULL) == -ENOENT) {
                set_state(m, e, ENTRY_KILLING);
                watch_bury(m, e);
                return;
        }
        pthread_mutex_lock(&m->lock);
        int64_t end = entry_shim_end(e->info);
        e->state = ENTRY_RUNNING;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
        vm_set_expiry(e->vm, end, NULL);
        watch_poke(m);
}

/* For an entry that the caller has set to PAUSING and holds a reference to. */
static int pause_entry(struct sandbox_manager *m, struct entry *e, bool memory, struct error *err)
{
        CLEANUP_FREE char *into = manager_paused_dir(m, e->id);
        json_t *wake = manager_wake_again(e);
        int64_t began = clock_monotonic_ns();
        uint64_t pages = 0;

        pthread_mutex_lock(&e->vm_lock);
        int r = vm_set_expiry(e->vm, 0, err); /* the shim must not end it meanwhile */
        if (r == 0)
                r = memory ? vm_pause(e->vm, e->info->memory_mb, into, wake, &pages, err) : vm_pause_disk(e->vm, e->info->memory_mb, into, wake, err);
        if (r == 0)
                leave_vm(m, e, memory);
        pthread_mutex_unlock(&e->vm_lock);
        json_decref(wake);
        if (r < 0) {
                go_on(m, e);
                return r;
        }
        long long took = (clock_monotonic_ns() - began) / NSEC_PER_MSEC;
        manager_log(m, e, "info", "sandbox paused", memory ? NULL : json_pack("{s:b}", "memory", 0));
        if (memory)
                log_info("sandbox %s paused: %llu pages of its memory had changed, %lld ms", e->id, (unsigned long long)pages, took);
        else
                log_info("sandbox %s paused without its memory, %lld ms", e->id, took);
        return 0;
}

/* RUNNING -> PAUSING by exactly one caller: a reference, or NULL. */
static struct entry *begin_pause(struct sandbox_manager *m, const struct team *team, const char *id, int *ret, struct error *err)
{
        struct entry *e;
        pthread_mutex_lock(&m->lock);
        while ((e = entry_find(m, id)) && entry_visible(e, team, clock_realtime_ns()) && e->state != ENTRY_PAUSED && e->state != ENTRY_RUNNING)
                pthread_cond_wait(&m->changed, &m->lock);
        if (!e || !entry_visible(e, team, clock_realtime_ns())) {
                *ret = manager_not_found(id, err);
                e = NULL;
        } else if (e->state == ENTRY_PAUSED) {
                *ret = error_set(err, ERROR_CONFLICT, "Error pausing sandbox - sandbox '%s' is already paused", id);
                e = NULL;
        } else {
                e->state = ENTRY_PAUSING;
                e->references++;
        }
        pthread_mutex_unlock(&m->lock);
        return e;
}

int sandbox_pause(struct sandbox_manager *m, const struct team *team, const char *id, bool memory, struct error *err)
{
        int r = 0;
        struct entry *e = begin_pause(m, team, id, &r, err);
        if (!e)
                return r;
        r = pause_entry(m, e, memory, err);
        entry_unref(m, e);
        return r < 0 ? error_wrap(err, r, "pause sandbox %s (it goes on running)", id) : 0;
}

/* One that is due, set to PAUSING and with a reference; else NULL and when the next one is. With the lock. */
static struct entry *take_due(struct sandbox_manager *m, int64_t *ret_next)
{
        int64_t now = clock_realtime_ns(), next = INT64_MAX;
        for (size_t i = 0; i < m->count; i++) {
                struct entry *e = m->entries[i];
                if (e->state != ENTRY_RUNNING || !e->info->auto_pause)
                        continue;
                if (e->reap_ns <= now) {
                        e->state = ENTRY_PAUSING;
                        e->references++;
                        return e;
                }
                if (e->reap_ns < next)
                        next = e->reap_ns;
        }
        *ret_next = next;
        return NULL;
}

static void wait_due(struct sandbox_manager *m, int64_t next)
{
        if (next == INT64_MAX) {
                pthread_cond_wait(&m->due, &m->lock);
                return;
        }
        struct timespec at = { .tv_sec = next / NSEC_PER_SEC, .tv_nsec = next % NSEC_PER_SEC };
        pthread_cond_timedwait(&m->due, &m->lock, &at);
}

static void pause_due(struct sandbox_manager *m, struct entry *e)
{
        struct error err = {};
        if (pause_entry(m, e, !e->info->auto_pause_disk, &err) < 0) {
                log_warn("sandbox %s has reached its end and could not be paused (it goes on running; tried again in a few seconds): %s",
                         e->id, err.message);
                pthread_mutex_lock(&m->lock);
                e->reap_ns = clock_realtime_ns() + RETRY_NS;
                pthread_mutex_unlock(&m->lock);
        }
        entry_unref(m, e);
}

static void *pauser(void *data)
{
        struct sandbox_manager *m = data;
        pthread_mutex_lock(&m->lock);
        while (!m->stopping) {
                int64_t next;
                struct entry *e = take_due(m, &next);
                if (!e) {
                        wait_due(m, next);
                        continue;
                }
                pthread_mutex_unlock(&m->lock);
                pause_due(m, e);
                pthread_mutex_lock(&m->lock);
        }
        pthread_mutex_unlock(&m->lock);
        return NULL;
}

int pausers_start(struct sandbox_manager *m, struct error *err)
{
        for (; m->pauser_count < PAUSERS; m->pauser_count++) {
                int r = pthread_create(&m->pausers[m->pauser_count], NULL, pauser, m);
                if (r != 0)
                        return error_errno(err, r, "start the threads that pause sandboxes");
        }
        return 0;
}

void pausers_stop(struct sandbox_manager *m)
{
        pthread_mutex_lock(&m->lock);
        m->stopping = true;
        pthread_cond_broadcast(&m->due);
        pthread_mutex_unlock(&m->lock);
        while (m->pauser_count > 0)
                pthread_join(m->pausers[--m->pauser_count], NULL);
}

/* Resuming */

struct resumption {
        struct sandbox_manager *m;
        struct entry *e;
        int64_t timeout_s;
        bool reboot;    /* in: whatever was saved; out: it has booted */
        bool committed; /* the saved memory is used up */
};

/* The VM is complete and stands still. First the record, which adoption would otherwise judge by, then the directory. */
static int commit(void *data, struct error *err)
{
        struct resumption *z = data;
        struct sandbox_manager *m = z->m;
        CLEANUP_FREE char *from = manager_paused_dir(m, z->e->id), *to = xasprintf("%s/sandboxes/%s/resumed", m->data_dir, z->e->id);
        pthread_mutex_lock(&m->lock);
        z->e->info->paused = z->e->info->paused_disk = false;
        z->e->info->started_ns = clock_realtime_ns();
        entry_set_end(z->e, z->e->info->started_ns + z->timeout_s * NSEC_PER_SEC);
        struct sandbox_info *copy = sandbox_info_copy(z->e->info);
        pthread_mutex_unlock(&m->lock);
        int r = put_record(m, z->e, copy, err);
        sandbox_info_free(copy);
        if (r == 0)
                r = file_publish(from, to, err);
        z->committed = r == 0;
        return r;
}

static int restore(struct resumption *z, struct error *err)
{
        struct sandbox_manager *m = z->m;
        struct entry *e = z->e;
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, e->id), *paused = manager_paused_dir(m, e->id);
        struct vm_template *template_ = NULL;
        int r = manager_template(m, e->info->build_id, &template_, err);
        if (r < 0)
                return r;
        bool memory = true;
        if (!z->reboot && vm_paused_with_memory(paused, &memory, NULL) == 0)
                z->reboot = !memory;
        json_t *wake = z->reboot ? manager_wake_booted(m, e) : manager_wake_again(e), *egress = manager_egress(e->info);
        struct vm_fork f = { .id = e->id, .dir = dir, .template_ = template_, .network = m->network, .wake = wake, .egress = egress, .paused = paused,
                             .before_run = commit, .before_run_data = z };
        r = z->reboot ? vm_drop_memory(&f, err) : 0;
        pthread_mutex_lock(&m->lock);
        e->info->paused_disk = z->reboot && r == 0;
        pthread_mutex_unlock(&m->lock);
        if (r == 0)
                r = vm_restore(&f, &e->vm, err);
        json_decref(wake);
        json_decref(egress);
        template_cache_release(m->templates, template_);
        return r;
}

static int finish(struct resumption *z, struct error *err)
{
        CLEANUP_FREE char *used = xasprintf("%s/sandboxes/%s/resumed", z->m->data_dir, z->e->id);
        struct error ignored = {};
        if (tree_remove(used, &ignored) < 0)
                log_warn("sandbox %s: %s", z->e->id, ignored.message);
        if (z->reboot)
                manager_start_again(z->m, z->e);
        int r = vm_set_expiry(z->e->vm, entry_shim_end(z->e->info), err);
        if (r == 0) {
                set_state(z->m, z->e, ENTRY_RUNNING);
                r = watch_add(z->m, z->e, err);
        }
        return r;
}

int manager_resume(struct sandbox_manager *m, struct entry *e, int64_t timeout_s, bool reboot, struct sandbox_info **ret, bool *ret_committed,
                   struct error *err)
{
        struct resumption z = { .m = m, .e = e, .timeout_s = timeout_s, .reboot = reboot };
        int r = restore(&z, err);
        if (r == 0)
                r = finish(&z, err);
        *ret_committed = z.committed;
        if (r < 0)
                return r;
        pthread_mutex_lock(&m->lock);
        *ret = sandbox_info_copy(e->info);
        pthread_mutex_unlock(&m->lock);
        return 0;
}

/* For an entry that the caller has set to RESUMING and holds a reference to. */
static int resume_entry(struct sandbox_manager *m, struct entry *e, const struct sandbox_connect *c, struct sandbox_info **ret, struct error *err)
{
        bool committed;
        int r = manager_resume(m, e, c->timeout_s, c->reboot, ret, &committed, err);
        if (r == 0) {
                manager_log(m, e, "info", "sandbox resumed", json_pack("{s:I}", "timeout_s", (json_int_t)c->timeout_s));
                return 0;
        }
        if (committed) {
                error_wrap(err, r, "resume sandbox %s (it is lost: its machine ended as it went on)", e->id);
                manager_undo_create(m, e);
                return r;
        }
        pthread_mutex_lock(&m->lock);
        e->info->paused = true;
        e->state = ENTRY_PAUSED;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
        return error_wrap(err, r, "resume sandbox %s (it stays paused)", e->id);
}

/* With the lock: what connect finds. 1 = wait for a change; 2 = *ret is to be resumed; 0 = it runs. */
static int begin_connect(struct sandbox_manager *m, const struct team *team, const char *id, struct entry **ret, struct error *err)
{
        int64_t now = clock_realtime_ns();
        struct entry *e = entry_find(m, id);
        if (e && e->state == ENTRY_KILLING && e->info->ends_ns > now && (!team || streq(team->id, e->info->team_id)))
                return error_set(err, ERROR_CONFLICT, "Sandbox \"%s\" is being killed", id);
        if (!e || !entry_visible(e, team, now))
                return manager_not_found(id, err);
        enum entry_state s = entry_state_now(e, now);
        if (s == ENTRY_RUNNING)
                return 0;
        if (s != ENTRY_PAUSED)
                return 1;
        int r = team ? manager_limit_check(m, team, err) : 0;
        if (r < 0)
                return r;
        e->state = ENTRY_RESUMING;
        e->references++;
        *ret = e;
        return 2;
}

/* It ran when we looked, and is being paused, or paused, now. */
static bool paused_meanwhile(struct sandbox_manager *m, const struct team *team, const char *id)
{
        int64_t now = clock_realtime_ns();
        pthread_mutex_lock(&m->lock);
        const struct entry *e = entry_find(m, id);
        bool yes = e && entry_visible(e, team, now) && !entry_alive(e, now);
        pthread_mutex_unlock(&m->lock);
        return yes;
}

/* 1: look again. */
static int connect_running(struct sandbox_manager *m, const struct team *team, const char *id, int64_t timeout_s, struct sandbox_info **ret,
                           struct error *err)
{
        int r = sandbox_set_timeout(m, team, id, timeout_s, true, ret, err);
        return r < 0 && paused_meanwhile(m, team, id) ? 1 : r;
}

int sandbox_connect(struct sandbox_manager *m, const struct team *team, const char *id, const struct sandbox_connect *c,
                    struct sandbox_info **ret, bool *ret_resumed, struct error *err)
{
        struct entry *e = NULL;
        int r;
        *ret_resumed = false;
        do {
                pthread_mutex_lock(&m->lock);
                while ((r = begin_connect(m, team, id, &e, err)) == 1)
                        pthread_cond_wait(&m->changed, &m->lock);
                pthread_mutex_unlock(&m->lock);
                if (r == 0 && !c->running_ok)
                        return error_set(err, ERROR_CONFLICT, "Sandbox %s is already running", id);
                if (r == 0)
                        r = connect_running(m, team, id, c->timeout_s, ret, err);
        } while (r == 1);
        if (r != 2 || !e)
                return r;
        r = resume_entry(m, e, c, ret, err);
        entry_unref(m, e);
        *ret_resumed = r == 0;
        return r;
}
