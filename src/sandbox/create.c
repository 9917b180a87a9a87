/* Making a sandbox: a place in the team's limit, the directory, the fork, the record, and only then the sandbox is shown
 * (manager.h says why in this order). Whatever fails takes the earlier stages back.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"
#include "sandbox/timeout.h"

/* The end that the shim gets for the time of the restore; the real one counts from readiness (sandbox-api 5.2). */
#define RESTORE_SLACK_NS (120 * NSEC_PER_SEC)

static json_t *copy_json(const json_t *j)
{
        return j && !json_is_null(j) ? json_deep_copy(j) : NULL;
}

/* Everything about the sandbox that is known before it runs. */
static void fill_info(struct sandbox_info *i, const char *id, const struct sandbox_spec *s)
{
        i->id = xstrdup(id);
        i->team_id = xstrdup(s->team->id);
        i->template_id = xstrdup(s->template_->id);
        i->build_id = xstrdup(s->build->id);
        i->alias = s->template_->aliases ? xstrdup_or_null(s->template_->aliases[0]) : NULL;
        i->envd_version = xstrdup(s->build->envd_version ? s->build->envd_version : "");
        i->vcpus = s->build->vcpus;
        i->memory_mb = s->build->memory_mb;
        i->disk_mb = s->build->disk_mb;
        i->nothing_started = !s->build->start_cmd;
        i->metadata = copy_json(s->metadata);
        i->allow_internet_access = copy_json(s->allow_internet_access);
        i->network = copy_json(s->network);
        i->auto_pause = s->auto_pause;
        i->auto_pause_disk = s->auto_pause_disk;
        i->auto_resume = s->auto_resume;
        i->timeout_s = s->timeout_s;
}

/* Takes a place in the team's limit: the entry is in the table, STARTING. The caller gets a reference. The machine of `ready` (or NULL)
 * is then the entry's. */
static int reserve(struct sandbox_manager *m, const struct sandbox_spec *s, struct pool_member *ready, struct entry **ret, struct error *err)
{
        char id[SANDBOX_ID_MAX + 1];
        if (ready)
                memcpy(id, ready->id, sizeof id);
        else
                sandbox_id_new(id);
        struct entry *e = entry_new(id);
        fill_info(e->info, id, s);
        entry_set_tokens(m, e, s->secure, s->allow_public_traffic);

        pthread_mutex_lock(&m->lock);
        int r = manager_limit_check(m, s->team, err);
        if (r == 0) {
                e->references++;
                entry_insert(m, e);
        }
        pthread_mutex_unlock(&m->lock);
        if (r < 0) {
                entry_unref(m, e);
                return r;
        }
        if (ready)
                e->vm = ready->vm;
        *ret = e;
        return 0;
}

/* What the agent is told when the clone wakes (docs/agent-protocol.md, op wake). `env` is always there: it replaces
 * whatever the capture left. */
static json_t *wake_request(const struct entry *e, const struct sandbox_spec *s)
{
        json_t *w = json_object();
        json_object_set_new(w, "sandbox_id", json_string(e->id));
        json_object_set_new(w, "template_id", json_string(s->template_->id));
        json_object_set_new(w, "access_token", e->envd_token[0] ? json_string(e->envd_token) : json_null());
        json_object_set_new(w, "env", s->env ? json_deep_copy(s->env) : json_object());
        json_object_set_new(w, "image_env", s->build->image_env ? json_deep_copy(s->build->image_env) : json_object());
        if (s->build->default_user)
                json_object_set_new(w, "default_user", json_string(s->build->default_user));
        if (s->build->workdir)
                json_object_set_new(w, "default_workdir", json_string(s->build->workdir));
        return w;
}

/* Gives a machine of the pool its identity. What cannot be used any more goes, and the sandbox is made the direct way. */
static bool hand_over(struct entry *e, const char *dir, const json_t *egress, const json_t *wake)
{
        struct error err = {};
        if (vm_hand_over(e->vm, egress, wake, &err) == 0)
                return true;
        log_warn("sandbox %s: %s; making it anew", e->id, err.message);
        if (vm_kill(e->vm, &err) < 0)
                log_warn("sandbox %s: %s", e->id, err.message);
        vm_close(e->vm);
        e->vm = NULL;
        if (tree_remove(dir, &err) < 0 || dir_make(dir, 0700, &err) < 0)
                log_warn("sandbox %s: %s", e->id, err.message);
        return false;
}

static int restore(struct sandbox_manager *m, struct entry *e, const struct sandbox_spec *s, const char *dir, const json_t *egress,
                   const json_t *wake, struct error *err)
{
        struct vm_template *template_ = NULL;
        int r = manager_template(m, s->build->id, &template_, err);
        if (r < 0)
                return r;
        struct vm_fork fork_ = {
                .id = e->id,
                .dir = dir,
                .template_ = template_,
                .network = m->network,
                .expires_at_ns = clock_realtime_ns() + s->timeout_s * NSEC_PER_SEC + RESTORE_SLACK_NS,
                .wake = wake,
                .egress = egress,
        };
        r = vm_restore(&fork_, &e->vm, err);
        template_cache_release(m->templates, template_);
        return r;
}

/* Starts the clock, makes the sandbox durable, and tells the shim when to end it. */
static int settle(struct sandbox_manager *m, struct entry *e, const struct sandbox_spec *s, struct error *err)
{
        pthread_mutex_lock(&m->lock);
        e->info->started_ns = clock_realtime_ns();
        entry_set_end(e, e->info->started_ns + s->timeout_s * NSEC_PER_SEC);
        pthread_mutex_unlock(&m->lock);
        json_t *record = sandbox_record_write(e->info, s->secure, s->allow_public_traffic);
        int r = records_sandbox_put(m->records, e->id, record, err);
        json_decref(record);
        return r < 0 ? r : vm_set_expiry(e->vm, entry_shim_end(e->info), err);
}

static int start(struct sandbox_manager *m, struct entry *e, const struct sandbox_spec *s, struct error *err)
{
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, e->id);
        json_t *wake = wake_request(e, s), *egress = manager_egress(e->info);
        int r = dir_make(dir, 0700, err);
        if (r == 0 && !(e->vm && hand_over(e, dir, egress, wake)))
                r = restore(m, e, s, dir, egress, wake, err);
        json_decref(wake);
        json_decref(egress);
        if (r == 0)
                r = settle(m, e, s, err);
        return r;
}

/* Shows the sandbox, and from then on its death is noticed (a VM that has died meanwhile is reported at once). */
static int show(struct sandbox_manager *m, struct entry *e, struct sandbox_info **ret, struct error *err)
{
        pthread_mutex_lock(&m->lock);
        e->state = ENTRY_RUNNING;
        struct sandbox_info *copy = sandbox_info_copy(e->info);
        pthread_mutex_unlock(&m->lock);
        int r = watch_add(m, e, err);
        if (r < 0) {
                sandbox_info_free(copy);
                return r;
        }
        *ret = copy;
        manager_log(m, e, "info", "sandbox created", json_pack("{s:s, s:s, s:I}", "template", copy->template_id, "build", copy->build_id,
                                                               "timeout_s", (json_int_t)copy->timeout_s));
        return 0;
}

/* Takes back a create that failed at any stage. */
void manager_undo_create(struct sandbox_manager *m, struct entry *e)
{
        struct error err = {};
        pthread_mutex_lock(&m->lock);
        e->state = ENTRY_KILLING;
        pthread_mutex_unlock(&m->lock);
        if (e->vm && vm_kill(e->vm, &err) < 0)
                log_warn("sandbox %s: %s", e->id, err.message);
        manager_forget(m, e->id);
        pthread_mutex_lock(&m->lock);
        entry_remove(m, e);
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
}

int manager_need_backend(struct sandbox_manager *m, struct error *err)
{
        const char *backend;
        if (template_cache_has_backend(m->templates))
                return 0;
        if (!m->need_backend)
                return error_set(err, ERROR_UNAVAILABLE, "this node has no guest kit; run 'vmon kit'");
        int r = m->need_backend(m->need_backend_data, &backend, err);
        if (r == 0)
                template_cache_set_backend(m->templates, backend);
        return r;
}

int manager_template(struct sandbox_manager *m, const char *build_id, struct vm_template **ret, struct error *err)
{
        CLEANUP_FREE char *dir = manager_build_dir(m, build_id);
        int r = manager_need_backend(m, err);
        return r < 0 ? r : template_cache_acquire(m->templates, build_id, dir, ret, err);
}

/* The entry counts as a user of the build from now on (sandbox_build_used()), and housekeeping asks for users after it has read the record: so
 * either it sees this one, or this one sees that the template was deleted. */
static int still_there(struct sandbox_manager *m, const struct sandbox_spec *s, struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        int r = records_template_get(m->records, s->template_->id, &t, err);
        return r == -ENOENT ? error_set(err, ERROR_NOT_FOUND, "template '%s' was deleted meanwhile", s->template_->id) : r;
}

static int create(struct sandbox_manager *m, const struct sandbox_spec *spec, struct sandbox_info **ret, struct error *err)
{
        int r = sandbox_timeout_check(spec->timeout_s, spec->team->max_sandbox_hours, false, err);
        if (r < 0)
                return r;
        r = m->node ? records_node_admits(m->records, m->node, err) : 0;
        if (r == 0)
                r = manager_need_backend(m, err);
        if (r < 0)
                return error_wrap(err, r, "start a sandbox");
        struct entry *e = NULL;
        struct pool_member *ready = pool_take(m->pool, spec->build->id);
        r = reserve(m, spec, ready, &e, err);
        if (r < 0) {
                if (ready)
                        pool_put_back(m->pool, ready);
                return r;
        }
        pool_member_free(ready);
        r = still_there(m, spec, err);
        if (r == 0)
                r = manager_check_network(m, e->info, err);
        if (r == 0)
                r = start(m, e, spec, err);
        if (r == 0)
                r = show(m, e, ret, err);
        if (r < 0) {
                error_wrap(err, r, "start a sandbox of template '%s'", spec->template_->id);
                manager_undo_create(m, e);
        }
        entry_unref(m, e);
        return r;
}

int sandbox_create(struct sandbox_manager *m, const struct sandbox_spec *spec, struct sandbox_info **ret, struct error *err)
{
        pool_create_begin(m->pool);
        int r = create(m, spec, ret, err);
        pool_create_end(m->pool);
        return r;
}
