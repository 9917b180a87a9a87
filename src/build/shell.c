#include "build/shell.h"

#include <string.h>

#include "base/buf.h"
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

/* Is the dollar at `s` a reference to expand? */
static bool reference(const char *s)
{
        size_t n;

        if (s[1] != '{')
                return name_start(s[1]);
        n = name_length(s + 2);
        /* ${NAME}, ${NAME:-word}, ${NAME#pattern} …; an array subscript would be evaluated, so it is literal. */
        return n && s[2 + n] && strchr("}:-+=?#%", s[2 + n]) && strchr(s + 2 + n, '}');
}

char *shell_expandable(const char *s)
{
        struct buf b = {};

        buf_addc(&b, '"');
        for (; *s; s++) {
                if (strchr("\\\"`", *s) || (*s == '$' && !reference(s)))
                        buf_addc(&b, '\\');
                buf_addc(&b, *s);
        }
        buf_addc(&b, '"');
        return buf_steal(&b);
}

bool shell_expands(const char *s)
{
        for (; (s = strchr(s, '$')); s++)
                if (reference(s))
                        return true;
        return false;
}

bool shell_assignable(const char *name)
{
        static const char *const fixed[] = {"UID",    "EUID",   "PPID",          "BASHOPTS", "SHELLOPTS",
                                            "GROUPS", "LINENO", "BASH_VERSINFO", "_",        "FUNCNAME",
                                            "DIRSTACK"};

        for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
                if (streq(name, fixed[i]))
                        return false;
        return *name && name_length(name) == strlen(name);
}
