/* State of one build's pipeline, shared by its phases (base.c, steps.c, finalize.c), and their guest.
 *
 * The disk is a chain of layers, bottom first. While a build VM runs, a further overlay on top takes its writes; the
 * end of a layer freezes that overlay, which becomes the next link of the chain, and puts an empty one on top. The VM
 * of a build whose base is new unpacks, provisions and runs all steps; otherwise one is booted from the chain when the
 * first step needs a guest.
 */
#pragma once

#include "build/run.h"
#include "vm/agent.h"
#include "vm/vm.h"

struct pipeline {
        struct build_run *run;
        struct build_job *job;
        struct kit *kit;
        const char *backend; /* "kvm" or "tcg" */
        char *scratch;     /* scratch/<buildID>: everything temporary of this build */
        char *unpublished; /* builds/<buildID>.tmp while it is being made */
        char *share;       /* scratch/<buildID>/share: what the guest sees read-only */
        bool force;        /* no cache from here on (template-api 5.3) */

        struct build_layer *layers; /* the chain so far, cached and new ones */
        size_t layer_count;
        char *bottom;      /* rootfs.img of the parent build below the layers, or NULL */
        const char *bottom_instance; /* its build ID */
        size_t cached_left; /* how many of the next layers the cached ones stand for */
        char key[BUILD_KEY_LEN + 1]; /* of the last layer (or the parent) */
        struct build_context context;
        json_t *image_env;
        char *init;        /* "/sbin/init" or "agent" */

        struct vm *vm;     /* the running guest, or NULL */
        char *vm_dir;
        char *top;         /* its writable overlay */
        unsigned overlays; /* made so far, for their names */
};

/* pipeline.c */

/* NULL-terminated paths of the chain with `top` (may be NULL) last; free the array only. */
const char **pipeline_chain(const struct pipeline *p, const char *top);
/* The layer new ones stand on, or NULL. */
const struct build_layer *pipeline_last(const struct pipeline *p);
/* A layer of `key` is complete. With `has_disk` what the guest wrote since the last one is frozen and becomes its
 * disk. The current context goes into it. It is kept in the cache when there is room. */
int pipeline_add_built(struct pipeline *p, const char *key, bool has_disk, struct error *err);
/* Once, before the first layer: looks for the deepest layer of this build that is in the cache, up to what is forced. `base` is
 * the key of the base layer, or NULL when the build stands on a template (whose key is then set). */
int pipeline_resume(struct pipeline *p, const char *base, struct error *err);
/* Does the cache cover the next layer, whose key is `key`? To be asked for each layer in turn. */
bool pipeline_next_is_cached(struct pipeline *p, const char *key);

/* guest.c: the build's virtual machine */

struct guest_boot {
        const char *mode, *init;       /* as in struct vm_config */
        const char *const *disks;
        const char *memory_file;
        const char *agent_mode;        /* what must answer: "initramfs", "init", "service" */
        unsigned memory_mib;
};
int guest_start(struct pipeline *p, const struct guest_boot *b, struct error *err);
/* Boots the chain with the agent as PID 1 unless a guest runs already. */
int guest_need(struct pipeline *p, struct error *err);
/* Kills the guest; its unfrozen writes are gone. Fine when none runs. */
void guest_stop(struct pipeline *p);
/* Waits until the agent answers in `mode`, after a boot or switch-root. */
int guest_await(struct pipeline *p, const char *mode, struct error *err);
/* Tells a freshly started agent the time and the template; guest_start() does, an agent behind a switch-root needs it again. */
int guest_introduce(struct pipeline *p, struct error *err);
/* Is there a /bin/sh in the guest? A step may have brought one. */
int guest_has_shell(struct pipeline *p, bool *ret, struct error *err);
/* ERROR_INVALID, naming `what`, when there is none. */
int guest_need_shell(struct pipeline *p, const char *what, struct error *err);
/* In place of provisioning scripts where no shell can run them (agent/bare.h); `ids`: as a template's last change. */
int guest_set_up_bare(struct pipeline *p, bool ids, struct error *err);
/* One request on the serial channel. */
int guest_request(struct pipeline *p, const char *op, const json_t *args, unsigned timeout_s, agent_event on_event,
                  void *data, json_t **ret, struct error *err);
/* A new empty overlay of the disk's size; the caller frees the path. */
int guest_overlay(struct pipeline *p, char **ret, struct error *err);

/* script.c: shell scripts in the guest */

struct guest_script {
        const char *const *parts; /* NULL-terminated texts, run as one script by root */
        bool login;               /* in a login shell with the build environment, else plain /bin/sh */
        const char *prefix;       /* of its log lines, "" for none */
        unsigned timeout_s;
        const char *what;         /* for the error: "configuration script" */
};
/* Runs it; output is logged at debug, warnings at warn. `ret` (may be NULL) is an object of what it set. A failure
 * is the one line of script_output_failure(). */
int guest_run_script(struct pipeline *p, const struct guest_script *s, json_t **ret, struct error *err);

/* SHA-256 over all provisioning scripts: part of a base's key. */
void guest_scripts_hash(char *ret);

/* A process of the build in the given context: argv /bin/bash -l -c COMMAND. Free with guest_command_free(). */
struct guest_command {
        struct agent_process process;
        const char *argv[5];
        char **env;
};
void guest_command_init(struct guest_command *c, const char *command, const struct build_context *context);
void guest_command_free(struct guest_command *c);

/* provision.c: a profile's packages and settings, in a freshly unpacked file system */
int pipeline_provision(struct pipeline *p, struct error *err);

/* base.c, steps.c, finalize.c: the phases */
int pipeline_base(struct pipeline *p, struct error *err);
int pipeline_steps(struct pipeline *p, struct error *err);
int pipeline_finalize(struct pipeline *p, struct build_outcome *ret, struct error *err);

/* steps.c, step_env.c, step_copy.c: parts of one step. `s` has passed build_plan_parse(). */
int pipeline_env_step(struct pipeline *p, const struct build_step *s, struct error *err);
int pipeline_copy_step(struct pipeline *p, const struct build_step *s, struct error *err);
/* Runs a step's script in root's login shell with the build environment, `assign` in front; `ret` as of guest_run_script(). */
int pipeline_step_script(struct pipeline *p, const char *what, const char *assign, const char *script, json_t **ret, struct error *err);

/* start.c: start and ready commands of the finalize VM (template-api 13.2, 13.3) */
int pipeline_start_and_wait(struct pipeline *p, const char *start_cmd, const char *ready_cmd,
                            const struct build_context *context, struct error *err);

/* The log line of a layer: "[CACHED ]<prefix> <text> [<hash>]". */
void pipeline_log_layer(const struct pipeline *p, bool cached, const char *prefix, const char *text, const char *key);
