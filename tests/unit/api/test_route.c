/* Routing on the raw path. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/route.h"

static const struct api_route routes[] = {
        {"GET", "/templates", 0},
        {"GET", "/templates/{id}", 0},
        {"DELETE", "/templates/{id}", 0},
        {"DELETE", "/templates/tags", 0},
        {"GET", "/templates/aliases/{alias}", 0},
        {"GET", "/templates/{id}/{what}", 0},
        {"GET", "/templates/{id}/builds/{build}/status", 0},
        {"GET", "/", 0},
};
#define COUNT (sizeof(routes) / sizeof(routes[0]))

static void found(const char *method, const char *path, const char *pattern)
{
        const struct api_route *r = NULL;

        assert_int_equal(route_find(routes, COUNT, method, path, &r), ROUTE_FOUND);
        assert_string_equal(r->pattern, pattern);
}

static void not_found(const char *method, const char *path, enum route_verdict verdict)
{
        const struct api_route *r = NULL;

        assert_int_equal(route_find(routes, COUNT, method, path, &r), verdict);
        assert_null(r);
}

static void test_find(void **state)
{
        (void)state;
        found("GET", "/", "/");
        found("GET", "/templates", "/templates");
        found("HEAD", "/templates", "/templates");
        found("GET", "/templates/a%2Fb", "/templates/{id}");
        found("GET", "/templates/tags", "/templates/{id}");
        found("DELETE", "/templates/tags", "/templates/tags");
        found("DELETE", "/templates/tagsx", "/templates/{id}");
        found("GET", "/templates/aliases/x", "/templates/aliases/{alias}");
        found("GET", "/templates/other/x", "/templates/{id}/{what}");
        found("GET", "/templates/a/builds/b/status", "/templates/{id}/builds/{build}/status");
        not_found("POST", "/templates", ROUTE_OTHER_METHOD);
        not_found("get", "/templates", ROUTE_OTHER_METHOD);
        not_found("GET", "/templates/", ROUTE_UNKNOWN);
        not_found("GET", "//templates", ROUTE_UNKNOWN);
        not_found("GET", "/templates%2Fa", ROUTE_UNKNOWN);
        not_found("GET", "/templates//builds/b/status", ROUTE_UNKNOWN);
        not_found("GET", "/nothing", ROUTE_UNKNOWN);
}

static void test_params(void **state)
{
        char *params[ROUTE_PARAMS_MAX + 1] = {};

        (void)state;
        assert_int_equal(route_params(&routes[6], "/templates/acme%2Fx%3av1/builds/b+c/status", params), 0);
        assert_string_equal(params[0], "acme/x:v1");
        assert_string_equal(params[1], "b+c");
        assert_null(params[2]);
        free(params[0]);
        free(params[1]);
        params[0] = NULL;
        assert_int_equal(route_params(&routes[6], "/templates/ok/builds/%zz/status", params), -EINVAL);
        assert_null(params[0]);
        assert_int_equal(route_params(&routes[1], "/templates/a%00", params), -EINVAL);
}

static void test_allow(void **state)
{
        char *allow = route_allow(routes, COUNT, "/templates/tags");

        (void)state;
        assert_string_equal(allow, "GET, DELETE");
        free(allow);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_find),
                cmocka_unit_test(test_params),
                cmocka_unit_test(test_allow),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
