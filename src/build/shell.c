#include "build/shell.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"

char *shell_quote(const char *s)
{
        struct buf b = {};

        buf_addc(&b, '\'');
        for (; *s; s++)
                if (*s == '\'')
                        buf_adds(&b, "'\\''");
                else
                        buf_addc(&b, *s);
        buf_addc(&b, '\'');
        return buf_steal(&b);
}

static bool name_start(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static size_t name_length(const char *s)
{
        size_t n = 0;

        if (!name_start(*s))
                return 0;
        while (name_start(s[n]) || (s[n] >= '0' && s[n] <= '9'))
                n++;
        return n;
}

/* What may follow a name in braces: nothing, a default, a pattern. An offset (`${A:B}`) or a subscript is arithmetic, in which
 * bash runs the command substitutions of values: never given to the shell. */
static bool is_operator(const char *s)
{
        if (*s == ':')
                s++;
        else if (*s == '}' || *s == '#' || *s == '%')
                return true;
        return *s && strchr("-+=?", *s);
}

/* The end of the reference that begins with the dollar at `s`, or NULL when that is a dollar like any other character. */
static const char *reference_end(const char *s)
{
        size_t n = name_length(s + 1);
        unsigned depth = 1;

        if (s[1] != '{')
                return n ? s + 1 + n : NULL;
        n = name_length(s + 2);
        if (!n || !is_operator(s + 2 + n))
                return NULL;
        for (s += 2 + n; *s; s++)
                if (s[0] == '$' && s[1] == '{' && ++depth > SHELL_NESTING_MAX)
                        return NULL;
                else if (*s == '}' && --depth == 0)
                        return s + 1;
        return NULL;
}

/* Adds [s, end) as it stands within double quotes. */
static void add_quoted(struct buf *b, const char *s, const char *end)
{
        for (; s < end; s++) {
                if (strchr("\\\"`", *s) || (*s == '$' && !reference_end(s)))
                        buf_addc(b, '\\');
                buf_addc(b, *s);
        }
}

char *shell_expandable(const char *s)
{
        struct buf b = {};

        buf_addc(&b, '"');
        add_quoted(&b, s, s + strlen(s));
        buf_addc(&b, '"');
        return buf_steal(&b);
}

static const char *next_reference(const char *s, const char **ret_end)
{
        for (; (s = strchr(s, '$')); s++)
                if ((*ret_end = reference_end(s)))
                        return s;
        return NULL;
}

char *shell_word(const char *s, json_t *literals)
{
        struct buf b = {};

        buf_addc(&b, '"');
        while (*s) {
                const char *end, *reference = next_reference(s, &end);
                size_t len = reference ? (size_t)(reference - s) : strlen(s);

                if (len) {
                        CLEANUP_FREE char *name = xasprintf(SHELL_LITERAL "%zu", json_object_size(literals));

                        json_object_set_new(literals, name, json_stringn(s, len));
                        buf_addf(&b, "${%s}", name);
                }
                if (!reference)
                        break;
                add_quoted(&b, reference, end);
                s = end;
        }
        buf_addc(&b, '"');
        return buf_steal(&b);
}

bool shell_expands(const char *s)
{
        const char *end;

        return next_reference(s, &end);
}

/* Read-only in some shell, or of bash's integer type: what is assigned to those is evaluated as arithmetic, commands in it included. */
bool shell_assignable(const char *name)
{
        static const char *const fixed[] = {"UID",    "EUID",          "PPID",     "BASHOPTS", "SHELLOPTS", "GROUPS",  "LINENO",
                                            "_",      "BASH_VERSINFO", "FUNCNAME", "DIRSTACK", "OPTIND",    "BASHPID", "HISTCMD",
                                            "RANDOM", "SRANDOM",       "SECONDS"};

        for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
                if (streq(name, fixed[i]))
                        return false;
        return *name && name_length(name) == strlen(name);
}
