/* The ENV step (template-api 11.2). Values without a reference change the context alone; others are expanded by the guest's own shell,
 * over root's login environment: the values travel as variables (no argument could hold them) and come back between marks.
 */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "build/context.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/shell.h"

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

int pipeline_env_step(struct pipeline *p, const struct build_step *s, struct error *err)
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
