/* The finalize phase (template-api 13): a fresh VM with the distribution's init, the last changes, start and ready commands,
 * and the snapshot. Everything is made in builds/<buildID>.tmp and appears under its name only when it is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/scripts.h"
#include "build/shell.h"
#include "store/records.h"
#include "vm/disk.h"
#include "vm/manifest.h"
#include "vm/sparse.h"

/* Which pair of commands, in which context (template-api 13.3). */
static void choose_commands(const struct pipeline *p, struct build_outcome *o)
{
        const struct build_plan *plan = &p->job->plan;
        const struct build_parent *parent = p->job->parent;

        if (plan->start_cmd || plan->ready_cmd || !parent) {
                o->start_cmd = xstrdup_or_null(plan->start_cmd);
                o->ready_cmd = xstrdup_or_null(plan->ready_cmd);
                build_context_copy(&o->start_context, &p->context);
        } else {
                o->start_cmd = xstrdup_or_null(parent->start_cmd);
                o->ready_cmd = xstrdup_or_null(parent->ready_cmd);
                build_context_copy(&o->start_context, &parent->start_context);
        }
        if (o->start_cmd && !o->ready_cmd)
                o->ready_cmd = xstrdup(BUILD_READY_DEFAULT);
}

static int configure(struct pipeline *p, struct error *err)
{
        CLEANUP_FREE char *template_id = shell_quote(p->job->template_id), *build_id = shell_quote(p->job->build_id);
        CLEANUP_FREE char *assign = xasprintf("TEMPLATE_ID=%s\nBUILD_ID=%s", template_id, build_id);
        const char *parts[] = {assign, guest_lib, guest_user, guest_configure, NULL};
        bool shell = false;
        int r = guest_has_shell(p, &shell, err);

        if (r < 0)
                return r;
        if (!shell)
                return guest_set_up_bare(p, true, err);
        return guest_run_script(p, &(struct guest_script){.parts = parts, .prefix = "[config] ", .timeout_s = BUILD_CONFIGURE_SECONDS,
                                                          .what = "configuration script"}, NULL, err);
}

static int settle(struct pipeline *p, struct error *err)
{
        const char *parts[] = {guest_lib, guest_end, NULL};
        bool shell = false;
        int r = guest_has_shell(p, &shell, err);

        if (r < 0 || !shell) /* the capture syncs */
                return r;
        return guest_run_script(p, &(struct guest_script){.parts = parts, .prefix = "[config] ", .timeout_s = BUILD_CONFIGURE_SECONDS,
                                                          .what = "configuration script"}, NULL, err);
}

/* The agent's defaults are thereby part of the snapshot. Version 2.0 knows neither user nor workdir (template-api 10.2). */
static int init_agent(struct pipeline *p, struct error *err)
{
        bool old = p->job->template_version < 21;
        CLEANUP_JSON json_t *args = json_object();

        json_object_set_new(args, "template_id", json_string(p->job->template_id));
        json_object_set_new(args, "default_user", json_string(old ? "user" : p->context.user));
        if (!old && p->context.workdir)
                json_object_set_new(args, "default_workdir", json_string(p->context.workdir));
        json_object_set(args, "image_env", p->image_env);
        json_object_set_new(args, "time_ns", json_integer(clock_realtime_ns()));
        return guest_request(p, "init", args, BUILD_BOOT_SECONDS, NULL, NULL, NULL, err);
}

static int read_agent_version(struct pipeline *p, struct build_outcome *o, struct error *err)
{
        CLEANUP_JSON json_t *result = NULL;
        int r = guest_request(p, "ping", NULL, BUILD_BOOT_SECONDS, NULL, NULL, &result, err);

        if (r < 0)
                return r;
        o->envd_version = xstrdup(json_str(result, "version") ? json_str(result, "version") : "");
        return 0;
}

static int boot(struct pipeline *p, const char *dir, struct error *err)
{
        CLEANUP_FREE char *memory = path_join(dir, "memory");
        CLEANUP_FREE const char **chain = NULL;
        int r = guest_overlay(p, &p->top, err);

        if (r < 0)
                return r;
        chain = pipeline_chain(p, p->top);
        return guest_start(p,
                           &(struct guest_boot){.mode = "root", .init = p->init, .disks = chain, .memory_file = memory,
                                                .agent_mode = streq(p->init, "agent") ? "init" : "service",
                                                .memory_mib = p->job->memory_mb},
                           err);
}

/* Everything that happens in the finalize VM, up to the moment that is captured. */
static int run_guest(struct pipeline *p, const char *dir, struct build_outcome *o, struct error *err)
{
        int r = boot(p, dir, err);

        build_log_time(&p->run->log, "boot of the final VM");
        if (r >= 0)
                r = read_agent_version(p, o, err);
        if (r >= 0)
                r = configure(p, err);
        if (r >= 0)
                r = init_agent(p, err);
        build_log_time(&p->run->log, "configure");
        if (r >= 0 && (o->start_cmd || o->ready_cmd))
                r = guest_need_shell(p, o->start_cmd ? "the start command" : "the ready command", err);
        if (r >= 0)
                r = pipeline_start_and_wait(p, o->start_cmd, o->ready_cmd, &o->start_context, err);
        build_log_time(&p->run->log, "start and ready commands");
        if (r >= 0)
                r = settle(p, err);
        build_log_time(&p->run->log, "settle");
        return r;
}

/* For children of this template: what boots it. The rest is in the driver's store. */
static int write_build_json(const struct pipeline *p, const char *dir, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "build.json"), *text = NULL;
        CLEANUP_JSON json_t *j = json_pack("{s:s,s:s,s:s}", "buildID", p->job->build_id, "templateID", p->job->template_id, "init",
                                           p->init);

        text = json_text(j);
        return file_write_atomic(path, text, strlen(text), 0644, err);
}

static int flatten(struct pipeline *p, const char *dir, struct error *err)
{
        CLEANUP_FREE const char **chain = pipeline_chain(p, p->top);
        CLEANUP_FREE char *rootfs = path_join(dir, "rootfs.img");

        return disk_flatten(chain, rootfs, err);
}

static int write_manifest(struct pipeline *p, const char *dir, struct error *err)
{
        const struct build_settings *s = p->run->settings;
        struct vm_manifest m = {};
        int r;

        vm_manifest_describe(&m, p->kit, p->backend, s->cpu_model, p->job->vcpus, p->job->memory_mb);
        r = vm_manifest_write(dir, &m, err);
        vm_manifest_free(&m);
        return r;
}

/* While the VM ran, its memory file belonged to its uid, which a later VM may get. Free pages that the guest reported are holes
 * already; pages of zeros become some. */
static int take_memory_back(const struct pipeline *p, const char *dir, uint64_t running, struct error *err)
{
        CLEANUP_FREE char *memory = path_join(dir, "memory");
        CLEANUP_CLOSE int fd = -1;
        uint64_t zeros = 0, allocated;
        int r;

        if (chown(memory, geteuid(), getegid()) < 0 || chmod(memory, 0600) < 0)
                return error_errno(err, errno, "take back %s", memory);
        fd = open(memory, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return error_errno(err, errno, "open %s", memory);
        allocated = tree_allocated_bytes(memory);
        r = sparse_punch_zeros(fd, &zeros, err);
        if (r < 0)
                return error_wrap(err, r, "trim %s", memory);
        build_log(&p->run->log, LOG_LEVEL_DEBUG, "Snapshot memory: %u MB; %llu MB allocated while running, %llu MB without caches, "
                  "%llu MB without zeros", p->job->memory_mb, (unsigned long long)(running >> 20), (unsigned long long)(allocated >> 20),
                  (unsigned long long)((allocated - zeros) >> 20));
        return 0;
}

static int capture(struct pipeline *p, const char *dir, struct error *err)
{
        CLEANUP_FREE char *memory = path_join(dir, "memory");
        uint64_t running = tree_allocated_bytes(memory);
        int r = vm_capture(p->vm, dir, err);

        if (r >= 0) {
                vm_close(p->vm);
                p->vm = NULL;
                build_log_time(&p->run->log, "snapshot");
                r = take_memory_back(p, dir, running, err);
                build_log_time(&p->run->log, "trim the memory");
        }
        if (r >= 0)
                r = flatten(p, dir, err);
        build_log_time(&p->run->log, "flatten the disk");
        if (r >= 0)
                r = write_build_json(p, dir, err);
        if (r >= 0)
                r = write_manifest(p, dir, err);
        build_log_time(&p->run->log, "digests");
        return r;
}

static int publish(struct pipeline *p, const char *tmp, struct build_outcome *o, struct error *err)
{
        CLEANUP_FREE char *to = build_path(p->run->settings, "builds", p->job->build_id), *rootfs = NULL;
        int r = file_publish(tmp, to, err);

        if (r < 0)
                return r;
        rootfs = path_join(to, "rootfs.img");
        o->disk_bytes = tree_allocated_bytes(rootfs);
        build_context_copy(&o->context, &p->context);
        if (p->job->template_version < 21) {
                build_context_set_user(&o->context, "user");
                free(STEAL(o->context.workdir));
        }
        o->image_env = json_deep_copy(p->image_env);
        return 0;
}

int pipeline_finalize(struct pipeline *p, struct build_outcome *ret, struct error *err)
{
        CLEANUP_FREE char *name = xasprintf("%s.tmp", p->job->build_id);
        char scripts[BUILD_KEY_LEN + 1], key[BUILD_KEY_LEN + 1];
        struct build_outcome o = {};
        int r;

        guest_scripts_hash(scripts);
        build_key_finalize(p->key, scripts, key);
        pipeline_log_layer(p, false, "finalize", "Finalizing template build", key);
        choose_commands(p, &o);
        p->unpublished = build_path(p->run->settings, "builds", name);
        tree_remove(p->unpublished, NULL);
        r = dir_make(p->unpublished, 0755, err);
        if (r >= 0)
                r = run_guest(p, p->unpublished, &o, err);
        if (r >= 0)
                r = capture(p, p->unpublished, err);
        if (r >= 0)
                r = publish(p, p->unpublished, &o, err);
        if (r < 0) { /* the guest stays for the explanation of the failure */
                build_outcome_free(&o);
                return r;
        }
        guest_stop(p);
        *ret = o;
        return 0;
}
