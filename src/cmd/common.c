#include "cmd/common.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

/* "--name=value" when VMON_NAME is set for the option, else NULL. */
static char *from_environment(const struct argp_option *o)
{
        CLEANUP_FREE char *variable = xasprintf("VMON_%s", o->name);
        const char *value;

        for (char *p = variable; *p; p++)
                *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        value = getenv(variable);
        if (!value || !*value)
                return NULL;
        if (!o->arg)
                return streq(value, "1") ? xasprintf("--%s", o->name) : NULL;
        return xasprintf("--%s=%s", o->name, value);
}

int cmd_parse(const struct argp *argp, int argc, char **argv, void *input)
{
        /* Kept to the end of the process, because argp hands out pointers into it: a list of them. */
        static struct merged {
                struct merged *earlier;
                char *words[];
        } *kept;
        struct merged *merged;
        int n = 0, count = 0;

        for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
                count++;
        merged = xcalloc(1, sizeof(*merged) + ((size_t)(argc + count) + 1) * sizeof(merged->words[0]));
        merged->earlier = kept;
        kept = merged;
        merged->words[n++] = argv[0];
        for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++) {
                char *text = o->name && !(o->flags & OPTION_ALIAS) ? from_environment(o) : NULL;

                if (text)
                        merged->words[n++] = text;
        }
        for (int i = 1; i < argc; i++)
                merged->words[n++] = argv[i];
        argp_err_exit_status = 2;
        return argp_parse(argp, n, merged->words, 0, NULL, input);
}

char *cmd_default_data_dir(void)
{
        const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");

        if (geteuid() == 0)
                return xstrdup("/var/lib/vmon");
        if (xdg && xdg[0] == '/')
                return path_join(xdg, "vmon");
        return xasprintf("%s/.local/share/vmon", home && home[0] == '/' ? home : "/tmp");
}

char *cmd_sibling(const char *name)
{
        char self[PATH_MAX];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        char *slash, *path;

        if (n <= 0)
                return NULL;
        self[n] = '\0';
        slash = strrchr(self, '/');
        path = xasprintf("%.*s/%s", (int)(slash - self), self, name);
        if (path_exists(path))
                return path;
        free(path);
        return NULL;
}
