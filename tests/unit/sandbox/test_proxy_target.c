/* Targets, reserved paths, forwarded headers and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "sandbox/proxy-target.h"

static struct http_request request(const char *path, const char *query, const char *host, const char *id, const char *port)
{
        struct http_request r = {.method = xstrdup("GET"), .path = xstrdup(path), .query = xstrdup(query)};

        http_headers_add(&r.headers, "Host", host);
        if (id)
                http_headers_add(&r.headers, "E2b-Sandbox-Id", id);
        if (port)
                http_headers_add(&r.headers, "E2b-Sandbox-Port", port);
        return r;
}

static void check(const char *host, const char *id, const char *port, bool wanted, const char *why, const char *want_id,
                  int want_port)
{
        struct http_request r = request("/", "", host, id, port);
        struct proxy_target t = {};

        assert_int_equal(proxy_target_named(&r), wanted);
        if (wanted) {
                const char *got = proxy_target_parse(&r, &t);

                if (why) {
                        assert_non_null(got);
                        assert_string_equal(got, why);
                } else {
                        assert_null(got);
                        assert_string_equal(t.id, want_id);
                        assert_int_equal(t.port, want_port);
                }
        }
        http_request_free(&r);
}

static void test_targets(void **state)
{
        (void)state;
        check("127.0.0.1:3000", "iabc", "8080", true, NULL, "iabc", 8080);
        check("[::1]:3000", "iabc", "8080", true, NULL, "iabc", 8080);
        check("vmon.internal", "iabc", "8080", true, NULL, "iabc", 8080);
        check("49983-iabc.localhost:3000", NULL, NULL, true, NULL, "iabc", 49983);
        check("80-iabc-6532622b.example.com", NULL, NULL, true, NULL, "iabc", 80);
        check("80-iabc.example.com", "iother", "81", true, NULL, "iabc", 80);
        check("sandbox.example.com", "iother", "81", true, NULL, "iother", 81);
        check("127.0.0.1", NULL, NULL, false, NULL, NULL, 0);
        check("api.example.com", NULL, NULL, false, NULL, NULL, 0);
        check("my-api.example.com", NULL, NULL, false, NULL, NULL, 0);
        check("3000-host:80", NULL, NULL, false, NULL, NULL, 0);
        check("localhost", "iabc", NULL, true, "missing header", NULL, 0);
        check("localhost", NULL, "80", true, "missing header", NULL, 0);
        check("localhost", "i/../x", "80", true, "Invalid sandbox ID", NULL, 0);
        check("localhost", "", "80", true, "Invalid sandbox ID", NULL, 0);
        check("localhost", "iabc", "eighty", true, "Invalid sandbox port", NULL, 0);
        check("localhost", "iabc", "0", true, "Invalid sandbox port", NULL, 0);
        check("localhost", "iabc", "65536", true, "Invalid sandbox port", NULL, 0);
        check("80-IABC.localhost", NULL, NULL, true, "Invalid sandbox ID", NULL, 0);
        check("80-.localhost", NULL, NULL, true, "Invalid sandbox ID", NULL, 0);
        check("99999-iabc.localhost", NULL, NULL, true, "Invalid sandbox port", NULL, 0);
}

static void test_signed(void **state)
{
        static const struct {
                const char *path, *query;
                bool want;
        } cases[] = {
                {"/files", "path=a&signature=x", true}, {"/files", "signature=x", true},  {"/files", "path=a", false},
                {"/files", "xsignature=1", false},      {"/file", "signature=x", false},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct http_request r = request(cases[i].path, cases[i].query, "localhost", NULL, NULL);

                assert_int_equal(proxy_target_signed(&r), cases[i].want);
                http_request_free(&r);
        }
}

static void test_reserved(void **state)
{
        static const char *const yes[] = {"/init", "//init", "/files/../init", "/%69nit", "/./init", "/init/", "/../init",
                                          "/a/b/../../init", "/files%2F..%2Finit", "/freeze", "/unfreeze", "/collapse",
                                          "/fsfreeze", "/fsthaw", "/upgrade", "/telemetry"};
        static const char *const no[] = {"/", "/initx", "/files", "/init/x", "/process.Process/init", "/%2569nit", "/Init", ""};

        (void)state;
        for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
                if (!proxy_reserved_path(yes[i]))
                        fail_msg("%s is let through", yes[i]);
        for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
                if (proxy_reserved_path(no[i]))
                        fail_msg("%s is refused", no[i]);
        assert_string_equal(proxy_reserved_path("/files/../init"), "/init");
}

static void test_request_headers(void **state)
{
        struct http_request r = request("/", "", "80-iabc.x", "iabc", "80");
        struct http_headers h = {};

        (void)state;
        http_headers_add(&r.headers, "E2B-Traffic-Access-Token", "secret");
        http_headers_add(&r.headers, "X-Forwarded-For", "1.2.3.4");
        http_headers_add(&r.headers, "Forwarded", "for=1.2.3.4");
        http_headers_add(&r.headers, "Connection", "keep-alive, X-Hop, Host, Content-Length");
        http_headers_add(&r.headers, "X-Hop", "1");
        http_headers_add(&r.headers, "Content-Length", "3");
        http_headers_add(&r.headers, "X-Access-Token", "kept");
        proxy_request_headers(&r, NULL, &h);
        assert_int_equal(h.count, 3);
        assert_string_equal(http_headers_get(&h, "host"), "80-iabc.x");
        assert_string_equal(http_headers_get(&h, "content-length"), "3");
        assert_string_equal(http_headers_get(&h, "x-access-token"), "kept");
        assert_null(http_headers_get(&h, "connection"));
        http_headers_free(&h);

        http_headers_set(&r.headers, "Connection", "Upgrade");
        http_headers_set(&r.headers, "Upgrade", "websocket");
        r.upgrade = true;
        proxy_request_headers(&r, NULL, &h);
        assert_string_equal(http_headers_get(&h, "upgrade"), "websocket");
        assert_string_equal(http_headers_get(&h, "connection"), "Upgrade");
        http_headers_free(&h);
        http_request_free(&r);
}

static void test_masked_host(void **state)
{
        struct http_request r = request("/", "", "80-iabc.x", "iabc", "80");
        struct http_headers h = {};
        static const char *const masks[][2] = {
                { "app.test", "app.test" }, { "localhost:${PORT}", "localhost:8080" }, { "${PORT}", "8080" }, { "p${PORT}.a-${PORT}:1", "p8080.a-8080:1" },
        };

        (void)state;
        for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
                CLEANUP_FREE char *host = proxy_masked_host(masks[i][0], 8080);

                assert_string_equal(host, masks[i][1]);
        }
        http_headers_add(&r.headers, "X-Forwarded-Host", "forged");
        proxy_request_headers(&r, "app.test", &h);
        assert_int_equal(h.count, 2);
        assert_string_equal(http_headers_get(&h, "host"), "app.test");
        assert_string_equal(http_headers_get(&h, "x-forwarded-host"), "80-iabc.x");
        http_headers_free(&h);
        http_request_free(&r);
}

static bool html(const char *name, const char *value)
{
        struct http_request r = request("/", "", "h", NULL, NULL);
        struct proxy_target t = {.id = "iabc", .port = 3210};
        CLEANUP_BUF struct buf b = {};
        const char *type;
        bool is;

        http_headers_add(&r.headers, "User-Agent", "Mozilla/5.0");
        if (name)
                http_headers_add(&r.headers, name, value);
        assert_int_equal(proxy_refusal_body(PROXY_PORT_CLOSED, &r, &t, NULL, &b, &type), 502);
        is = strncmp(buf_str(&b), "<html", 5) == 0;
        if (is) {
                assert_string_equal(type, "text/html; charset=utf-8");
                assert_non_null(strstr(buf_str(&b), "no service running on port"));
                assert_non_null(strstr(buf_str(&b), "iabc"));
                assert_string_equal(b.data + b.len - 7, "</html>");
        }
        http_request_free(&r);
        return is;
}

static void test_pages(void **state)
{
        (void)state;
        assert_true(html(NULL, NULL));
        assert_true(html("Accept", "text/html,application/json"));
        assert_true(html("Sec-Fetch-Mode", "navigate"));
        assert_false(html("Accept", "application/json"));
        assert_false(html("Sec-Fetch-Mode", "cors"));
        assert_false(html("Sec-Fetch-Mode", "websocket"));
        assert_false(html("X-Requested-With", "XMLHttpRequest"));
}

static void refusal(enum proxy_refusal what, int status, const char *body)
{
        struct http_request r = request("/", "", "h", NULL, NULL);
        struct proxy_target t = {.id = "iabc", .port = 3210};
        CLEANUP_BUF struct buf b = {};
        const char *type;

        assert_int_equal(proxy_refusal_body(what, &r, &t, "/init", &b, &type), status);
        assert_string_equal(buf_str(&b), body);
        assert_string_equal(type, "application/json; charset=utf-8");
        http_request_free(&r);
}

static void test_bodies(void **state)
{
        (void)state;
        refusal(PROXY_RESERVED, 404, "{\"message\":\"This endpoint is reserved for the E2B control plane and is not reachable through "
                                     "the sandbox URL\",\"path\":\"/init\",\"code\":404}");
        refusal(PROXY_NOT_FOUND, 502, "{\"sandboxId\":\"iabc\",\"message\":\"The sandbox was not found\",\"code\":502}");
        refusal(PROXY_PORT_CLOSED, 502, "{\"sandboxId\":\"iabc\",\"message\":\"The sandbox is running but port is not open\","
                                        "\"port\":3210,\"code\":502}");
        refusal(PROXY_NOTHING_STARTED, 502, "{\"sandboxId\":\"iabc\",\"message\":\"The sandbox is running but port is not open\","
                                            "\"port\":3210,\"code\":502,\"hint\":\"The template of this sandbox has no start command, so "
                                            "no service was started in it: start one with a command, or build the template with a "
                                            "start command\"}");
        refusal(PROXY_TOKEN_MISSING, 403, "{\"sandboxId\":\"iabc\",\"message\":\"Sandbox is secured with traffic access token. Token "
                                          "header 'e2b-traffic-access-token' is missing\",\"code\":403}");
        refusal(PROXY_TOKEN_WRONG, 403, "{\"sandboxId\":\"iabc\",\"message\":\"Sandbox is secured with traffic access token. Provided "
                                        "token in header 'e2b-traffic-access-token' is invalid\",\"code\":403}");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_targets),         cmocka_unit_test(test_signed), cmocka_unit_test(test_reserved),
                cmocka_unit_test(test_request_headers), cmocka_unit_test(test_masked_host), cmocka_unit_test(test_pages),  cmocka_unit_test(test_bodies),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
