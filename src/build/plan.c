/* The trigger request (template-api 4.5, 5) as values.
 *
 * Everything that can be known to be wrong without I/O is refused here, so that the client gets a 400 instead of a
 * build that fails minutes later. Texts: template-api 5.4 (upstream's own) and "validation error: …" for a body that
 * does not have the documented shape. Unknown members are ignored (template-api 3.2).
 */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/build.h"
#include "build/limits.h"

static int shape(struct error *err, const char *what)
{
        return error_set(err, ERROR_INVALID, "validation error: %s", what);
}

/* A NUL would end the text early everywhere else. */
static bool has_nul(const json_t *string)
{
        return strlen(json_string_value(string)) != json_string_length(string);
}

/* Reads an optional string member: absent, null and "" give NULL. */
static int read_string(const json_t *body, const char *key, size_t max, char **ret, struct error *err)
{
        const json_t *v = json_object_get(body, key);
        CLEANUP_FREE char *what = NULL;

        if (!v || json_is_null(v))
                return 0;
        if (!json_is_string(v)) {
                what = xasprintf("%s must be a string", key);
                return shape(err, what);
        }
        if (has_nul(v)) {
                what = xasprintf("%s holds a NUL character", key);
                return shape(err, what);
        }
        if (json_string_length(v) > max) {
                what = xasprintf("%s is longer than %zu bytes", key, max);
                return shape(err, what);
        }
        if (json_string_length(v))
                *ret = xstrdup(json_string_value(v));
        return 0;
}

static int read_bool(const json_t *body, const char *key, bool *ret, struct error *err)
{
        const json_t *v = json_object_get(body, key);
        CLEANUP_FREE char *what = NULL;

        if (!v || json_is_null(v))
                return 0;
        if (!json_is_boolean(v)) {
                what = xasprintf("%s must be a boolean", key);
                return shape(err, what);
        }
        *ret = json_is_true(v);
        return 0;
}

static void step_clear(struct build_step *s)
{
        free(s->type);
        for (char **a = s->args; a && *a; a++)
                free(*a);
        free(s->args);
        free(s->files_hash);
}

static size_t count_args(const struct build_step *s)
{
        size_t n = 0;

        while (s->args[n])
                n++;
        return n;
}

static int read_args(const json_t *step, size_t number, struct build_step *s, struct error *err)
{
        const json_t *args = json_object_get(step, "args"), *v;
        CLEANUP_FREE char *what = NULL;
        size_t i;

        s->args = xcalloc(json_array_size(args) + 1, sizeof(char *));
        if (!args || json_is_null(args))
                return 0;
        if (!json_is_array(args)) {
                what = xasprintf("steps[%zu].args must be an array of strings", number);
                return shape(err, what);
        }
        if (json_array_size(args) > BUILD_STEP_ARGS_MAX) {
                what = xasprintf("steps[%zu].args has more than %d entries", number, BUILD_STEP_ARGS_MAX);
                return shape(err, what);
        }
        json_array_foreach(args, i, v) {
                if (!json_is_string(v)) {
                        what = xasprintf("steps[%zu].args[%zu] must be a string", number, i);
                        return shape(err, what);
                }
                if (has_nul(v)) {
                        what = xasprintf("steps[%zu].args[%zu] holds a NUL character", number, i);
                        return shape(err, what);
                }
                if (json_string_length(v) > BUILD_ARG_MAX) {
                        what = xasprintf("steps[%zu].args[%zu] is longer than %d bytes", number, i, BUILD_ARG_MAX);
                        return shape(err, what);
                }
                s->args[i] = xstrdup(json_string_value(v));
        }
        return 0;
}

static bool path_escapes(const char *path)
{
        for (const char *p = path; *p;) {
                size_t n = strcspn(p, "/");

                if (n == 2 && p[0] == '.' && p[1] == '.')
                        return true;
                p += n;
                p += strspn(p, "/");
        }
        return false;
}

static bool is_mode(const char *s)
{
        size_t n = strlen(s);

        return n >= 1 && n <= 5 && strspn(s, "01234567") == n;
}

static int check_copy(const char *type, const struct build_step *s, struct error *err)
{
        size_t n = count_args(s);

        if (n < 2)
                return error_set(err, ERROR_INVALID, "COPY requires a local path and a container path argument");
        if (!s->files_hash)
                return error_set(err, ERROR_INVALID, "%s requires files hash to be set", type);
        if (!str_is_hex(s->files_hash, 64))
                return error_set(err, ERROR_INVALID, "Invalid files hash: 64 lower-case hex digits expected");
        if (path_escapes(s->args[0]))
                return error_set(err, ERROR_INVALID, "%s source '%s' leaves the build context", type, s->args[0]);
        if (!s->args[1][0])
                return error_set(err, ERROR_INVALID, "COPY requires a local path and a container path argument");
        if (n > 3 && s->args[3][0] && !is_mode(s->args[3]))
                return error_set(err, ERROR_INVALID, "%s mode '%s' is not an octal number such as 0755", type,
                                 s->args[3]);
        return 0;
}

static int check_env(const char *type, const struct build_step *s, struct error *err)
{
        size_t n = count_args(s);

        if (!n)
                return error_set(err, ERROR_INVALID, "%s does not support passing no arguments", type);
        if (n % 2)
                return error_set(err, ERROR_INVALID, "%s requires both a key and value arguments", type);
        for (size_t i = 0; i < n; i += 2) {
                /* A "=" is let through: the SDK's Dockerfile parser makes `K="two` and `words"` of K="two words" (template-api 8). */
                if (!s->args[i][0] || s->args[i][0] == '=')
                        return error_set(err, ERROR_INVALID, "%s key '%s' must be a name", type, s->args[i]);
                if (strlen(s->args[i]) > BUILD_ENV_NAME_MAX)
                        return error_set(err, ERROR_INVALID, "%s key '%.40s…' is longer than %d bytes", type, s->args[i],
                                         BUILD_ENV_NAME_MAX);
        }
        return 0;
}

/* WORKDIR and USER: one argument, which comes back from the guest as a line. */
static int check_line(const char *type, const char *argument, const struct build_step *s, struct error *err)
{
        if (!s->args[0] || !s->args[0][0])
                return error_set(err, ERROR_INVALID, "%s requires a %s argument", type, argument);
        if (strpbrk(s->args[0], "\r\n"))
                return error_set(err, ERROR_INVALID, "%s %s must be one line", type, argument);
        return 0;
}

/* Settles the canonical type and checks the arguments (template-api 5.4). */
static int check_step(struct build_step *s, struct error *err)
{
        CLEANUP_FREE char *type = xstrdup(s->type);

        if (streq(type, "COPY") || streq(type, "ADD")) {
                free(s->type);
                s->type = xstrdup("COPY");
                return check_copy(type, s, err);
        }
        if (streq(type, "ENV") || streq(type, "ARG")) {
                strcpy(s->type, "ENV");
                return check_env(type, s, err);
        }
        if (streq(type, "RUN"))
                return s->args[0] ? 0 : error_set(err, ERROR_INVALID, "RUN requires command argument");
        if (streq(type, "WORKDIR"))
                return check_line(type, "path", s, err);
        if (streq(type, "USER"))
                return check_line(type, "username", s, err);
        return error_set(err, ERROR_INVALID, "command type %s is not implemented", type);
}

static int read_step(const json_t *j, size_t number, struct build_step *s, struct error *err)
{
        CLEANUP_FREE char *what = NULL;
        int r;

        if (!json_is_object(j)) {
                what = xasprintf("steps[%zu] must be an object", number);
                return shape(err, what);
        }
        r = read_string(j, "type", BUILD_STEP_TYPE_MAX, &s->type, err);
        if (r < 0)
                return r;
        if (!s->type) {
                what = xasprintf("steps[%zu].type is required", number);
                return shape(err, what);
        }
        for (char *p = s->type; *p; p++)
                if (*p >= 'a' && *p <= 'z')
                        *p = (char)(*p - 'a' + 'A');
        r = read_args(j, number, s, err);
        if (r < 0)
                return r;
        r = read_bool(j, "force", &s->force, err);
        if (r < 0)
                return r;
        r = read_string(j, "filesHash", BUILD_ARG_MAX, &s->files_hash, err);
        if (r < 0)
                return r;
        r = check_step(s, err);
        /* A hash is checked where it means something; elsewhere it must not become a file name or a part of the key. */
        if (!streq(s->type, "COPY")) {
                free(s->files_hash);
                s->files_hash = NULL;
        }
        return r;
}

static int read_steps(const json_t *body, struct build_plan *p, struct error *err)
{
        const json_t *steps = json_object_get(body, "steps"), *j;
        size_t i;

        if (!steps || json_is_null(steps))
                return 0;
        if (!json_is_array(steps))
                return shape(err, "steps must be an array");
        if (json_array_size(steps) > BUILD_STEPS_MAX)
                return error_set(err, ERROR_INVALID, "validation error: more than %d steps", BUILD_STEPS_MAX);
        p->steps = xcalloc(json_array_size(steps) + 1, sizeof(*p->steps));
        json_array_foreach(steps, i, j) {
                int r;

                p->step_count = i + 1; /* so that a half-read step is freed too */
                r = read_step(j, i, &p->steps[i], err);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int read_source(const json_t *body, struct build_plan *p, struct error *err)
{
        const json_t *registry = json_object_get(body, "fromImageRegistry");
        int r;

        r = read_string(body, "fromImage", BUILD_REFERENCE_MAX, &p->from_image, err);
        if (r < 0)
                return r;
        r = read_string(body, "fromTemplate", BUILD_REFERENCE_MAX, &p->from_template, err);
        if (r < 0)
                return r;
        if (p->from_image && p->from_template)
                return error_set(err, ERROR_INVALID, "only one of fromImage and fromTemplate can be given");
        if (!p->from_image && !p->from_template)
                return error_set(err, ERROR_INVALID, "one of fromImage and fromTemplate is required");
        /* A stale registry can accompany fromTemplate (template-api 5.2). */
        if (p->from_template || !registry || json_is_null(registry))
                return 0;
        return oci_auth_parse(registry, &p->auth, err);
}

static int parse(const json_t *body, struct build_plan *p, struct error *err)
{
        int r;

        if (!json_is_object(body))
                return shape(err, "the request body must be an object");
        r = read_source(body, p, err);
        if (r < 0)
                return r;
        r = read_bool(body, "force", &p->force, err);
        if (r < 0)
                return r;
        r = read_string(body, "startCmd", BUILD_ARG_MAX, &p->start_cmd, err);
        if (r < 0)
                return r;
        r = read_string(body, "readyCmd", BUILD_ARG_MAX, &p->ready_cmd, err);
        if (r < 0)
                return r;
        return read_steps(body, p, err);
}

int build_plan_parse(const json_t *body, struct build_plan *ret, struct error *err)
{
        struct build_plan p = {};
        int r = parse(body, &p, err);

        if (r < 0) {
                build_plan_free(&p);
                return r;
        }
        *ret = p;
        return 0;
}

void build_plan_free(struct build_plan *p)
{
        if (!p)
                return;
        free(p->from_image);
        free(p->from_template);
        oci_auth_free(&p->auth);
        for (size_t i = 0; i < p->step_count; i++)
                step_clear(&p->steps[i]);
        free(p->steps);
        free(p->start_cmd);
        free(p->ready_cmd);
        *p = (struct build_plan){};
}
