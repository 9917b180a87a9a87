/* Patterns and paths are walked in step, segment by segment; nothing is allocated to choose. */
#include "api/route.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"

/* The segment at *p without its leading "/"; advances. False at the end. */
static bool next_segment(const char **p, const char **ret, size_t *ret_len)
{
        if (**p != '/')
                return false;
        *ret = *p + 1;
        *ret_len = strcspn(*ret, "/");
        *p = *ret + *ret_len;
        return true;
}

static bool matches(const char *pattern, const char *path)
{
        const char *a, *b;
        size_t n, m;

        while (next_segment(&pattern, &a, &n)) {
                if (!next_segment(&path, &b, &m))
                        return false;
                if (*a == '{' ? m == 0 : n != m || memcmp(a, b, n) != 0)
                        return false;
        }
        return !*path;
}

/* Both match the same path. */
static bool more_specific(const char *pattern, const char *than)
{
        const char *a, *b;
        size_t n, m;

        while (next_segment(&pattern, &a, &n) && next_segment(&than, &b, &m))
                if ((*a == '{') != (*b == '{'))
                        return *b == '{';
        return false;
}

static bool method_fits(const struct api_route *r, const char *method)
{
        return streq(r->method, method) || (streq(method, "HEAD") && streq(r->method, "GET"));
}

enum route_verdict route_find(const struct api_route *routes, size_t count, const char *method, const char *path,
                              const struct api_route **ret)
{
        const struct api_route *best = NULL;
        bool known = false;

        for (size_t i = 0; i < count; i++) {
                if (!matches(routes[i].pattern, path))
                        continue;
                known = true;
                if (method_fits(&routes[i], method) && (!best || more_specific(routes[i].pattern, best->pattern)))
                        best = &routes[i];
        }
        if (!best)
                return known ? ROUTE_OTHER_METHOD : ROUTE_UNKNOWN;
        *ret = best;
        return ROUTE_FOUND;
}

int route_params(const struct api_route *route, const char *path, char *ret_params[ROUTE_PARAMS_MAX + 1])
{
        const char *pattern = route->pattern, *a, *b;
        char *params[ROUTE_PARAMS_MAX + 1] = {};
        size_t n, m, count = 0;

        while (next_segment(&pattern, &a, &n) && next_segment(&path, &b, &m)) {
                if (*a != '{' || count == ROUTE_PARAMS_MAX)
                        continue;
                params[count] = url_decode(b, m, false);
                if (!params[count]) {
                        while (count)
                                free(params[--count]);
                        return -EINVAL;
                }
                count++;
        }
        memcpy(ret_params, params, sizeof(params));
        return 0;
}

char *route_allow(const struct api_route *routes, size_t count, const char *path)
{
        struct buf b = {};

        for (size_t i = 0; i < count; i++) {
                if (!matches(routes[i].pattern, path) || strstr(buf_str(&b), routes[i].method))
                        continue;
                buf_addf(&b, "%s%s", b.len ? ", " : "", routes[i].method);
        }
        return buf_steal(&b);
}
