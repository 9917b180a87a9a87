#include "build/script_output.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"

#define WARN_MARK "::warn:: "
#define SET_MARK "::set:: "
#define FAIL_MARK "::fail:: "

static bool take_result(struct script_output *s, const char *line)
{
        const char *eq = str_starts(line, SET_MARK) ? strchr(line, '=') : NULL;
        CLEANUP_FREE char *key = NULL;

        if (!eq)
                return false;
        key = xstrndup(line + strlen(SET_MARK), (size_t)(eq - line) - strlen(SET_MARK));
        json_object_set_new(s->set, key, json_string(eq + 1));
        return true;
}

static bool take_line(const char *line, void *data)
{
        struct script_output *s = data;

        if (str_starts(line, WARN_MARK)) {
                build_log(s->output.log, LOG_LEVEL_WARN, "%s", line + strlen(WARN_MARK));
                return true;
        }
        if (str_starts(line, FAIL_MARK)) {
                free(s->reason);
                s->reason = xstrdup(line + strlen(FAIL_MARK));
                return true;
        }
        return take_result(s, line);
}

void script_output_init(struct script_output *s, const struct build_log *log, const char *prefix)
{
        *s = (struct script_output){.set = json_object()};
        output_log_init(&s->output, log, LOG_LEVEL_DEBUG, prefix, false);
        s->output.take = take_line;
        s->output.take_data = s;
}

char *script_output_failure(const struct script_output *s, const char *what, const char *status)
{
        const struct output_log *o = &s->output;
        const char *hint = o->tail_count ? " (the last lines of its output are in the build log)" : "";
        CLEANUP_FREE char *last = o->tail_count ? output_log_last(o, BUILD_SCRIPT_REASON_MAX) : NULL;

        for (size_t i = 0; i < o->tail_count; i++)
                build_log(o->log, LOG_LEVEL_ERROR, "%s%s", o->prefix, o->tail[i]);
        if (s->reason)
                return xasprintf("%s failed: %s%s", what, s->reason, hint);
        return xasprintf("%s failed: %s%s%s%s", what, status, last ? ": " : "", last ? last : "", hint);
}

void script_output_free(struct script_output *s)
{
        output_log_free(&s->output);
        json_decref(s->set);
        free(s->reason);
        *s = (struct script_output){};
}
