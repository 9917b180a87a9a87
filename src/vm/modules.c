/* Module order.
 *
 * Theory of operation: modules.dep has one line a module, "path: dep dep …". The order is a depth-first walk that
 * appends a module after its dependencies. The texts come out of a signed package, but a cut file must not make
 * the walk run away: depth and number are bounded, and a module met again on the way down is a cycle.
 */
#include "vm/modules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"

#define DEPTH_MAX 32

int module_name(const char *path, char *out)
{
        const char *base = strrchr(path, '/');
        const char *end;
        size_t n;

        base = base ? base + 1 : path;
        end = strstr(base, ".ko");
        if (!end || end == base || (end[3] != '\0' && end[3] != '.' && end[3] != ':'))
                return -EINVAL;
        n = (size_t)(end - base);
        if (n >= MODULE_NAME_MAX)
                return -EINVAL;
        for (size_t i = 0; i < n; i++)
                out[i] = base[i] == '-' ? '_' : base[i];
        out[n] = '\0';
        return 0;
}

/* The line of `text` whose first word is module `name`, or NULL. */
static const char *find_line(const char *text, const char *name)
{
        while (*text) {
                size_t len = strcspn(text, "\n"), word = strcspn(text, ": \n");
                char have[MODULE_NAME_MAX];
                CLEANUP_FREE char *path = xstrndup(text, word);

                if (module_name(path, have) == 0 && streq(have, name))
                        return text;
                text += len + (text[len] == '\n');
        }
        return NULL;
}

struct walk {
        const char *dep, *builtin;
        char *paths[MODULES_MAX + 1];
        size_t n;
        const char *stack[DEPTH_MAX];
        size_t depth;
        struct error *err;
};

static bool loaded(const struct walk *w, const char *name)
{
        char have[MODULE_NAME_MAX];

        for (size_t i = 0; i < w->n; i++)
                if (module_name(w->paths[i], have) == 0 && streq(have, name))
                        return true;
        return false;
}

static int visit(struct walk *w, const char *name);

static int visit_dependencies(struct walk *w, const char *line)
{
        const char *end = line + strcspn(line, "\n");
        const char *p = line + strcspn(line, ":\n");

        while (p < end) {
                char name[MODULE_NAME_MAX];
                size_t n;
                int r;

                p += strspn(p, ": \t");
                n = strcspn(p, " \t\n");
                if (n == 0)
                        break;
                {
                        CLEANUP_FREE char *path = xstrndup(p, n);

                        if (module_name(path, name) < 0)
                                return error_set(w->err, ERROR_INVALID, "modules.dep: \"%s\" is no module", path);
                }
                r = visit(w, name);
                if (r < 0)
                        return r;
                p += n;
        }
        return 0;
}

static int enter(struct walk *w, const char *name)
{
        for (size_t i = 0; i < w->depth; i++)
                if (streq(w->stack[i], name))
                        return error_set(w->err, ERROR_INVALID, "modules.dep: %s depends on itself", name);
        if (w->depth == DEPTH_MAX)
                return error_set(w->err, ERROR_INVALID, "modules.dep: dependencies deeper than %d", DEPTH_MAX);
        w->stack[w->depth++] = name;
        return 0;
}

static int visit(struct walk *w, const char *name)
{
        const char *line;
        int r;

        if (loaded(w, name))
                return 0;
        line = find_line(w->dep, name);
        if (!line) {
                if (find_line(w->builtin, name))
                        return 0;
                return error_set(w->err, ERROR_UNAVAILABLE, "the kernel has no module %s", name);
        }
        r = enter(w, name);
        if (r < 0)
                return r;
        r = visit_dependencies(w, line);
        w->stack[--w->depth] = NULL; /* after a failed walk too: the name is the caller's */
        if (r < 0)
                return r;
        if (w->n == MODULES_MAX)
                return error_set(w->err, ERROR_INVALID, "more than %d modules to load", MODULES_MAX);
        w->paths[w->n++] = xstrndup(line, strcspn(line, ":\n"));
        return 0;
}

int modules_resolve(const char *dep, const char *builtin, const char *const *wanted, char ***ret, struct error *err)
{
        struct walk w = {.dep = dep, .builtin = builtin, .err = err};
        int r = 0;

        for (; *wanted && r >= 0; wanted++) {
                char name[MODULE_NAME_MAX];
                CLEANUP_FREE char *file = xasprintf("%s.ko", *wanted);

                r = module_name(file, name);
                if (r < 0)
                        error_set(err, ERROR_INVALID, "\"%s\" is no module name", *wanted);
                else
                        r = visit(&w, name);
        }
        if (r < 0) {
                for (size_t i = 0; i < w.n; i++)
                        free(w.paths[i]);
                return r;
        }
        *ret = xmemdup(w.paths, sizeof(w.paths));
        return 0;
}

void modules_free(char **paths)
{
        for (char **p = paths; p && *p; p++)
                free(*p);
        free(paths);
}
