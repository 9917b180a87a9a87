/* The table of this node's sandboxes and the operations on living ones. manager.h has the states and the locks. */
#include "sandbox/manager.h"

#include <errno.h>
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
        struct entry *e = xcalloc(1, sizeof *e);
        e->references = 1;
        memcpy(e->id, id, strnlen(id, SANDBOX_ID_MAX));
        e->info = xcalloc(1, sizeof *e->info);
        pthread_mutex_init(&e->vm_lock, NULL);
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

static int not_found(const char *id, struct error *err)
{
        return error_set(err, ERROR_NOT_FOUND, "Sandbox \"%s\" doesn't exist or you don't have access to it", id);
}

static bool visible(const struct entry *e, const struct team *team, int64_t now)
{
        return entry_alive(e, now) && (!team || streq(team->id, e->info->team_id));
}

/* A reference to the living sandbox, or NULL. */
struct entry *manager_acquire(struct sandbox_manager *m, const struct team *team, const char *id)
{
        pthread_mutex_lock(&m->lock);
        struct entry *e = entry_find(m, id);
        if (e && !visible(e, team, clock_realtime_ns()))
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
        struct sandbox_info *copy = e && visible(e, team, clock_realtime_ns()) ? sandbox_info_copy(e->info) : NULL;
        pthread_mutex_unlock(&m->lock);
        if (!copy)
                return not_found(id, err);
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
                if (visible(m->entries[i], team, now))
                        list[n++] = sandbox_info_copy(m->entries[i]->info);
        pthread_mutex_unlock(&m->lock);
        *ret = list;
        *count = n;
        return 0;
}

size_t sandbox_count(struct sandbox_manager *m, const char *team_id)
{
        int64_t now = clock_realtime_ns();
        size_t n = 0;
        pthread_mutex_lock(&m->lock);
        for (size_t i = 0; i < m->count; i++) {
                const struct entry *e = m->entries[i];
                if ((e->state == ENTRY_STARTING || entry_alive(e, now)) && (!team_id || streq(team_id, e->info->team_id)))
                        n++;
        }
        pthread_mutex_unlock(&m->lock);
        return n;
}

/* RUNNING -> KILLING by exactly one caller. */
static struct entry *begin_kill(struct sandbox_manager *m, const struct team *team, const char *id)
{
        pthread_mutex_lock(&m->lock);
        struct entry *e = entry_find(m, id);
        if (e && !visible(e, team, clock_realtime_ns()))
                e = NULL;
        if (e) {
                e->references++;
                e->state = ENTRY_KILLING;
        }
        pthread_mutex_unlock(&m->lock);
        return e;
}

int sandbox_kill(struct sandbox_manager *m, const struct team *team, const char *id, struct error *err)
{
        struct entry *e = begin_kill(m, team, id);
        if (!e)
                return not_found(id, err);
        pthread_mutex_lock(&e->vm_lock);
        int r = vm_kill(e->vm, err);
        pthread_mutex_unlock(&e->vm_lock);
        if (r == 0)
                manager_forget(m, e->id);
        pthread_mutex_lock(&m->lock);
        if (r == 0)
                entry_remove(m, e);
        else
                e->state = ENTRY_RUNNING;
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
                r = vm_set_expiry(e->vm, changed->ends_ns, err);
        /* It has just ended: the watcher, which waits for our lock, removes the record. */
        return r == -ENOENT ? not_found(e->id, err) : r;
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
                      : not_found(e->id, err);
        if (r == 0 && changed->ends_ns != old)
                r = move_end(m, e, changed, err);
        if (r < 0) {
                sandbox_info_free(changed);
                return r;
        }
        pthread_mutex_lock(&m->lock);
        e->info->ends_ns = changed->ends_ns;
        e->reap_ns = changed->ends_ns + REAP_GRACE_NS;
        pthread_mutex_unlock(&m->lock);
        watch_poke(m);
        if (ret)
                *ret = changed;
        else
                sandbox_info_free(changed);
        return 0;
}

int sandbox_set_timeout(struct sandbox_manager *m, const struct team *team, const char *id, int64_t timeout_s, bool extend_only,
                        struct sandbox_info **ret, struct error *err)
{
        struct entry *e = manager_acquire(m, team, id);
        if (!e)
                return not_found(id, err);
        pthread_mutex_lock(&e->vm_lock);
        int r = change_end(m, e, team, timeout_s, extend_only, ret, err);
        pthread_mutex_unlock(&e->vm_lock);
        entry_unref(m, e);
        return r;
}

int sandbox_route(struct sandbox_manager *m, const char *id, struct sandbox_route *ret)
{
        struct sandbox_route route = {};
        pthread_mutex_lock(&m->lock);
        const struct entry *e = entry_find(m, id);
        if (e && entry_alive(e, clock_realtime_ns())) {
                route.running = true;
                route.public_traffic = e->public_traffic;
                route.nothing_started = e->info->nothing_started;
                memcpy(route.traffic_token, e->traffic_token, sizeof route.traffic_token);
                memcpy(route.envd_token, e->envd_token, sizeof route.envd_token);
        }
        pthread_mutex_unlock(&m->lock);
        *ret = route;
        return route.running ? 0 : -ENOENT;
}

int sandbox_dial(struct sandbox_manager *m, const char *id, int port, int *ret_fd)
{
        struct entry *e = manager_acquire(m, NULL, id);
        if (!e)
                return -ENOENT;
        int r = vm_connect(e->vm, port, ret_fd, NULL);
        entry_unref(m, e);
        return r;
}

int sandbox_by_signature(struct sandbox_manager *m, const char *path, const char *operation, const char *user, const char *expiration,
                         const char *signature, char *ret_id)
{
        int64_t now = clock_realtime_ns();
        int r = -ENOENT;
        pthread_mutex_lock(&m->lock);
        for (size_t i = 0; i < m->count && r < 0; i++) {
                const struct entry *e = m->entries[i];
                char expected[FILE_SIGNATURE_MAX];
                if (e->envd_token[0] == '\0' || !entry_alive(e, now))
                        continue;
                file_signature(path, operation, user, e->envd_token, expiration, expected);
                if (str_equal_constant_time(expected, signature)) {
                        memcpy(ret_id, e->id, SANDBOX_ID_LEN + 1);
                        r = 0;
                }
        }
        pthread_mutex_unlock(&m->lock);
        return r;
}

static struct sandbox_manager *manager_alloc(const struct sandbox_settings *s)
{
        struct sandbox_manager *m = xcalloc(1, sizeof *m);
        pthread_mutex_init(&m->lock, NULL);
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
        watch_stop(m);
        for (size_t i = 0; i < m->count; i++)
                entry_unref(m, m->entries[i]);
        free(m->entries);
        template_cache_free(m->templates);
        pthread_mutex_destroy(&m->lock);
        explicit_bzero(m->root_secret, sizeof m->root_secret);
        free(m->data_dir);
        free(m->kit_root);
        free(m->node);
        free(m);
}
