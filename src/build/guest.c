#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"

#include "build/pipeline.h"
#include "vm/disk.h"

int guest_await(struct pipeline *p, const char *mode, struct error *err)
{
        struct agent *a = NULL;
        int r = agent_connect(p->vm, mode, BUILD_BOOT_SECONDS, build_run_stopped, p->run, &a, err);

        if (r < 0)
                return error_wrap(err, r, "waiting for the agent of the build VM");
        agent_close(a);
        return 0;
}

/* A channel for each request: vm_disk_layer() and vm_capture() need it too. */
int guest_request(struct pipeline *p, const char *op, const json_t *args, unsigned timeout_s, agent_event on_event,
                  void *data, json_t **ret, struct error *err)
{
        struct agent *a = NULL;
        int r = agent_connect(p->vm, NULL, BUILD_BOOT_SECONDS, build_run_stopped, p->run, &a, err);

        if (r < 0)
                return r;
        r = agent_request(a, op, args, timeout_s, on_event, data, ret, err);
        agent_close(a);
        return r;
}

int guest_has_shell(struct pipeline *p, bool *ret, struct error *err)
{
        CLEANUP_JSON json_t *result = NULL;
        int r = guest_request(p, "ping", NULL, BUILD_BOOT_SECONDS, NULL, NULL, &result, err);

        if (r >= 0)
                *ret = json_is_true(json_object_get(result, "shell"));
        return r;
}

int guest_need_shell(struct pipeline *p, const char *what, struct error *err)
{
        bool shell = false;
        int r = guest_has_shell(p, &shell, err);

        if (r < 0 || shell)
                return r;
        return error_set(err, ERROR_INVALID, "%s needs a shell, and the image has no /bin/sh: COPY a static one there or start from "
                         "another image", what);
}

int guest_set_up_bare(struct pipeline *p, bool ids, struct error *err)
{
        CLEANUP_JSON json_t *args = json_object();

        if (ids) {
                json_object_set_new(args, "template_id", json_string(p->job->template_id));
                json_object_set_new(args, "build_id", json_string(p->job->build_id));
        }
        return guest_request(p, "set-up-bare", args, BUILD_CONFIGURE_SECONDS, NULL, NULL, NULL, err);
}

int guest_introduce(struct pipeline *p, struct error *err)
{
        CLEANUP_JSON json_t *args = json_object();

        json_object_set_new(args, "time_ns", json_integer(clock_realtime_ns()));
        json_object_set_new(args, "template_id", json_string(p->job->template_id));
        return guest_request(p, "init", args, BUILD_BOOT_SECONDS, NULL, NULL, NULL, err);
}

int guest_start(struct pipeline *p, const struct guest_boot *b, struct error *err)
{
        const struct build_settings *s = p->run->settings;
        CLEANUP_FREE char *id = xasprintf("b-%s", p->job->build_id);
        struct vm_config c = {
                .id = id,
                .dir = p->vm_dir,
                .kit = p->kit,
                .backend = p->backend,
                .cpu_model = s->cpu_model,
                .vcpus = p->job->vcpus,
                .memory_mib = b->memory_mib,
                .network = (enum vm_network)s->network,
                .disks = b->disks,
                .share_dir = b->memory_file ? NULL : p->share,
                .memory_file = b->memory_file,
                .mode = b->mode,
                .init = b->init,
                /* The build's own limit ends it earlier; this is for a driver that is gone. */
                .expires_at_ns = clock_realtime_ns() + (int64_t)(s->max_seconds + 300) * NSEC_PER_SEC,
        };
        int r;

        if (build_run_stopped(p->run))
                return error_set(err, ERROR_CANCELLED, "the build was told to stop");
        tree_remove(p->vm_dir, NULL);
        r = dir_make(p->vm_dir, 0700, err);
        if (r < 0)
                return r;
        build_run_vm(p->run, p->vm_dir);
        r = vm_boot(&c, &p->vm, err);
        if (r < 0) {
                build_run_vm(p->run, NULL);
                return error_wrap(err, r, "starting the build VM (kit %s; 'vmon kit' repairs a damaged one, 'vmon doctor' checks the rest)",
                                  p->kit->version);
        }
        r = guest_await(p, b->agent_mode, err);
        if (r < 0 && r != -ECANCELED && !build_run_stopped(p->run) && streq(b->agent_mode, "initramfs"))
                return error_wrap(err, r, "the kernel of kit %s did not boot ('vmon kit' repairs a damaged kit, 'vmon doctor' checks "
                                  "the hypervisor)", p->kit->version);
        if (r >= 0)
                r = guest_introduce(p, err);
        return r;
}

int guest_overlay(struct pipeline *p, char **ret, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("%s/overlay-%u.qcow2", p->scratch, p->overlays++);
        CLEANUP_FREE const char **chain = pipeline_chain(p, p->top);
        uint64_t size;
        int r = disk_size(chain[0], &size, err);

        if (r >= 0)
                r = disk_overlay_create(path, size, err);
        if (r >= 0)
                *ret = STEAL(path);
        return r;
}

int guest_need(struct pipeline *p, struct error *err)
{
        CLEANUP_FREE const char **chain = NULL;
        int r;

        if (p->vm)
                return 0;
        r = guest_overlay(p, &p->top, err);
        if (r < 0)
                return r;
        chain = pipeline_chain(p, p->top);
        r = guest_start(p,
                        &(struct guest_boot){.mode = "root", .init = "agent", .disks = chain, .agent_mode = "init",
                                             .memory_mib = p->job->memory_mb},
                        err);
        build_log_time(&p->run->log, "boot of the building VM");
        return r;
}

void guest_stop(struct pipeline *p)
{
        if (p->vm) {
                vm_kill(p->vm, NULL);
                vm_close(p->vm);
                p->vm = NULL;
        }
        build_run_vm(p->run, NULL);
        if (p->top)
                unlink(p->top);
        free(p->top);
        p->top = NULL;
}
