/* The steps (template-api 11), each one layer. ENV and COPY have files of their own. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/scripts.h"
#include "build/shell.h"

struct command_run {
        struct output_log output;
        struct pipeline *p;
};

static void on_command_output(int stream, const char *data, size_t len, void *run)
{
        struct command_run *c = run;

        output_log_feed(&c->output, stream, data, len);
}

static bool command_cancelled(void *run)
{
        struct command_run *c = run;

        return build_run_stopped(c->p->run);
}

/* A command as messages show it: whole, unless it is longer than they should be. */
static char *shown(const char *command)
{
        size_t n = BUILD_STEP_TEXT_MAX;

        if (strlen(command) <= n)
                return xstrdup(command);
        while (n && ((unsigned char)command[n] & 0xc0) == 0x80)
                n--;
        return xasprintf("%.*s…", (int)n, command);
}

static int run_step(struct pipeline *p, const struct build_step *s, const char *prefix, struct error *err)
{
        CLEANUP_FREE char *log_prefix = xasprintf("[%s] ", prefix), *command = shown(s->args[0]);
        struct command_run run = {.p = p};
        struct agent_exit exit = {};
        struct guest_command c;
        int r;

        output_log_init(&run.output, &p->run->log, LOG_LEVEL_INFO, log_prefix, true);
        guest_command_init(&c, s->args[0], &p->context);
        if (s->args[1] && s->args[1][0])
                c.process.user = s->args[1];
        c.process.ordered = true;
        c.process.timeout_s = BUILD_COMMAND_SECONDS;
        c.process.on_output = on_command_output;
        c.process.cancelled = command_cancelled;
        c.process.data = &run;
        r = agent_run(p->vm, &c.process, &exit, err);
        output_log_end(&run.output);
        if (r < 0)
                r = error_wrap(err, r, "failed to run command '%s'", command);
        else if (exit.code != 0)
                r = error_set(err, ERROR_INVALID, "failed to run command '%s': %s", command, exit.status);
        guest_command_free(&c);
        output_log_free(&run.output);
        return r;
}

int pipeline_step_script(struct pipeline *p, const char *what, const char *assign, const char *script, json_t **ret, struct error *err)
{
        const char *parts[] = {assign, guest_lib, guest_user, script, NULL};

        return guest_run_script(p, &(struct guest_script){.parts = parts, .login = true, .prefix = "", .what = what,
                                                          .timeout_s = BUILD_CONFIGURE_SECONDS}, ret, err);
}

static int workdir_step(struct pipeline *p, const struct build_step *s, struct error *err)
{
        CLEANUP_FREE char *dir = shell_expandable(s->args[0]), *assign = NULL, *owner = shell_quote(p->context.user);
        CLEANUP_FREE char *base = shell_quote(p->context.workdir ? p->context.workdir : "/"), *what = NULL;
        CLEANUP_JSON json_t *set = NULL;
        int r;

        assign = xasprintf("DIR=%s\nBASE=%s\nOWNER=%s", dir, base, owner);
        what = xasprintf("WORKDIR %s", s->args[0]);
        r = pipeline_step_script(p, what, assign, guest_workdir_step, &set, err);
        if (r < 0)
                return r;
        if (!json_str(set, "workdir"))
                return error_set(err, ERROR_INTERNAL, "%s: the guest did not say where it is", what);
        build_context_set_workdir(&p->context, json_str(set, "workdir"));
        return 0;
}

static int user_step(struct pipeline *p, const struct build_step *s, struct error *err)
{
        CLEANUP_FREE char *name = shell_expandable(s->args[0]), *assign = NULL, *what = NULL;
        CLEANUP_JSON json_t *set = NULL;
        int r;

        assign = xasprintf("NAME=%s\nADMIN=%s", name, streq(s->args[1], "true") ? "yes" : "");
        what = xasprintf("USER %s", s->args[0]);
        r = pipeline_step_script(p, what, assign, guest_user_step, &set, err);
        if (r < 0)
                return r;
        if (!json_str(set, "user"))
                return error_set(err, ERROR_INTERNAL, "%s: the guest did not name the user", what);
        build_context_set_user(&p->context, json_str(set, "user"));
        return 0;
}

static int execute_in_shell(struct pipeline *p, const struct build_step *s, const char *prefix, struct error *err)
{
        struct error missing;
        int r;

        if (streq(s->type, "RUN"))
                r = run_step(p, s, prefix, err);
        else if (streq(s->type, "WORKDIR"))
                r = workdir_step(p, s, err);
        else
                r = user_step(p, s, err);
        /* Only a failure is worth the question whether it lay in that. */
        if (r < 0 && err->kind == ERROR_INVALID && guest_need_shell(p, s->type, &missing) < 0 && missing.kind == ERROR_INVALID)
                return error_set(err, ERROR_INVALID, "%s", missing.message);
        return r;
}

static int execute(struct pipeline *p, const struct build_step *s, const char *prefix, struct error *err)
{
        int r;

        if (streq(s->type, "ENV"))
                return pipeline_env_step(p, s, err);
        if (streq(s->type, "COPY"))
                return pipeline_copy_step(p, s, err);
        r = guest_need(p, err);
        return r < 0 ? r : execute_in_shell(p, s, prefix, err);
}

static char *step_text(const struct build_step *s)
{
        CLEANUP_BUF struct buf b = {};

        buf_adds(&b, s->type);
        for (size_t i = 0; s->args[i]; i++)
                buf_addf(&b, " %s", s->args[i]);
        while (b.len && b.data[b.len - 1] == ' ')
                b.data[--b.len] = '\0';
        return shown(buf_str(&b));
}

static int one_step(struct pipeline *p, size_t i, struct error *err)
{
        const struct build_step *s = &p->job->plan.steps[i];
        CLEANUP_FREE char *prefix = xasprintf("builder %zu/%zu", i + 1, p->job->plan.step_count), *text = step_text(s);
        CLEANUP_FREE char *number = xasprintf("%zu", i + 1);
        char key[BUILD_KEY_LEN + 1];
        bool cached;
        int r;

        build_run_phase(p->run, number);
        if (build_run_stopped(p->run))
                return error_set(err, ERROR_CANCELLED, "the build was told to stop");
        p->force |= s->force;
        build_key_step(p->key, s, key);
        cached = pipeline_next_is_cached(p, key);
        pipeline_log_layer(p, cached, prefix, text, key);
        if (cached)
                return 0;
        r = execute(p, s, prefix, err);
        build_log_time(&p->run->log, s->type);
        /* An ENV changes the context alone. */
        return r < 0 ? r : pipeline_add_built(p, key, !streq(s->type, "ENV"), err);
}

int pipeline_steps(struct pipeline *p, struct error *err)
{
        for (size_t i = 0; i < p->job->plan.step_count; i++) {
                int r = one_step(p, i, err);

                if (r < 0)
                        return r;
        }
        return 0;
}
