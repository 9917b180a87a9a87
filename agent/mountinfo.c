#include "mountinfo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"

static bool is_octal(char c)
{
        return c >= '0' && c <= '7';
}

/* The kernel writes blank, tab, newline and backslash as \ooo. In place. */
static void unescape(char *s)
{
        char *to = s;

        while (*s) {
                if (s[0] == '\\' && is_octal(s[1]) && is_octal(s[2]) && is_octal(s[3])) {
                        *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
                        s += 4;
                } else {
                        *to++ = *s++;
                }
        }
        *to = 0;
}

/* "36 35 98:0 /root /mount/point options [optional…] - type source options" (proc(5)) */
static bool parse_line(char *line, struct mount_entry *ret)
{
        char *fields[5], *save = NULL, *type = strstr(line, " - ");

        if (!type)
                return false;
        *type = 0;
        type += strlen(" - ");
        type[strcspn(type, " ")] = 0;
        for (size_t i = 0; i < 5; i++) {
                fields[i] = strtok_r(i ? NULL : line, " ", &save);
                if (!fields[i])
                        return false;
        }
        if (fields[4][0] != '/')
                return false;
        unescape(fields[4]);
        *ret = (struct mount_entry){ .id = atoi(fields[0]), .path = xstrdup(fields[4]), .type = xstrdup(type) };
        return true;
}

size_t mountinfo_parse(const char *text, struct mount_entry **ret)
{
        CLEANUP_FREE char *copy = xstrdup(text);
        struct mount_entry *mounts = NULL, one;
        size_t count = 0, room = 0;
        char *save = NULL;

        for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                if (!parse_line(line, &one))
                        continue;
                if (count == room) {
                        room = room ? 2 * room : 16;
                        mounts = xreallocarray(mounts, room, sizeof(*mounts));
                }
                mounts[count++] = one;
        }
        *ret = mounts;
        return count;
}

void mountinfo_free(struct mount_entry *mounts, size_t count)
{
        for (size_t i = 0; i < count; i++) {
                free(mounts[i].path);
                free(mounts[i].type);
        }
        free(mounts);
}

bool mountinfo_has(const struct mount_entry *mounts, size_t count, const struct mount_entry *m)
{
        for (size_t i = 0; i < count; i++)
                if (mounts[i].id == m->id && streq(mounts[i].path, m->path))
                        return true;
        return false;
}
