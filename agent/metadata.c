#include "metadata.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "entry.h"

#define HEADER_PREFIX "X-Metadata-"
#define ATTRIBUTE_LIST_MAX (64 * 1024)

static bool printable(const char *s)
{
        for (; *s; s++)
                if (*s < 0x20 || *s > 0x7e)
                        return false;
        return true;
}

int metadata_from_headers(const struct http_headers *headers, json_t **ret, struct error *err)
{
        json_t *set = json_object();
        size_t total = 0;
        int r = 0;

        for (size_t i = 0; i < headers->count && r >= 0; i++) {
                const char *value = headers->items[i].value;
                CLEANUP_FREE char *key = NULL;

                if (strncasecmp(headers->items[i].name, HEADER_PREFIX, strlen(HEADER_PREFIX)) != 0)
                        continue;
                key = str_lower(xstrdup(headers->items[i].name + strlen(HEADER_PREFIX)));
                if (json_object_get(set, key))
                        continue;
                total += strlen(METADATA_PREFIX) + strlen(key) + strlen(value);
                if (!*key || strlen(key) > METADATA_KEY_MAX)
                        r = error_set(err, ERROR_INVALID, "invalid metadata: a key needs 1 to %d bytes", METADATA_KEY_MAX);
                else if (!printable(key) || !printable(value))
                        r = error_set(err, ERROR_INVALID, "invalid metadata: only printable ASCII is allowed");
                else if (total > METADATA_TOTAL_MAX)
                        r = error_set(err, ERROR_INVALID, "invalid metadata: more than %d bytes", METADATA_TOTAL_MAX);
                else
                        json_object_set_new(set, key, json_string(value));
        }
        if (r < 0)
                json_decref(set);
        else
                *ret = set;
        return r;
}

static void remove_all(int fd)
{
        CLEANUP_FREE char *names = xmalloc(ATTRIBUTE_LIST_MAX);
        ssize_t len = flistxattr(fd, names, ATTRIBUTE_LIST_MAX);

        for (ssize_t at = 0; at < len; at += (ssize_t)strlen(names + at) + 1)
                if (str_starts(names + at, METADATA_PREFIX))
                        fremovexattr(fd, names + at);
}

int metadata_replace(int fd, const json_t *metadata)
{
        const char *key;
        json_t *value;

        remove_all(fd);
        json_object_foreach((json_t *)metadata, key, value) {
                CLEANUP_FREE char *name = xasprintf("%s%s", METADATA_PREFIX, key);
                const char *text = json_string_value(value);

                if (fsetxattr(fd, name, text, strlen(text), 0) < 0 && (errno == ENOSPC || errno == EDQUOT))
                        return -errno;
        }
        return 0;
}
