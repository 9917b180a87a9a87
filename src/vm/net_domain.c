#include "vm/net_domain.h"

#include <string.h>

#include "base/str.h"

#define NAME_MAX_LENGTH 253
#define LABEL_MAX_LENGTH 63

static bool label_ok(const char *s, size_t len)
{
        if (len == 0 || len > LABEL_MAX_LENGTH)
                return false;
        for (size_t i = 0; i < len; i++)
                if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '-' || s[i] == '_'))
                        return false;
        return true;
}

/* In lower case, without a final dot. */
static bool name_ok(const char *name)
{
        size_t len;

        for (;; name += len + 1) {
                len = strcspn(name, ".");
                if (!label_ok(name, len))
                        return false;
                if (name[len] == '\0')
                        return strspn(name, "0123456789") != len;
        }
}

/* `out` holds NAME_MAX_LENGTH + 1. */
static bool copy_name(const char *text, size_t len, char *out)
{
        if (len > 0 && text[len - 1] == '.')
                len--;
        if (len == 0 || len > NAME_MAX_LENGTH || memchr(text, '\0', len))
                return false;
        memcpy(out, text, len);
        out[len] = '\0';
        str_lower(out);
        return name_ok(out);
}

bool net_parse_domain(const char *text, char out[NET_DOMAIN_MAX])
{
        if (streq(text, "*")) {
                strcpy(out, "*");
                return true;
        }
        if (!str_starts(text, "*."))
                return copy_name(text, strlen(text), out);
        strcpy(out, "*.");
        return copy_name(text + 2, strlen(text) - 2, out + 2);
}

bool net_parse_host(const char *text, size_t len, char out[NET_DOMAIN_MAX])
{
        const char *colon = memchr(text, ':', len);

        if (colon) {
                for (const char *p = colon + 1; p < text + len; p++)
                        if (*p < '0' || *p > '9')
                                return false;
                len = (size_t)(colon - text);
        }
        return copy_name(text, len, out);
}

bool net_domain_matches(const char *pattern, const char *name)
{
        if (streq(pattern, "*"))
                return true;
        if (!str_starts(pattern, "*."))
                return streq(pattern, name);
        return strlen(name) > strlen(pattern) - 1 && str_ends(name, pattern + 1);
}
