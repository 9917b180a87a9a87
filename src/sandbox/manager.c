/* The table of this node's sandboxes and the operations on living ones. manager.h has the states and the locks. */
#include "sandbox/manager.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/timeout.h"

struct entry *entry_new(const char *id)
{
        static atomic_uint_fast64_t lives;
        struct entry *e = xcalloc(1, sizeof *e);
        e->references = 1;
        e->life = atomic_fetch_add(&lives, 1) + 1;
        memcpy(e->id, id, strnlen(id, SANDBOX_ID_MAX));
        e->info = xcalloc(1, sizeof *e->info);
        pthread_mutex_init(&e->vm_lock, NULL);
        pthread_mutex_init(&e->collect_lock, NULL);
        return e;
}

void entry_unref(struct sandbox_manager *m, struct entry *e)
{
        if (!e)
                return;
        pthread_mutex_lock(&m->lock);
        bool last = --e->references == 0;
        pthread_mutex_unlock(&m->lock);
        if (!last)
                return;
        vm_close(e->vm);
        pthread_mutex_destroy(&e->vm_lock);
        pthread_mutex_destroy(&e->collect_lock);
        sandbox_info_free(e->info);
        explicit_bzero(e->envd_token, sizeof e->envd_token);
        explicit_bzero(e->traffic_token, sizeof e->traffic_token);
        free(e);
}

/* The place of `id` in the sorted table, or where it would be inserted. */
static size_t position(const struct sandbox_manager *m, const char *id)
{
        size_t low = 0, high = m->count;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (strcmp(m->entries[middle]->id, id) < 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

struct entry *entry_find(struct sandbox_manager *m, const char *id)
{
        size_t p = position(m, id);
        return p < m->count && streq(m->entries[p]->id, id) ? m->entries[p] : NULL;
}

void entry_insert(struct sandbox_manager *m, struct entry *e)
{
        if (m->count == m->capacity) {
                m->capacity = m->capacity ? m->capacity * 2 : 16;
                m->entries = xreallocarray(m->entries, m->capacity, sizeof *m->entries);
        }
        size_t p = position(m, e->id);
        memmove(m->entries + p + 1, m->entries + p, (m->count - p) * sizeof *m->entries);
        m->entries[p] = e;
        m->count++;
}

void entry_remove(struct sandbox_manager *m, struct entry *e)
{
        size_t p = position(m, e->id);
        if (p >= m->count || m->entries[p] != e)
                return;
        memmove(m->entries + p, m->entries + p + 1, (m->count - p - 1) * sizeof *m->entries);
        m->count--;
        e->references--;
        e->state = ENTRY_GONE;
}

bool entry_alive(const struct entry *e, int64_t now_ns)
{
        return e->state == ENTRY_RUNNING && e->info->ends_ns > now_ns;
}

enum entry_state entry_state_now(const struct entry *e, int64_t now_ns)
{
        if (e->state != ENTRY_RUNNING || entry_alive(e, now_ns))
                return e->state;
        return e->info->auto_pause ? ENTRY_PAUSING : ENTRY_KILLING;
}

void entry_set_end(struct entry *e, int64_t ends_ns)
{
        e->info->ends_ns = ends_ns;
        e->reap_ns = e->info->auto_pause ? ends_ns : ends_ns + REAP_GRACE_NS;
}

int64_t entry_shim_end(const struct sandbox_info *i)
{
        return i->auto_pause ? 0 : i->ends_ns;
}

char *manager_sandbox_dir(const struct sandbox_manager *m, const char *id)
{
        return xasprintf("%s/sandboxes/%s", m->data_dir, id);
}

char *manager_build_dir(const struct sandbox_manager *m, const char *build_id)
{
        return xasprintf("%s/builds/%s", m->data_dir, build_id);
}

void entry_set_tokens(struct sandbox_manager *m, struct entry *e, bool secure, bool public_traffic)
{
        e->public_traffic = public_traffic;
        if (secure) {
                sandbox_envd_token(m->root_secret, e->id, e->envd_token);
                free(e->info->envd_token);
                e->info->envd_token = xstrdup(e->envd_token);
        }
        if (!public_traffic) {
                sandbox_traffic_token(m->root_secret, e->id, e->traffic_token);
                free(e->info->traffic_token);
                e->info->traffic_token = xstrdup(e->traffic_token);
        }
}

void manager_forget(struct sandbox_manager *m, const char *id)
{
        struct error err = {};
        if (records_sandbox_delete(m->records, id, &err) < 0)
                log_warn("sandbox %s: its record could not be removed: %s", id, err.message);
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, id);
        if (tree_remove(dir, &err) < 0)
                log_warn("sandbox %s: its directory could not be removed: %s", id, err.message);
}

int manager_not_found(const char *id, struct error *err)
{
        return error_set(err, ERROR_NOT_FOUND, "Sandbox \"%s\" doesn't exist or you don't have access to it", id);
}

bool entry_visible(const struct entry *e, const struct team *team, int64_t now_ns)
{
        enum entry_state s = entry_state_now(e, now_ns);
        return (s == ENTRY_RUNNING || s == ENTRY_PAUSING || s == ENTRY_PAUSED || s == ENTRY_RESUMING) &&
               (!team || streq(team->id, e->info->team_id));
}

/* On the way to being paused it shows as that, on the way back as not there yet. */
static struct sandbox_info *show_info(const struct entry *e, int64_t now)
{
        struct sandbox_info *copy = sandbox_info_copy(e->info);
        copy->paused = entry_state_now(e, now) != ENTRY_RUNNING;
        return copy;
}

/* A reference to the living sandbox, or NULL. */
struct entry *manager_acquire(struct sandbox_manager *m, const struct team *team, const char *id)
{
        pthread_mutex_lock(&m->lock);
        struct entry *e = entry_find(m, id);
        int64_t now = clock_realtime_ns();
        if (e && !(entry_visible(e, team, now) && entry_alive(e, now)))
                e = NULL;
        if (e)
                e->references++;
        pthread_mutex_unlock(&m->lock);
        return e;
}

int sandbox_get(struct sandbox_manager *m, const struct team *team, const char *id, struct sandbox_info **ret, struct error *err)
{
        pthread_mutex_lock(&m->lock);
        struct entry *e = entry_find(m, id);
        int64_t now = clock_realtime_ns();
        struct sandbox_info *copy = e && entry_visible(e, team, now) ? show_info(e, now) : NULL;
        pthread_mutex_unlock(&m->lock);
        if (!copy)
                return manager_not_found(id, err);
        *ret = copy;
        return 0;
}

int sandbox_list(struct sandbox_manager *m, const struct team *team, struct sandbox_info ***ret, size_t *count, struct error *err)
{
        (void)err;
        int64_t now = clock_realtime_ns();
        pthread_mutex_lock(&m->lock);
        struct sandbox_info **list = xcalloc(m->count + 1, sizeof *list);
        size_t n = 0;
        for (size_t i = 0; i < m->count; i++)
                if (entry_visible(m->entries[i], team, now))
                        list[n++] = show_info(m->entries[i], now);
        pthread_mutex_unlock(&m->lock);
        *ret = list;
        *count = n;
        return 0;
}

size_t manager_count_team(const struct sandbox_manager *m, const char *team_id, int64_t now_ns)
{
        size_t n = 0;
        for (size_t i = 0; i < m->count; i++) {
                const struct entry *e = m->entries[i];
                enum entry_state s = entry_state_now(e, now_ns);
                bool counts = s == ENTRY_STARTING || s == ENTRY_RUNNING || s == ENTRY_PAUSING || s == ENTRY_RESUMING;
                n += counts && (!team_id || streq(team_id, e->info->team_id));
        }
        return n;
}

int manager_limit_check(const struct sandbox_manager *m, const struct team *team, struct error *err)
{
        if (manager_count_team(m, team->id, clock_realtime_ns()) < team->max_sandboxes)
                return 0;
        return error_set(err, ERROR_LIMIT,
                         "you have reached the maximum number of concurrent E2B sandboxes (%u). "
                         "Kill one, or have the administrator raise the team's limit with 'vmon admin set-limits'.",
                         team->max_sandboxes);
}

size_t sandbox_count(struct sandbox_manager *m, const char *team_id)
{
        pthread_mutex_lock(&m->lock);
        size_t n = manager_count_team(m, team_id, clock_realtime_ns());
        pthread_mutex_unlock(&m->lock);
        return n;
}

/* RUNNING or PAUSED -> KILLING by exactly one caller, after a pause or resume that is under way. */
static struct entry *begin_kill(struct sandbox_manager *m, const struct team *team, const char *id, enum entry_state *ret_before)
{
        struct entry *e;
        pthread_mutex_lock(&m->lock);
        while ((e = entry_find(m, id))) {
                if (!entry_visible(e, team, clock_realtime_ns())) {
                        e = NULL;
                        break;
                }
                if (e->state != ENTRY_PAUSING && e->state != ENTRY_RESUMING)
                        break;
                pthread_cond_wait(&m->changed, &m->lock);
        }
        if (e) {
                e->references++;
                *ret_before = e->state;
                e->state = ENTRY_KILLING;
        }
        pthread_mutex_unlock(&m->lock);
        return e;
}

int sandbox_kill(struct sandbox_manager *m, const struct team *team, const char *id, struct error *err)
{
        enum entry_state before;
        struct entry *e = begin_kill(m, team, id, &before);
        if (!e)
                return manager_not_found(id, err);
        if (before == ENTRY_RUNNING)
                collect_last(m, e);
        pthread_mutex_lock(&e->vm_lock);
        int r = e->vm ? vm_kill(e->vm, err) : 0;
        pthread_mutex_unlock(&e->vm_lock);
        if (r == 0)
                manager_log(m, e, "info", "sandbox killed", NULL);
        if (r == 0)
                manager_forget(m, e->id);
        pthread_mutex_lock(&m->lock);
        if (r == 0)
                entry_remove(m, e);
        else
                e->state = before;
        pthread_mutex_unlock(&m->lock);
        entry_unref(m, e);
        return r < 0 ? error_wrap(err, r, "kill sandbox %s", id) : 0;
}

/* Store first, then shim: after a crash between the two the record is right, and adoption tells the shim again. */
static int move_end(struct sandbox_manager *m, struct entry *e, const struct sandbox_info *changed, struct error *err)
{
        json_t *record = sandbox_record_write(changed, e->envd_token[0] != '\0', e->public_traffic);
        int r = records_sandbox_put(m->records, e->id, record, err);
        json_decref(record);
        if (r == 0)
                r = vm_set_expiry(e->vm, entry_shim_end(changed), err);
        /* It has just ended: the watcher, which waits for our lock, removes the record. */
        return r == -ENOENT ? manager_not_found(e->id, err) : r;
}

static int change_end(struct sandbox_manager *m, struct entry *e, const struct team *team, int64_t timeout_s, bool extend_only,
                      struct sandbox_info **ret, struct error *err)
{
        pthread_mutex_lock(&m->lock);
        bool alive = entry_alive(e, clock_realtime_ns());
        struct sandbox_info *changed = sandbox_info_copy(e->info);
        pthread_mutex_unlock(&m->lock);

        int64_t old = changed->ends_ns;
        int r = alive ? sandbox_timeout_end(changed->started_ns, old, clock_realtime_ns(), timeout_s, team ? team->max_sandbox_hours : 0,
                                            extend_only, &changed->ends_ns, err)
                      : manager_not_found(e->id, err);
        if (r == 0 && changed->ends_ns != old)
                r = move_end(m, e, changed, err);
        if (r < 0) {
                sandbox_info_free(changed);
                return r;
        }
        pthread_mutex_lock(&m->lock);
        entry_set_end(e, changed->ends_ns);
        pthread_mutex_unlock(&m->lock);
        watch_poke(m);
        if (ret)
                *ret = changed;
        else
                sandbox_info_free(changed);
        return 0;
}

/* Is it being paused or resumed? */
static bool between(struct sandbox_manager *m, const struct team *team, const char *id)
{
        int64_t now = clock_realtime_ns();
        pthread_mutex_lock(&m->lock);
        const struct entry *e = entry_find(m, id);
        bool yes = e && entry_visible(e, team, now) && entry_state_now(e, now) != ENTRY_PAUSED;
        pthread_mutex_unlock(&m->lock);
        return yes;
}

int sandbox_set_timeout(struct sandbox_manager *m, const struct team *team, const char *id, int64_t timeout_s, bool extend_only,
                        struct sandbox_info **ret, struct error *err)
{
        struct entry *e = manager_acquire(m, team, id);
        if (!e)
                return between(m, team, id) ? error_set(err, ERROR_CONFLICT, "Sandbox \"%s\" is being paused or resumed; try again in a moment", id)
                                            : manager_not_found(id, err);
        pthread_mutex_lock(&e->vm_lock);
        int r = change_end(m, e, team, timeout_s, extend_only, ret, err);
        pthread_mutex_unlock(&e->vm_lock);
        entry_unref(m, e);
        return r;
}

static struct sandbox_manager *manager_alloc(const struct sandbox_settings *s)
{
        struct sandbox_manager *m = xcalloc(1, sizeof *m);
        pthread_mutex_init(&m->lock, NULL);
        pthread_cond_init(&m->changed, NULL);
        pthread_cond_init(&m->due, NULL);
        clock_cond_init(&m->collect_due);
        m->history = history_new(s->data_dir);
        m->history_bytes = s->history_bytes;
        m->data_dir = xstrdup(s->data_dir);
        m->kit_root = xstrdup_or_null(s->kit_root);
        m->need_backend = s->need_backend;
        m->need_backend_data = s->need_backend_data;
        m->node = xstrdup_or_null(s->node);
        m->network = s->network;
        memcpy(m->root_secret, s->root_secret, sizeof m->root_secret);
        m->records = s->records;
        m->templates = template_cache_new(s->kit_root, s->backend, TEMPLATE_CACHE_IDLE_MAX);
        m->epoll_fd = m->wake_fd = -1;
        return m;
}

int sandbox_manager_new(const struct sandbox_settings *s, struct sandbox_manager **ret, struct error *err)
{
        struct sandbox_manager *m = manager_alloc(s);
        CLEANUP_FREE char *dir = path_join(s->data_dir, "sandboxes");
        int r = dir_make(dir, 0700, err);
        if (r == 0)
                r = watch_start(m, err);
        if (r == 0)
                r = manager_adopt_all(m, err);
        if (r == 0)
                r = pausers_start(m, err);
        if (r == 0)
                r = collectors_start(m, err);
        if (r == 0)
                r = pool_start(m, s->pool_max, s->pool_bytes, &m->pool, err);
        if (r < 0) {
                sandbox_manager_free(m);
                return r;
        }
        *ret = m;
        return 0;
}

void sandbox_manager_free(struct sandbox_manager *m)
{
        if (!m)
                return;
        pool_stop(m->pool);
        pausers_stop(m);
        collectors_stop(m);
        watch_stop(m);
        for (size_t i = 0; i < m->count; i++)
                entry_unref(m, m->entries[i]);
        free(m->entries);
        template_cache_free(m->templates);
        pthread_cond_destroy(&m->changed);
        pthread_cond_destroy(&m->due);
        pthread_cond_destroy(&m->collect_due);
        history_free(m->history);
        pthread_mutex_destroy(&m->lock);
        explicit_bzero(m->root_secret, sizeof m->root_secret);
        free(m->data_dir);
        free(m->kit_root);
        free(m->node);
        free(m);
}
