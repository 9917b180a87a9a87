#include "build/context.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#define STANDARD_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

json_t *build_env_object(char *const *list)
{
        json_t *env = json_object();

        for (; list && *list; list++) {
                const char *eq = strchr(*list, '=');
                CLEANUP_FREE char *key = NULL;

                if (!eq || eq == *list || !eq[1])
                        continue;
                key = xstrndup(*list, (size_t)(eq - *list));
                json_object_set_new(env, key, json_string(eq + 1));
        }
        return env;
}

void build_context_init(struct build_context *c, char *const *image_env)
{
        *c = (struct build_context){.user = xstrdup("root"), .env = build_env_object(image_env)};
}

void build_context_copy(struct build_context *to, const struct build_context *from)
{
        *to = (struct build_context){
                .user = xstrdup(from->user ? from->user : "root"),
                .workdir = xstrdup_or_null(from->workdir),
                .env = from->env ? json_deep_copy(from->env) : json_object(),
        };
}

void build_context_free(struct build_context *c)
{
        if (!c)
                return;
        free(c->user);
        free(c->workdir);
        json_decref(c->env);
        *c = (struct build_context){};
}

void build_context_set_user(struct build_context *c, const char *user)
{
        free(c->user);
        c->user = xstrdup(user);
}

void build_context_set_workdir(struct build_context *c, const char *workdir)
{
        free(c->workdir);
        c->workdir = xstrdup(workdir);
}

json_t *build_context_to_json(const struct build_context *c)
{
        json_t *j = json_object();

        json_object_set_new(j, "user", json_string(c->user ? c->user : "root"));
        json_object_set_new(j, "workdir", c->workdir ? json_string(c->workdir) : json_null());
        json_object_set_new(j, "env", c->env ? json_deep_copy(c->env) : json_object());
        return j;
}

bool build_context_from_json(const json_t *j, struct build_context *ret)
{
        const char *user = json_str(j, "user"), *workdir = json_str(j, "workdir"), *key;
        json_t *env = json_object_get(j, "env"), *v;

        if (!user || !json_is_object(env))
                return false;
        json_object_foreach(env, key, v)
                if (!json_is_string(v))
                        return false;
        *ret = (struct build_context){
                .user = xstrdup(user), .workdir = xstrdup_or_null(workdir), .env = json_deep_copy(env)};
        return true;
}

char **build_env_list(const json_t *env, bool for_command)
{
        char **list = xcalloc(json_object_size(env) + 2, sizeof(char *));
        const char *key;
        json_t *v;
        size_t n = 0;

        json_object_foreach((json_t *)env, key, v) {
                const char *value = json_string_value(v);

                if (for_command && streq(key, "PATH")) {
                        list[n++] = xasprintf("PATH=%s:%s", value, STANDARD_PATH);
                        list[n++] = xasprintf("VMON_BUILD_PATH=%s:%s", value, STANDARD_PATH);
                } else {
                        list[n++] = xasprintf("%s=%s", key, value);
                }
        }
        return list;
}

void build_env_free(char **list)
{
        for (char **p = list; p && *p; p++)
                free(*p);
        free(list);
}
