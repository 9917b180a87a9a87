/* What the traffic proxy asks and does: where a request goes, and resuming a paused sandbox for it (sandbox-api 21 to 23). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"

#define TRAFFIC_RESUME_MIN_S 300 /* sandbox-api 21.3 */

/* Does traffic resume it, when it is paused? */
static bool wakes(const struct entry *e)
{
        return e->info->auto_resume && !e->info->paused_disk;
}

int sandbox_route(struct sandbox_manager *m, const char *id, struct sandbox_route *ret)
{
        struct sandbox_route route = {};
        pthread_mutex_lock(&m->lock);
        const struct entry *e = entry_find(m, id);
        int64_t now = clock_realtime_ns();
        if (e && entry_visible(e, NULL, now)) {
                route.running = entry_alive(e, now);
                route.life = e->life;
                route.resumable = !route.running && wakes(e);
                route.public_traffic = e->public_traffic;
                route.nothing_started = e->info->nothing_started;
                memcpy(route.traffic_token, e->traffic_token, sizeof route.traffic_token);
                const char *mask = json_str(e->info->network, "maskRequestHost");
                if (mask && strlen(mask) <= SANDBOX_MASK_MAX)
                        memcpy(route.mask_request_host, mask, strlen(mask));
                memcpy(route.envd_token, e->envd_token, sizeof route.envd_token);
        }
        pthread_mutex_unlock(&m->lock);
        *ret = route;
        return route.running ? 0 : -ENOENT;
}

/* The team's limits by the record: traffic does not say which team it is of. */
static int team_of(struct sandbox_manager *m, const char *id, struct team **ret, int64_t *ret_timeout_s)
{
        pthread_mutex_lock(&m->lock);
        struct entry *e = entry_find(m, id);
        bool may = e && wakes(e) && entry_visible(e, NULL, clock_realtime_ns());
        CLEANUP_FREE char *team_id = may ? xstrdup(e->info->team_id) : NULL;
        *ret_timeout_s = may && e->info->timeout_s > TRAFFIC_RESUME_MIN_S ? e->info->timeout_s : TRAFFIC_RESUME_MIN_S;
        pthread_mutex_unlock(&m->lock);
        return team_id ? records_team_get(m->records, team_id, ret, NULL) : -ENOENT;
}

/* 0, -ENOENT, -EDQUOT, another -errno. */
static int resume_for_traffic(struct sandbox_manager *m, const char *id)
{
        struct sandbox_info *info = NULL;
        struct team *team = NULL;
        struct error err = {};
        int64_t timeout_s;
        bool resumed;
        int r = team_of(m, id, &team, &timeout_s);
        if (r < 0)
                return r;
        if (team->max_sandbox_hours > 0 && timeout_s > (int64_t)team->max_sandbox_hours * 3600)
                timeout_s = (int64_t)team->max_sandbox_hours * 3600;
        r = sandbox_connect(m, team, id, &(struct sandbox_connect){.timeout_s = timeout_s, .running_ok = true}, &info, &resumed, &err);
        if (r < 0)
                log_warn("traffic to sandbox %s: %s", id, err.message);
        sandbox_info_free(info);
        team_free(team);
        return r;
}

int sandbox_dial(struct sandbox_manager *m, const char *id, int port, int *ret_fd)
{
        struct entry *e = manager_acquire(m, NULL, id);
        if (!e) {
                int r = resume_for_traffic(m, id);
                e = r == 0 ? manager_acquire(m, NULL, id) : NULL;
                if (!e)
                        return r < 0 ? r : -ENOENT;
        }
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
                bool reachable = entry_alive(e, now) || (entry_visible(e, NULL, now) && wakes(e));
                char expected[FILE_SIGNATURE_MAX];
                if (e->envd_token[0] == '\0' || !reachable)
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
