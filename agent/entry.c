#include "entry.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "user.h"

#define ATTRIBUTE_LIST_MAX (64 * 1024)
#define ATTRIBUTE_MAX (64 * 1024)

json_t *entry_string(const char *s)
{
        json_t *j = json_string(s);
        CLEANUP_FREE char *clean = NULL;

        if (j)
                return j;
        clean = utf8_scrub(s, strlen(s));
        return json_string(clean);
}

void entry_mode_text(mode_t mode, char *out)
{
        char *p = out;

        if (S_ISDIR(mode))
                *p++ = 'd';
        if (S_ISLNK(mode))
                *p++ = 'L';
        if (S_ISBLK(mode) || S_ISCHR(mode))
                *p++ = 'D';
        if (S_ISFIFO(mode))
                *p++ = 'p';
        if (S_ISSOCK(mode))
                *p++ = 'S';
        if (mode & S_ISUID)
                *p++ = 'u';
        if (mode & S_ISGID)
                *p++ = 'g';
        if (S_ISCHR(mode))
                *p++ = 'c';
        if (mode & S_ISVTX)
                *p++ = 't';
        if (p == out)
                *p++ = '-';
        for (int i = 8; i >= 0; i--)
                *p++ = mode & (1u << i) ? "xwr"[i % 3] : '-';
        *p = 0;
}

static const char *type_name(mode_t mode)
{
        return S_ISREG(mode) ? "FILE_TYPE_FILE" : S_ISDIR(mode) ? "FILE_TYPE_DIRECTORY" : NULL;
}

json_t *entry_metadata(const char *path)
{
        json_t *metadata = json_object();
        CLEANUP_FREE char *names = xmalloc(ATTRIBUTE_LIST_MAX), *value = xmalloc(ATTRIBUTE_MAX);
        ssize_t len = listxattr(path, names, ATTRIBUTE_LIST_MAX);

        for (ssize_t at = 0; at < len; at += (ssize_t)strlen(names + at) + 1) {
                const char *key = names + at + strlen(METADATA_PREFIX);
                ssize_t n;

                if (!str_starts(names + at, METADATA_PREFIX) || !*key || !utf8_valid(key, strlen(key)))
                        continue;
                n = getxattr(path, names + at, value, ATTRIBUTE_MAX);
                if (n >= 0 && utf8_valid(value, (size_t)n))
                        json_object_set_new(metadata, key, json_stringn(value, (size_t)n));
        }
        return metadata;
}

static void set_time(json_t *entry, const struct timespec *ts)
{
        char text[64], fraction[16];
        struct tm tm;
        size_t n;

        if (ts->tv_sec == 0 && ts->tv_nsec == 0)
                return;
        gmtime_r(&ts->tv_sec, &tm);
        n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
        /* 0, 3, 6 or 9 digits */
        snprintf(fraction, sizeof(fraction), ".%09ld", ts->tv_nsec);
        for (int cut = 9; cut >= 0 && strcmp(fraction + cut - 2, "000") == 0; cut -= 3)
                fraction[cut - 2] = 0;
        snprintf(text + n, sizeof(text) - n, "%sZ", streq(fraction, ".") ? "" : fraction);
        json_object_set_new(entry, "modifiedTime", json_string(text));
}

static void set_details(json_t *entry, const char *path, const struct stat *st, const struct stat *target, bool link,
                        bool resolved)
{
        CLEANUP_FREE char *owner = user_name(st->st_uid), *group = group_name(st->st_gid);
        CLEANUP_FREE char *real = link ? realpath(path, NULL) : NULL;
        char text[ENTRY_MODE_MAX], size[24];
        json_t *metadata;

        if (st->st_size != 0) {
                snprintf(size, sizeof(size), "%lld", (long long)st->st_size);
                json_object_set_new(entry, "size", json_string(size));
        }
        if (resolved && (target->st_mode & 0777))
                json_object_set_new(entry, "mode", json_integer(target->st_mode & 0777));
        entry_mode_text(st->st_mode, text);
        json_object_set_new(entry, "permissions", json_string(text));
        json_object_set_new(entry, "owner", entry_string(owner));
        json_object_set_new(entry, "group", entry_string(group));
        set_time(entry, &st->st_mtim);
        if (link)
                json_object_set_new(entry, "symlinkTarget", entry_string(real ? real : path));
        metadata = entry_metadata(path);
        if (json_object_size(metadata))
                json_object_set(entry, "metadata", metadata);
        json_decref(metadata);
}

json_t *entry_info(const char *path, bool legacy)
{
        const char *end = path + strlen(path), *name;
        struct stat st, target;
        bool link, resolved = true;
        json_t *entry;

        if (lstat(path, &st) < 0)
                return NULL;
        target = st;
        link = S_ISLNK(st.st_mode);
        if (link && stat(path, &target) < 0)
                resolved = false;
        while (end > path + 1 && end[-1] == '/')
                end--;
        for (name = end; name > path && name[-1] != '/'; name--)
                ;
        CLEANUP_FREE char *base = end > name ? xstrndup(name, (size_t)(end - name)) : xstrdup("/");

        entry = json_object();
        json_object_set_new(entry, "name", entry_string(base));
        if (resolved && type_name(target.st_mode))
                json_object_set_new(entry, "type", json_string(type_name(target.st_mode)));
        json_object_set_new(entry, "path", entry_string(path));
        if (!legacy)
                set_details(entry, path, &st, &target, link, resolved);
        return entry;
}
