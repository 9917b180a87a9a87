/* Copies of a running sandbox: forks of it, and snapshots as templates. Both start from what vm_save() leaves: the changed memory,
 * the devices and the overlay of one instant, in a directory that nothing writes to any more.
 *
 * A fork is a sandbox that wakes from a pause in which it has become somebody else: its directory gets the overlay and, as
 * `paused`, links to the other files.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"

#define BUILD_JSON_MAX (64u << 10)

/* Claims the right to copy: a reference to a running sandbox, or NULL with *ret. Waits for a resume that is under way. */
static struct entry *begin_save(struct sandbox_manager *m, const struct team *team, const char *id, int *ret, struct error *err)
{
        struct entry *e;
        pthread_mutex_lock(&m->lock);
        while ((e = entry_find(m, id)) && entry_visible(e, team, clock_realtime_ns()) && e->state == ENTRY_RESUMING)
                pthread_cond_wait(&m->changed, &m->lock);
        if (!e || !entry_visible(e, team, clock_realtime_ns()))
                *ret = manager_not_found(id, err);
        else if (!entry_alive(e, clock_realtime_ns()))
                *ret = error_set(err, ERROR_CONFLICT, "Sandbox \"%s\" is paused and cannot be forked; resume it first", id);
        else if (e->saving)
                *ret = error_set(err, ERROR_CONFLICT, "Sandbox \"%s\" is being copied already; try again in a moment", id);
        else
                *ret = 0;
        if (*ret == 0 && e) {
                e->saving = true;
                e->references++;
        } else {
                e = NULL;
        }
        pthread_mutex_unlock(&m->lock);
        return e;
}

static void end_save(struct sandbox_manager *m, struct entry *e)
{
        pthread_mutex_lock(&m->lock);
        e->saving = false;
        pthread_mutex_unlock(&m->lock);
        entry_unref(m, e);
}

/* Saves the sandbox into `into` while nobody pauses or ends it, and while it cannot expire. */
static int save(struct sandbox_manager *m, struct entry *e, const char *into, struct error *err)
{
        json_t *wake = manager_wake_again(e);
        int64_t began = clock_monotonic_ns();
        uint64_t pages = 0;
        pthread_mutex_lock(&e->vm_lock);
        pthread_mutex_lock(&m->lock);
        bool alive = entry_alive(e, clock_realtime_ns());
        int64_t end = entry_shim_end(e->info);
        pthread_mutex_unlock(&m->lock);
        int r = alive ? vm_set_expiry(e->vm, 0, err) : manager_not_found(e->id, err);
        if (r == 0) {
                r = vm_save(e->vm, e->info->memory_mb, into, wake, &pages, err);
                vm_set_expiry(e->vm, end, NULL);
        }
        pthread_mutex_unlock(&e->vm_lock);
        json_decref(wake);
        if (r == 0)
                log_info("sandbox %s saved while it runs: %llu pages of its memory had changed, frozen for %lld ms", e->id,
                         (unsigned long long)pages, (long long)((clock_monotonic_ns() - began) / NSEC_PER_MSEC));
        return r;
}

static int copy_file(const char *from_dir, const char *to_dir, const char *name, struct error *err)
{
        CLEANUP_FREE char *from = path_join(from_dir, name), *to = path_join(to_dir, name);
        CLEANUP_CLOSE int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        return in < 0 || out < 0 ? error_errno(err, errno, "copy %s to %s", from, to) : fd_copy_sparse(in, out, err);
}

static int fork_directory(struct sandbox_manager *m, const char *id, const char *saved, struct error *err)
{
        static const char *const shared[] = { "device-state", "memory-delta", "paused.json" };
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, id), *paused = manager_paused_dir(m, id);
        int r = dir_make(dir, 0700, err);
        if (r == 0)
                r = dir_make(paused, 0700, err);
        for (size_t i = 0; r == 0 && i < sizeof shared / sizeof *shared; i++) {
                CLEANUP_FREE char *from = path_join(saved, shared[i]), *to = path_join(paused, shared[i]);
                if (link(from, to) < 0)
                        r = error_errno(err, errno, "link %s to %s", from, to);
        }
        return r < 0 ? r : copy_file(saved, dir, "overlay.qcow2", err);
}

/* A place in the team's limit for the copy, and an entry STARTING in the table; the caller gets a reference. */
static struct entry *fork_entry(struct sandbox_manager *m, const struct team *team, const struct entry *of, int64_t timeout_s, int *ret,
                                struct error *err)
{
        char id[SANDBOX_ID_LEN + 1];
        sandbox_id_new(id);
        struct entry *e = entry_new(id);
        sandbox_info_free(e->info);
        pthread_mutex_lock(&m->lock);
        e->info = sandbox_info_copy(of->info);
        e->info->id = (free(e->info->id), xstrdup(id));
        e->info->timeout_s = timeout_s;
        e->info->started_ns = e->info->ends_ns = 0;
        entry_set_tokens(m, e, of->envd_token[0] != '\0', of->public_traffic);
        *ret = team ? manager_limit_check(m, team, err) : 0;
        if (*ret == 0) {
                e->references++;
                entry_insert(m, e);
        }
        pthread_mutex_unlock(&m->lock);
        if (*ret == 0)
                return e;
        entry_unref(m, e);
        return NULL;
}

static void fork_one(struct sandbox_manager *m, const struct team *team, const struct entry *of, const char *saved, int64_t timeout_s,
                     struct sandbox_fork *ret)
{
        bool committed;
        int r;
        struct entry *e = fork_entry(m, team, of, timeout_s, &r, &ret->error);
        if (!e)
                return;
        r = fork_directory(m, e->id, saved, &ret->error);
        if (r == 0)
                r = manager_resume(m, e, timeout_s, false, &ret->info, &committed, &ret->error);
        if (r == 0)
                manager_log(m, e, "info", "sandbox created", json_pack("{s:s, s:I}", "fork_of", of->id, "timeout_s", (json_int_t)timeout_s));
        if (r < 0) {
                error_wrap(&ret->error, r, "fork sandbox %s", of->id);
                manager_undo_create(m, e);
        }
        entry_unref(m, e);
}

int sandbox_fork(struct sandbox_manager *m, const struct team *team, const char *id, int64_t timeout_s, size_t count,
                 struct sandbox_fork *ret, struct error *err)
{
        int r = 0;
        struct entry *e = begin_save(m, team, id, &r, err);
        if (!e)
                return r;
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, e->id), *saved = path_join(dir, "saved");
        struct error ignored = {};
        r = tree_remove(saved, err);
        if (r == 0)
                r = save(m, e, saved, err);
        for (size_t i = 0; r == 0 && i < count; i++)
                fork_one(m, team, e, saved, timeout_s, &ret[i]);
        if (tree_remove(saved, &ignored) < 0)
                log_warn("sandbox %s: %s", id, ignored.message);
        end_save(m, e);
        return r < 0 ? error_wrap(err, r, "fork sandbox %s", id) : 0;
}

/* What the parent build left for its children, under the new names. */
static int write_build_json(const char *parent, const char *dir, const char *template_id, const char *build_id, struct error *err)
{
        CLEANUP_FREE char *from = path_join(parent, "build.json"), *to = path_join(dir, "build.json"), *text = NULL;
        CLEANUP_BUF struct buf b = {};
        CLEANUP_JSON json_t *j = NULL;
        int r = file_read(from, BUILD_JSON_MAX, &b, err);
        if (r == 0)
                r = json_parse(buf_str(&b), b.len, &j, err);
        if (r < 0)
                return r;
        json_object_set_new(j, "buildID", json_string(build_id));
        json_object_set_new(j, "templateID", json_string(template_id));
        text = json_dumps(j, JSON_COMPACT);
        return file_write_atomic(to, text, strlen(text), 0644, err);
}

static int make_artifacts(struct sandbox_manager *m, struct entry *e, const char *template_id, const char *build_id, const char *part,
                          struct error *err)
{
        CLEANUP_FREE char *parent = manager_build_dir(m, e->info->build_id), *to = manager_build_dir(m, build_id);
        CLEANUP_FREE char *saved = path_join(part, "saved");
        int r = save(m, e, saved, err);
        if (r == 0)
                r = vm_saved_to_template(parent, saved, part, err);
        if (r == 0)
                r = write_build_json(parent, part, template_id, build_id, err);
        if (r == 0)
                r = tree_remove(saved, err);
        return r < 0 ? r : file_publish(part, to, err);
}

int sandbox_snapshot(struct sandbox_manager *m, const struct team *team, const char *id, const char *template_id, const char *build_id,
                     struct error *err)
{
        CLEANUP_FREE char *part = xasprintf("%s/builds/%s.tmp", m->data_dir, build_id);
        struct vm_template *kept = NULL; /* the parent's artifacts, which the sandbox's end would let go */
        int r = 0;
        struct entry *e = begin_save(m, team, id, &r, err);
        if (!e)
                return r;
        r = manager_template(m, e->info->build_id, &kept, err);
        if (r == 0)
                r = dir_make(part, 0755, err);
        if (r == 0)
                r = make_artifacts(m, e, template_id, build_id, part, err);
        if (r < 0)
                tree_remove(part, NULL);
        if (kept)
                template_cache_release(m->templates, kept);
        end_save(m, e);
        return r < 0 ? error_wrap(err, r, "make a snapshot of sandbox %s", id) : 0;
}
