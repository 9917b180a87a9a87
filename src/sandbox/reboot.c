/* What a sandbox that was booted from its disk needs beyond its machine: the template's defaults for its agent, and its start command.
 * (sandbox-api 9 and 11, memory false: its processes are gone, and a template's service is what its sandboxes are for.)
 */
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/manager.h"
#include "vm/agent.h"

#define REBOOT_READY_SECONDS 30
#define READY_INTERVAL_MS 250

json_t *manager_wake_booted(struct sandbox_manager *m, const struct entry *e)
{
        json_t *w = manager_wake_again(e);
        struct build_record *b = NULL;
        struct error err = {};
        json_object_set_new(w, "env", json_object());
        if (records_build_get(m->records, e->info->build_id, &b, &err) < 0) {
                log_warn("sandbox %s boots without what its template gives it: %s", e->id, err.message);
                return w;
        }
        if (b->image_env)
                json_object_set_new(w, "image_env", json_deep_copy(b->image_env));
        if (b->default_user)
                json_object_set_new(w, "default_user", json_string(b->default_user));
        if (b->workdir)
                json_object_set_new(w, "default_workdir", json_string(b->workdir));
        build_record_free(b);
        return w;
}

/* One of the pair, as the build runs them (template-api 13.2). */
struct command {
        const char *argv[5];
        char **env;
        struct agent_process process;
};

static void command_init(struct command *c, const struct entry *e, const char *text, const json_t *context)
{
        const json_t *env = json_object_get(context, "env");
        const char *key;
        json_t *value;
        size_t n = 0;
        *c = (struct command){ .argv = { "/bin/bash", "-l", "-c", text, NULL }, .env = xcalloc(json_object_size(env) + 1, sizeof(char *)) };
        json_object_foreach((json_t *)env, key, value)
                c->env[n++] = xasprintf("%s=%s", key, json_string_value(value) ?: "");
        c->process = (struct agent_process){ .argv = c->argv, .user = json_str(context, "user"), .cwd = json_str(context, "workdir"),
                                             .env = (const char *const *)c->env, .access_token = e->envd_token[0] ? e->envd_token : NULL };
}

static void command_free(struct command *c)
{
        for (char **v = c->env; v && *v; v++)
                free(*v);
        free(c->env);
        c->env = NULL;
}

/* Between two tries, with an ear to the start command, whose end ends the wait: 0 then. */
static int pause_between(struct agent_stream **start)
{
        struct agent_exit end = {};
        if (!*start) {
                poll(NULL, 0, READY_INTERVAL_MS);
                return 0;
        }
        int r = agent_stream_poll(*start, READY_INTERVAL_MS, &end, NULL);
        if (r > 0)
                return 0;
        agent_stream_close(*start);
        *start = NULL;
        return end.code;
}

static int wait_ready(struct entry *e, struct agent_stream **start, const struct build_record *b, struct error *err)
{
        int64_t until = clock_monotonic_ns() + REBOOT_READY_SECONDS * NSEC_PER_SEC;
        struct command c;
        int r = 0;
        command_init(&c, e, b->ready_cmd, b->start_context);
        for (;;) {
                struct agent_exit end = {};
                int64_t left = until - clock_monotonic_ns();
                if (left <= 0) {
                        r = error_set(err, ERROR_UNAVAILABLE, "its ready command has not succeeded within %d s", REBOOT_READY_SECONDS);
                        break;
                }
                c.process.timeout_s = (unsigned)(left / NSEC_PER_SEC) + 1;
                r = agent_run(e->vm, &c.process, &end, err);
                if (r < 0 || end.code == 0)
                        break;
                if (pause_between(start) != 0) {
                        r = error_set(err, ERROR_UNAVAILABLE, "its start command has failed");
                        break;
                }
        }
        command_free(&c);
        return r;
}

static int start(struct entry *e, const struct build_record *b, struct error *err)
{
        struct agent_stream *stream = NULL;
        struct command c;
        int r;
        command_init(&c, e, b->start_cmd, b->start_context);
        r = agent_spawn(e->vm, &c.process, &stream, err);
        command_free(&c);
        /* A build without a ready command waits a while, which is no condition. */
        if (r == 0 && b->ready_cmd && !streq(b->ready_cmd, BUILD_READY_DEFAULT))
                r = wait_ready(e, &stream, b, err);
        agent_stream_close(stream);
        return r;
}

void manager_start_again(struct sandbox_manager *m, struct entry *e)
{
        struct build_record *b = NULL;
        struct error err = {};
        int r = records_build_get(m->records, e->info->build_id, &b, &err);
        if (r == 0 && b->start_cmd)
                r = start(e, b, &err);
        if (r < 0) {
                log_warn("sandbox %s has booted, but its service is not up: %s", e->id, err.message);
                manager_log(m, e, "warn", "start command after boot", json_pack("{s:s}", "error", err.message));
        }
        build_record_free(b);
}
