#include "build/pipeline.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"
#include "build/limits.h"

#define LAYER_HASH_SHOWN 12
/* From the end of QEMU's sockets to that of its shim. */
#define END_WAIT_MS 1000
#define DISK_SPACE_SECONDS 10
/* A guest disk with less free than this counts as full: what failed for want of room left a little. */
#define DISK_FULL_BYTES (1024 * 1024)
#define DISK_FULL_INODES 16

const char **pipeline_chain(const struct pipeline *p, const char *top)
{
        const char **chain = xcalloc(p->layer_count + 3, sizeof(*chain));
        size_t n = 0;

        if (p->bottom)
                chain[n++] = p->bottom;
        for (size_t i = 0; i < p->layer_count; i++)
                if (p->layers[i].disk)
                        chain[n++] = p->layers[i].disk;
        if (top)
                chain[n++] = top;
        return chain;
}

const struct build_layer *pipeline_last(const struct pipeline *p)
{
        return p->layer_count ? &p->layers[p->layer_count - 1] : NULL;
}

static void append(struct pipeline *p, struct build_layer *l)
{
        p->layers = xreallocarray(p->layers, p->layer_count + 1, sizeof(*p->layers));
        p->layers[p->layer_count++] = *l;
        *l = (struct build_layer){};
}

/* The keys of this build's layers up to the first forced step, from `base` or from what stands on the template. They follow from
 * the request alone. The caller frees `ret`. */
static size_t layer_keys(const struct pipeline *p, const char *base, char (**ret)[BUILD_KEY_LEN + 1])
{
        const struct build_plan *plan = &p->job->plan;
        char (*keys)[BUILD_KEY_LEN + 1] = xcalloc(plan->step_count + 2, sizeof(*keys));
        const char *previous = base ? base : p->key;
        size_t n = 0;

        if (base)
                strcpy(keys[n++], base);
        if (p->job->template_version >= 21) {
                build_key_user(previous, keys[n]);
                previous = keys[n++];
        }
        for (size_t i = 0; i < plan->step_count && !plan->steps[i].force; i++) {
                build_key_step(previous, &plan->steps[i], keys[n]);
                previous = keys[n++];
        }
        *ret = keys;
        return n;
}

static void take_hit(struct pipeline *p, struct build_cache_hit *h)
{
        const struct build_layer *last = &h->layers[h->layer_count - 1];

        build_context_free(&p->context);
        build_context_copy(&p->context, &last->context);
        json_decref(p->image_env);
        p->image_env = json_incref(last->image_env);
        free(p->init);
        p->init = xstrdup(last->init);
        p->cached_left = h->depth + 1;
        for (size_t i = 0; i < h->layer_count; i++)
                append(p, &h->layers[i]);
}

int pipeline_resume(struct pipeline *p, const char *base, struct error *err)
{
        CLEANUP_FREE char *prefix = path_join(p->scratch, "cached");
        CLEANUP_FREE char (*keys)[BUILD_KEY_LEN + 1] = NULL;
        CLEANUP_FREE const char **list = NULL;
        struct build_cache_hit hit = {};
        size_t n;
        int r;

        if (p->force)
                return 0;
        n = layer_keys(p, base, &keys);
        list = xcalloc(n + 1, sizeof(*list));
        for (size_t i = 0; i < n; i++)
                list[i] = keys[i];
        r = build_cache_get(p->run->cache, list, n, prefix, &hit, err);
        if (r < 0)
                return r;
        if (hit.damaged)
                build_log(&p->run->log, LOG_LEVEL_WARN, "The step cache had %u damaged layers, which are built again", hit.damaged);
        if (hit.layer_count)
                take_hit(p, &hit);
        build_cache_hit_free(&hit);
        return 0;
}

bool pipeline_next_is_cached(struct pipeline *p, const char *key)
{
        if (p->cached_left == 0)
                return false;
        p->cached_left--;
        strcpy(p->key, key);
        return true;
}

/* Freezes the guest's overlay: it becomes `layer`'s disk, and an empty one takes its place. */
static int freeze(struct pipeline *p, struct build_layer *layer, struct error *err)
{
        CLEANUP_FREE char *next = NULL;
        int r;

        r = guest_request(p, "step-end", NULL, BUILD_CONFIGURE_SECONDS, NULL, NULL, NULL, err);
        if (r >= 0)
                r = guest_overlay(p, &next, err);
        if (r >= 0)
                r = vm_disk_layer(p->vm, next, err);
        if (r < 0)
                return r;
        layer->disk = STEAL(p->top);
        p->top = STEAL(next);
        return 0;
}

int pipeline_add_built(struct pipeline *p, const char *key, bool has_disk, struct error *err)
{
        const struct build_layer *last = pipeline_last(p);
        struct build_layer l = {};
        int r = has_disk ? freeze(p, &l, err) : 0;

        if (r >= 0) {
                strcpy(l.key, key);
                build_context_copy(&l.context, &p->context);
                l.image_env = json_incref(p->image_env);
                l.init = xstrdup(p->init);
                r = build_cache_put(p->run->cache, &l, last, p->bottom_instance, p->force, err);
        }
        if (r < 0) {
                build_layer_free(&l);
                return r;
        }
        strcpy(p->key, key);
        append(p, &l);
        build_log_time(&p->run->log, "layer captured");
        return 0;
}

void pipeline_log_layer(const struct pipeline *p, bool cached, const char *prefix, const char *text, const char *key)
{
        build_log(&p->run->log, LOG_LEVEL_INFO, "%s[%s] %s [%.*s]", cached ? "CACHED " : "", prefix, text,
                  LAYER_HASH_SHOWN, key);
}

static int prepare(struct pipeline *p, struct error *err)
{
        const struct build_settings *s = p->run->settings;
        CLEANUP_FREE char *files = NULL, *cache = build_path(s, "cache", NULL);
        struct utsname u;
        int r;

        p->scratch = build_path(s, "scratch", p->job->build_id);
        p->share = path_join(p->scratch, "share");
        p->vm_dir = path_join(p->scratch, "vm");
        files = path_join(p->share, "files");
        r = dir_make(files, 0755, err);
        if (r < 0)
                return r;
        uname(&u);
        r = kit_open(s->kit_root, u.machine, NULL, &p->kit, err);
        if (r < 0)
                return r;
        return hypervisor_select(p->kit, s->hypervisor, cache, &p->backend, NULL, err);
}

/* The uploaded archives of this build appear in the guest's share. One that vanished since the trigger fails its own step. */
static int share_contexts(struct pipeline *p, struct error *err)
{
        for (size_t i = 0; i < p->job->plan.step_count; i++) {
                const char *hash = p->job->plan.steps[i].files_hash;
                CLEANUP_FREE char *from = NULL, *to = NULL;

                if (!hash)
                        continue;
                from = xasprintf("%s/files/%s/%s", p->run->settings->data_dir, p->job->team_slug, hash);
                to = xasprintf("%s/files/%s", p->share, hash);
                if (link(from, to) < 0 && errno != EEXIST && errno != ENOENT)
                        return error_errno(err, errno, "link the build context %s", hash);
        }
        return 0;
}

static void clean_up(struct pipeline *p)
{
        guest_stop(p);
        for (size_t i = 0; i < p->layer_count; i++) {
                build_cache_release(p->run->cache, &p->layers[i]);
                build_layer_free(&p->layers[i]);
        }
        free(p->layers);
        if (p->scratch)
                tree_remove(p->scratch, NULL);
        if (p->unpublished)
                tree_remove(p->unpublished, NULL);
        kit_free(p->kit);
        build_context_free(&p->context);
        json_decref(p->image_env);
        free(p->bottom);
        free(p->init);
        free(p->top);
        free(p->scratch);
        free(p->unpublished);
        free(p->share);
        free(p->vm_dir);
}

/* The machine's end behind a failed call; what the step itself says (INVALID) needs no waiting for one. */
static void explain_end(struct pipeline *p, int r, struct error *err)
{
        CLEANUP_FREE char *why = NULL;
        bool full = false;

        if (!p->vm || !vm_end_reason(p->vm, err->kind == ERROR_INVALID ? 0 : END_WAIT_MS, &why, &full))
                return;
        if (!strstr(err->message, why))
                error_wrap(err, r, "the build VM has ended: %s", why);
        if (full)
                err->number = ENOSPC;
}

/* A command only says that it failed; that the template's disk is full is for us to see. */
static void explain_guest_disk(struct pipeline *p, struct error *err)
{
        CLEANUP_FREE char *what = NULL;
        CLEANUP_JSON json_t *space = NULL;
        json_int_t bytes, inodes;

        if (!p->vm || err->kind != ERROR_INVALID ||
            guest_request(p, "disk-space", NULL, DISK_SPACE_SECONDS, NULL, NULL, &space, NULL) < 0)
                return;
        bytes = json_int(space, "free_bytes", INT64_MAX);
        inodes = json_int(space, "free_inodes", INT64_MAX);
        if (bytes >= DISK_FULL_BYTES && inodes >= DISK_FULL_INODES)
                return;
        what = xstrdup(err->message);
        error_set(err, ERROR_INVALID, "%s (the template's disk of %u MB %s; 'vmon admin set-limits --max-disk-mb' gives the team a larger one)",
                  what, p->job->disk_mb, bytes < DISK_FULL_BYTES ? "is full" : "has no free inode left");
}

/* Before anything is cleaned up: what the host has to do with the failure, and the mend (issue: bad input). */
static int explain(struct pipeline *p, int r, struct error *err)
{
        const char *data = p->run->settings->data_dir;
        unsigned long long left = 0;
        struct statvfs s;

        if (build_run_stopped(p->run))
                return r;
        explain_end(p, r, err);
        explain_guest_disk(p, err);
        if (err->number != ENOSPC && err->number != EDQUOT)
                return r;
        if (statvfs(data, &s) == 0)
                left = (unsigned long long)s.f_bavail * s.f_frsize >> 20;
        err->kind = ERROR_UNAVAILABLE;
        return error_wrap(err, r, "the disk of this node is full (%s has %llu MB left; free some, for example with 'vmon admin gc' or a "
                          "smaller --step-cache-mb, and build again)", data, left);
}

static int run_phases(struct pipeline *p, struct build_outcome *ret, struct error *err)
{
        int r;

        build_run_phase(p->run, "base");
        r = prepare(p, err);
        if (r >= 0)
                r = share_contexts(p, err);
        if (r >= 0)
                r = pipeline_base(p, err);
        if (r >= 0)
                r = pipeline_steps(p, err);
        if (r < 0)
                return r;
        guest_stop(p);
        build_run_phase(p->run, "finalize");
        return pipeline_finalize(p, ret, err);
}

int build_run_pipeline(struct build_run *run, struct build_outcome *ret, struct error *err)
{
        struct pipeline p = {.run = run, .job = run->job, .force = run->job->plan.force, .init = xstrdup("agent")};
        int r;

        build_log_time(&run->log, "");
        build_log(&run->log, LOG_LEVEL_INFO, "Building template %s/%s", run->job->template_id, run->job->build_id);
        r = run_phases(&p, ret, err);
        if (r < 0)
                r = explain(&p, r, err);
        clean_up(&p);
        return r;
}
