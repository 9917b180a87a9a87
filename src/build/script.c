#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/script_output.h"
#include "build/scripts.h"

void guest_scripts_hash(char *ret)
{
        static const char *const all[] = {guest_lib,  guest_detect, guest_common, guest_debian,   guest_rhel,
                                          guest_arch, guest_alpine, guest_none,   guest_user};
        CLEANUP_BUF struct buf b = {};

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
                buf_adds(&b, all[i]);
                buf_addc(&b, '\0');
        }
        build_sha256(b.data, b.len, ret);
}

/* agent_process carries one pointer for both callbacks. */
struct script_run {
        struct script_output said;
        struct pipeline *p;
};

static char *join(const char *const *parts)
{
        struct buf b = {};

        for (; *parts; parts++)
                buf_addf(&b, "%s\n", *parts);
        return buf_steal(&b);
}

static void on_script_output(int stream, const char *data, size_t len, void *run)
{
        struct script_run *s = run;

        output_log_feed(&s->said.output, stream, data, len);
}

static bool script_cancelled(void *run)
{
        struct script_run *s = run;

        return build_run_stopped(s->p->run);
}

int guest_run_script(struct pipeline *p, const struct guest_script *s, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *text = join(s->parts);
        const char *const plain[] = {"/bin/sh", "-c", text, NULL}, *const login[] = {"/bin/bash", "-l", "-c", text, NULL};
        CLEANUP_FREE char *failure = NULL;
        struct script_run run = {.p = p};
        char **env = s->login ? build_env_list(p->context.env, true) : NULL;
        struct agent_process process = {
                .argv = s->login ? login : plain, .user = "root", .cwd = "/", .env = (const char *const *)env,
                .timeout_s = s->timeout_s, .on_output = on_script_output, .cancelled = script_cancelled, .data = &run};
        struct agent_exit exit = {};
        int r;

        script_output_init(&run.said, &p->run->log, s->prefix);
        r = agent_run(p->vm, &process, &exit, err);
        output_log_end(&run.said.output);
        if (r < 0) {
                r = error_wrap(err, r, "%s failed", s->what);
        } else if (exit.code != 0) {
                failure = script_output_failure(&run.said, s->what, exit.status);
                r = error_set(err, ERROR_INVALID, "%s", failure);
        } else if (ret) {
                *ret = json_incref(run.said.set);
        }
        script_output_free(&run.said);
        build_env_free(env);
        return r;
}

void guest_command_init(struct guest_command *c, const char *command, const struct build_context *context)
{
        *c = (struct guest_command){.argv = {"/bin/bash", "-l", "-c", command, NULL},
                                    .env = build_env_list(context->env, true)};
        c->process = (struct agent_process){
                .argv = c->argv,
                .user = context->user,
                .cwd = context->workdir,
                .env = (const char *const *)c->env,
        };
}

void guest_command_free(struct guest_command *c)
{
        build_env_free(c->env);
        c->env = NULL;
}
