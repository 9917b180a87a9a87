/* Choosing a route by method and raw path. Pure; internal to src/api/. */
#pragma once

#include <stddef.h>

#include "api/api.h"

#define ROUTE_PARAMS_MAX 7

enum route_verdict {
        ROUTE_FOUND,
        ROUTE_UNKNOWN,      /* no pattern matches the path: 404 */
        ROUTE_OTHER_METHOD, /* the path is known, the method is not: 405 */
};

/* The most specific route of those that match: compared segment by segment from the left, a literal beats a
 * "{name}". The raw path is split at "/" before anything is decoded, so that "%2F" stays inside one segment
 * (template-api W5); an empty segment matches no "{name}". HEAD is served by GET. Sets *ret for ROUTE_FOUND. */
enum route_verdict route_find(const struct api_route *routes, size_t count, const char *method, const char *path,
                              const struct api_route **ret);

/* Decodes the "{name}" segments of `path`, which matches the route's pattern, in order; NULL-terminated, the
 * caller frees each. Returns 0, or -EINVAL when one is malformed ("%zz"; nothing is set then). */
int route_params(const struct api_route *route, const char *path, char *ret_params[ROUTE_PARAMS_MAX + 1]);

/* "GET, POST" for the Allow header of a 405; the caller frees. */
char *route_allow(const struct api_route *routes, size_t count, const char *path);
