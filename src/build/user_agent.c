/* The template version from the User-Agent header (template-api 10.2): SDKs before 2.3.0 get 2.0, all others 2.1. */
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/build.h"

#define COMPONENT_MAX 1000000000 /* of a version number */

/* One number and the dot after it; false on anything else. */
static bool number(const char **p, uint64_t *ret)
{
        CLEANUP_FREE char *digits = NULL;
        size_t n = strspn(*p, "0123456789");

        digits = xstrndup(*p, n);
        if (!str_to_u64(digits, COMPONENT_MAX, ret))
                return false;
        *p += n;
        return true;
}

/* major[.minor[.patch]] into `v`; `*ret_rest` is what follows. */
static bool numbers(const char *s, uint64_t v[3], const char **ret_rest)
{
        if (*s == 'v')
                s++;
        for (int i = 0; i < 3; i++) {
                if (!number(&s, &v[i]))
                        return false;
                if (*s != '.' || i == 2)
                        break;
                s++;
        }
        *ret_rest = s;
        return true;
}

/* Dot-separated identifiers of [0-9A-Za-z-], none empty. */
static bool identifiers(const char *s, size_t n)
{
        size_t part = 0;

        for (size_t i = 0; i < n; i++) {
                bool alnum = (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'A' && s[i] <= 'Z') ||
                             (s[i] >= 'a' && s[i] <= 'z') || s[i] == '-';

                if (alnum)
                        part++;
                else if (s[i] == '.' && part)
                        part = 0;
                else
                        return false;
        }
        return part > 0;
}

static bool parse_version(const char *s, uint64_t v[3], bool *ret_pre)
{
        const char *rest;
        size_t n;

        if (!numbers(s, v, &rest))
                return false;
        if (*rest == '-') {
                n = strcspn(++rest, "+");
                if (!identifiers(rest, n))
                        return false;
                *ret_pre = true;
                rest += n;
        }
        if (*rest == '+')
                return identifiers(rest + 1, strlen(rest + 1));
        return *rest == '\0';
}

static bool at_least_2_3(const uint64_t v[3], bool pre)
{
        static const uint64_t wanted[3] = {2, 3, 0};

        for (int i = 0; i < 3; i++)
                if (v[i] != wanted[i])
                        return v[i] > wanted[i];
        return !pre; /* 2.3.0-beta.1 comes before 2.3.0 */
}

static const char *sdk_version(const char *token)
{
        if (str_starts(token, "e2b-js-sdk/"))
                return token + strlen("e2b-js-sdk/");
        if (str_starts(token, "e2b-python-sdk/"))
                return token + strlen("e2b-python-sdk/");
        return NULL;
}

int build_template_version(const char *user_agent, int *ret, struct error *err)
{
        CLEANUP_FREE char *copy = xstrdup(user_agent ? user_agent : "");
        char *save = NULL;

        for (char *t = strtok_r(copy, " \t", &save); t; t = strtok_r(NULL, " \t", &save)) {
                const char *version = sdk_version(t);
                uint64_t v[3] = {};
                bool pre = false;

                if (!version)
                        continue;
                if (!parse_version(version, v, &pre))
                        return error_set(err, ERROR_INVALID,
                                         "Error when parsing user agent: '%.100s' is not a semantic version", version);
                *ret = at_least_2_3(v, pre) ? 21 : 20;
                return 0;
        }
        *ret = 21;
        return 0;
}
