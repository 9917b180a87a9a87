/* The steps (template-api 11), each one layer. */
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
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

#define EXPORTED "VMON_EXPORT_" /* and a number: a variable's value on its way past the login scripts */

/* The build environment over root's login environment (design 9): exports of what a shell can assign, with the values in `env`,
 * which takes more than an argument does. */
static void add_exports(struct buf *b, const json_t *from, json_t *env)
{
        const char *key;
        json_t *v;

        json_object_foreach((json_t *)from, key, v) {
                CLEANUP_FREE char *name = xasprintf(EXPORTED "%zu", json_object_size(env));

                if (!shell_assignable(key))
                        continue;
                json_object_set(env, name, v);
                buf_addf(b, "export %s=\"${%s}\"\n", key, name);
        }
}

/* A script that prints each expanded value between marks; later pairs see earlier ones. It needs the variables in `env`. */
static char *env_script(const struct pipeline *p, const struct build_step *s, const char *mark, json_t *env)
{
        struct buf b = {};

        add_exports(&b, p->context.env, env);
        for (size_t i = 0; s->args[i]; i += 2) {
                CLEANUP_FREE char *word = shell_word(s->args[i + 1], env);

                buf_addf(&b, "vmon_value_=%s\nprintf '%%s%%s' '%s' \"$vmon_value_\"\n", word, mark);
                if (shell_assignable(s->args[i]))
                        buf_addf(&b, "export %s=\"$vmon_value_\"\n", s->args[i]);
        }
        buf_addf(&b, "printf '%%s' '%s'\n", mark);
        return buf_steal(&b);
}

struct capture {
        struct buf out;
        struct pipeline *p;
};

static void on_capture(int stream, const char *data, size_t len, void *capture)
{
        struct capture *c = capture;

        /* Each value is at most what the environment can hold; a runaway login script is not. */
        if (stream == 1 && c->out.len < 64UL * BUILD_ARG_MAX)
                buf_add(&c->out, data, len);
}

static bool capture_cancelled(void *capture)
{
        struct capture *c = capture;

        return build_run_stopped(c->p->run);
}

/* Takes the values from between the marks into the environment. What login scripts print comes before the first. */
static int take_values(struct pipeline *p, const struct build_step *s, const char *out, const char *mark, struct error *err)
{
        const char *at = strstr(out, mark), *end;

        for (size_t i = 0; s->args[i]; i += 2) {
                CLEANUP_FREE char *value = NULL, *clean = NULL;

                end = at ? strstr(at + strlen(mark), mark) : NULL;
                if (!end)
                        return error_set(err, ERROR_INVALID, "ENV %s: the value could not be expanded by the guest's shell", s->args[i]);
                value = xstrndup(at + strlen(mark), (size_t)(end - at) - strlen(mark));
                clean = utf8_scrub(value, strlen(value));
                json_object_set_new(p->context.env, s->args[i], json_string(clean));
                at = end;
        }
        return 0;
}

static int expand_in_guest(struct pipeline *p, const struct build_step *s, struct error *err)
{
        CLEANUP_JSON json_t *env = json_object();
        struct build_context root = {.user = (char *)"root", .workdir = (char *)"/", .env = env};
        CLEANUP_FREE char *script = NULL;
        struct capture capture = {.p = p};
        struct agent_exit exit = {};
        struct guest_command c;
        char mark[33];
        int r = guest_need(p, err);

        if (r < 0)
                return r;
        random_id(mark, 32);
        script = env_script(p, s, mark, env);
        if (strlen(script) > BUILD_ARG_MAX)
                return error_set(err, ERROR_LIMIT, "ENV: its references and the names of all variables take more than %d bytes",
                                 BUILD_ARG_MAX);
        guest_command_init(&c, script, &root);
        c.process.timeout_s = BUILD_CONFIGURE_SECONDS;
        c.process.on_output = on_capture;
        c.process.cancelled = capture_cancelled;
        c.process.data = &capture;
        r = agent_run(p->vm, &c.process, &exit, err);
        if (r >= 0)
                r = take_values(p, s, buf_str(&capture.out), mark, err);
        guest_command_free(&c);
        buf_free(&capture.out);
        return r;
}

static int env_step(struct pipeline *p, const struct build_step *s, struct error *err)
{
        bool expands = false;
        size_t size;
        int r = 0;

        for (size_t i = 0; s->args[i]; i += 2)
                expands |= shell_expands(s->args[i + 1]);
        if (expands)
                r = expand_in_guest(p, s, err);
        else
                for (size_t i = 0; s->args[i]; i += 2)
                        json_object_set_new(p->context.env, s->args[i], json_string(s->args[i + 1]));
        size = json_dumpb(p->context.env, NULL, 0, JSON_COMPACT);
        if (r >= 0 && size > BUILD_ENV_MAX)
                return error_set(err, ERROR_LIMIT, "ENV %s: the environment of the build is now %zu bytes, at most %d are allowed: put "
                                 "large values into files", s->args[0], size, BUILD_ENV_MAX);
        return r;
}

/* Runs a step's script in root's login shell, with `assign` in front. */
static int step_script(struct pipeline *p, const char *what, const char *assign, const char *script, json_t **ret, struct error *err)
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
        r = step_script(p, what, assign, guest_workdir_step, &set, err);
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
        r = step_script(p, what, assign, guest_user_step, &set, err);
        if (r < 0)
                return r;
        if (!json_str(set, "user"))
                return error_set(err, ERROR_INTERNAL, "%s: the guest did not name the user", what);
        build_context_set_user(&p->context, json_str(set, "user"));
        return 0;
}

/* Where relative COPY targets go: the workdir, else the user's home. */
static int copy_base(struct pipeline *p, char **ret, struct error *err)
{
        const char *script = "found=\n"
                             "while IFS=: read -r n_ p_ u_ g_ c_ home_ s_; do\n"
                             "    if [ \"$n_\" = \"$NAME\" ]; then found=$home_; fi\n"
                             "done </etc/passwd\n"
                             "result home \"${found:-/}\"";
        CLEANUP_FREE char *name = NULL, *assign = NULL;
        CLEANUP_JSON json_t *set = NULL;
        int r;

        if (p->context.workdir) {
                *ret = xstrdup(p->context.workdir);
                return 0;
        }
        name = shell_quote(p->context.user);
        assign = xasprintf("NAME=%s", name);
        r = step_script(p, "COPY", assign, script, &set, err);
        if (r >= 0)
                *ret = xstrdup(json_str(set, "home") ? json_str(set, "home") : "/");
        return r;
}

static int copy_target(struct pipeline *p, const char *target, char **ret, struct error *err)
{
        CLEANUP_FREE char *base = NULL;
        int r;

        if (*target == '/') {
                *ret = xstrdup(target);
                return 0;
        }
        r = copy_base(p, &base, err);
        if (r < 0)
                return r;
        /* "." and "./" mean the directory itself; a trailing slash keeps its meaning. */
        while (str_starts(target, "./"))
                target += 2 + strspn(target + 2, "/");
        if (streq(target, "."))
                target = "";
        *ret = xasprintf("%s/%s", streq(base, "/") ? "" : base, target);
        return 0;
}

static int copy_step(struct pipeline *p, const struct build_step *s, struct error *err)
{
        const char *owner = s->args[2] && s->args[2][0] ? s->args[2] : p->context.user;
        const char *mode = s->args[2] && s->args[3] ? s->args[3] : "";
        CLEANUP_FREE char *archive = xasprintf("files/%s", s->files_hash), *path = path_join(p->share, archive);
        CLEANUP_FREE char *pair = strchr(owner, ':') ? xstrdup(owner) : xasprintf("%s:%s", owner, owner), *target = NULL;
        CLEANUP_JSON json_t *args = NULL, *result = NULL;
        int r;

        if (!path_exists(path))
                return error_set(err, ERROR_NOT_FOUND, "COPY %s: the files (hash %s) were not uploaded; run the build again with its "
                                 "context, which uploads them", s->args[0], s->files_hash);
        r = guest_need(p, err);
        if (r >= 0)
                r = copy_target(p, s->args[1], &target, err);
        if (r < 0)
                return r;
        args = json_pack("{s:s,s:s,s:s,s:s,s:s}", "archive", archive, "src", s->args[0], "dest", target, "owner", pair, "mode", mode);
        r = guest_request(p, "copy", args, BUILD_COPY_SECONDS, NULL, NULL, &result, err);
        if (r >= 0 && json_bool(result, "elsewhere", false))
                build_log(&p->run->log, LOG_LEVEL_WARN, "COPY %s %s: the target is on a file system in memory (such as /run), which is not "
                          "part of the template", s->args[0], s->args[1]);
        return r < 0 ? error_wrap(err, r, "COPY %s %s", s->args[0], s->args[1]) : 0;
}

static int execute(struct pipeline *p, const struct build_step *s, const char *prefix, struct error *err)
{
        int r;

        if (streq(s->type, "ENV"))
                return env_step(p, s, err);
        if (streq(s->type, "COPY"))
                return copy_step(p, s, err);
        r = guest_need(p, err);
        if (r < 0)
                return r;
        if (streq(s->type, "RUN"))
                return run_step(p, s, prefix, err);
        if (streq(s->type, "WORKDIR"))
                return workdir_step(p, s, err);
        return user_step(p, s, err);
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
        int r;

        build_run_phase(p->run, number);
        if (build_run_stopped(p->run))
                return error_set(err, ERROR_CANCELLED, "the build was told to stop");
        p->force |= s->force;
        build_key_step(p->key, s, key);
        r = pipeline_from_cache(p, key, err);
        if (r < 0)
                return r;
        pipeline_log_layer(p, r > 0, prefix, text, key);
        if (r > 0)
                return 0;
        r = execute(p, s, prefix, err);
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
