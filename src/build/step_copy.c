/* The COPY step (template-api 11.5): where the target is, and the request to the agent, which does the copying. */
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/shell.h"

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
        r = pipeline_step_script(p, "COPY", assign, script, &set, err);
        if (r >= 0)
                *ret = xstrdup(json_str(set, "home") ? json_str(set, "home") : "/");
        return r;
}

/* The target and the owner with their variables, as in a Dockerfile's `COPY . $APP`; one line each. */
static int copy_expand(struct pipeline *p, const char *target, const char *owner, char **ret_target, char **ret_owner, struct error *err)
{
        CLEANUP_FREE char *target_word = NULL, *owner_word = NULL, *assign = NULL;
        CLEANUP_JSON json_t *set = NULL;
        int r;

        if (!shell_expands(target) && !shell_expands(owner)) {
                *ret_target = xstrdup(target);
                *ret_owner = xstrdup(owner);
                return 0;
        }
        target_word = shell_expandable(target);
        owner_word = shell_expandable(owner);
        assign = xasprintf("TARGET=%s\nOWNER=%s", target_word, owner_word);
        r = pipeline_step_script(p, "COPY", assign, "result target \"$TARGET\"\nresult owner \"$OWNER\"", &set, err);
        if (r < 0)
                return r;
        if (!json_str(set, "target") || !*json_str(set, "target") || !json_str(set, "owner"))
                return error_set(err, ERROR_INVALID, "the target '%s' is empty once its variables are expanded", target);
        *ret_target = xstrdup(json_str(set, "target"));
        *ret_owner = xstrdup(json_str(set, "owner"));
        return 0;
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

static int request_copy(struct pipeline *p, const struct build_step *s, const char *archive, struct error *err)
{
        const char *mode = s->args[2] && s->args[3] ? s->args[3] : "";
        CLEANUP_FREE char *target = NULL, *path = NULL, *owner = NULL, *pair = NULL;
        CLEANUP_JSON json_t *args = NULL, *result = NULL;
        int r;

        r = copy_expand(p, s->args[1], s->args[2] && s->args[2][0] ? s->args[2] : p->context.user, &target, &owner, err);
        if (r >= 0)
                r = copy_target(p, target, &path, err);
        if (r < 0)
                return r;
        pair = strchr(owner, ':') ? xstrdup(owner) : xasprintf("%s:%s", owner, owner);
        args = json_pack("{s:s,s:s,s:s,s:s,s:s}", "archive", archive, "src", s->args[0], "dest", path, "owner", pair, "mode", mode);
        r = guest_request(p, "copy", args, BUILD_COPY_SECONDS, NULL, NULL, &result, err);
        if (r >= 0 && json_bool(result, "elsewhere", false))
                build_log(&p->run->log, LOG_LEVEL_WARN, "COPY %s %s: the target is on a file system in memory (such as /run), which is not "
                          "part of the template", s->args[0], s->args[1]);
        return r;
}

/* The trigger has looked already; by now the archive may be gone. */
int pipeline_copy_step(struct pipeline *p, const struct build_step *s, struct error *err)
{
        CLEANUP_FREE char *archive = xasprintf("files/%s", s->files_hash), *dir = path_join(p->share, "files");
        int r = build_step_check_upload(s, dir, err);

        if (r < 0)
                return r;
        r = guest_need(p, err);
        if (r >= 0)
                r = request_copy(p, s, archive, err);
        return r < 0 ? error_wrap(err, r, "COPY %s %s", s->args[0], s->args[1]) : 0;
}
