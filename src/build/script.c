#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/scripts.h"

#define WARN_MARK "::warn:: "
#define SET_MARK "::set:: "

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
        struct output_log output;
        struct pipeline *p;
        json_t *set; /* what the script told us */
};

/* Lines that are meant for us. */
static bool take_line(const char *line, void *data)
{
        struct script_run *s = data;
        const char *eq;

        if (str_starts(line, WARN_MARK)) {
                build_log(&s->p->run->log, LOG_LEVEL_WARN, "%s", line + strlen(WARN_MARK));
                return true;
        }
        eq = str_starts(line, SET_MARK) ? strchr(line, '=') : NULL;
        if (eq) {
                CLEANUP_FREE char *key = xstrndup(line + strlen(SET_MARK), (size_t)(eq - line) - strlen(SET_MARK));

                json_object_set_new(s->set, key, json_string(eq + 1));
        }
        return eq;
}

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

        output_log_feed(&s->output, stream, data, len);
}

static bool script_cancelled(void *run)
{
        struct script_run *s = run;

        return build_run_stopped(s->p->run);
}

static int failed(const struct guest_script *s, const struct agent_exit *exit, const struct output_log *o, struct error *err)
{
        CLEANUP_FREE char *tail = output_log_tail(o);

        return error_set(err, ERROR_INVALID, "%s failed: %s%s%s", s->what, exit->status, *tail ? ": " : "", tail);
}

int guest_run_script(struct pipeline *p, const struct guest_script *s, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *text = join(s->parts);
        const char *const plain[] = {"/bin/sh", "-c", text, NULL}, *const login[] = {"/bin/bash", "-l", "-c", text, NULL};
        CLEANUP_JSON json_t *set = json_object();
        struct script_run run = {.p = p, .set = set};
        char **env = s->login ? build_env_list(p->context.env, true) : NULL;
        struct agent_process process = {
                .argv = s->login ? login : plain, .user = "root", .cwd = "/", .env = (const char *const *)env,
                .timeout_s = s->timeout_s, .on_output = on_script_output, .cancelled = script_cancelled, .data = &run};
        struct agent_exit exit = {};
        int r;

        output_log_init(&run.output, &p->run->log, LOG_LEVEL_DEBUG, s->prefix, false);
        run.output.take = take_line;
        run.output.take_data = &run;
        r = agent_run(p->vm, &process, &exit, err);
        output_log_end(&run.output);
        if (r < 0)
                r = error_wrap(err, r, "%s failed", s->what);
        else if (exit.code != 0)
                r = failed(s, &exit, &run.output, err);
        else if (ret)
                *ret = STEAL(set);
        output_log_free(&run.output);
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
