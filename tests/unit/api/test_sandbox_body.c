/* Bodies of sandbox requests: what the SDKs send is taken, wrong types are named, unavailable features are refused with
 * their text (sandbox-api 5.1, 13, 25.6).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/sandbox-body.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"

static json_t *json(const char *text)
{
        json_t *j = NULL;
        struct error err = {};
        if (json_parse(text, strlen(text), &j, &err) < 0)
                fail_msg("%s: %s", text, err.message);
        return j;
}

static void takes(const char *text, bool v2)
{
        CLEANUP_JSON json_t *j = json(text);
        struct sandbox_body b;
        struct error err = {};
        if (sandbox_body_parse(j, v2, &b, &err) < 0 || sandbox_body_check(&b, &err) < 0)
                fail_msg("%s: %s", text, err.message);
}

static void malformed(const char *text, const char *message)
{
        CLEANUP_JSON json_t *j = json(text);
        struct sandbox_body b;
        struct error err = {};
        assert_true(sandbox_body_parse(j, false, &b, &err) < 0);
        assert_int_equal(err.kind, ERROR_INVALID);
        if (strncmp(err.message, "validation error: ", 18) != 0 || !strstr(err.message, message))
                fail_msg("%s: expected \"%s\", got \"%s\"", text, message, err.message);
}

static void refused(const char *text, enum error_kind kind, const char *message)
{
        CLEANUP_JSON json_t *j = json(text);
        struct sandbox_body b;
        struct error err = {};
        assert_int_equal(sandbox_body_parse(j, false, &b, &err), 0);
        assert_true(sandbox_body_check(&b, &err) < 0);
        assert_int_equal(err.kind, kind);
        if (!strstr(err.message, message))
                fail_msg("%s: expected \"%s\", got \"%s\"", text, message, err.message);
}

/* Items S30, S36 and S37 */
static void test_what_sdks_send(void **state)
{
        (void)state;
        takes("{\"templateID\":\"base\"}", true);
        takes("{\"templateID\":\"base\",\"metadata\":{},\"envVars\":{},\"timeout\":300,\"secure\":true,\"allow_internet_access\":true}", false);
        takes("{\"templateID\":\"base\",\"allow_internet_access\":false}", false);
        takes("{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"1.1.1.1\",\"2606:4700::/32\"],\"denyOut\":[\"0.0.0.0/0\",\"::/0\"]}}", false);
        takes("{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"example.com\",\"*.Example.org\",\"1.1.1.1\",\"*\"],\"denyOut\":[\"0.0.0.0/0\"]}}", false);
        takes("{\"templateID\":\"base\",\"allow_internet_access\":false,\"network\":{\"allowOut\":[\"example.com\"]}}", false);
        takes("{\"templateID\":\"base\",\"autoPause\":true,\"autoResume\":{\"enabled\":true}}", false);
        takes("{\"templateID\":\"base\",\"autoResume\":{\"enabled\":true}}", false); /* it may be paused by hand */
        takes("{\"templateID\":\"base\",\"autoPause\":false,\"network\":{\"allowOut\":[],\"denyOut\":[]},\"volumeMounts\":[],\"mcp\":{\"a\":1},"
              "\"futureField\":[1,2]}", false);
        takes("{\"templateID\":\"base\",\"metadata\":null,\"envVars\":null,\"network\":null,\"mcp\":null,\"iam\":null,\"timeout\":null}", false);
        takes("{\"templateID\":\"base\",\"secure\":true,\"network\":{\"allowPublicTraffic\":false}}", false);
        takes("{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":false}}", true); /* v2 is always secure */
}

static void test_defaults(void **state)
{
        (void)state;
        CLEANUP_JSON json_t *j = json("{\"templateID\":\"base\"}");
        struct sandbox_body b;
        assert_int_equal(sandbox_body_parse(j, false, &b, NULL), 0);
        assert_int_equal(b.timeout_s, 15);
        assert_false(b.secure);
        assert_true(b.allow_public_traffic);
        assert_int_equal(sandbox_body_parse(j, true, &b, NULL), 0);
        assert_int_equal(b.timeout_s, 300);
        assert_true(b.secure);
        CLEANUP_JSON json_t *insecure = json("{\"templateID\":\"base\",\"secure\":false}");
        assert_int_equal(sandbox_body_parse(insecure, true, &b, NULL), 0);
        assert_true(b.secure); /* v2 has no such member */
}

static void test_malformed(void **state)
{
        (void)state;
        malformed("{}", "'templateID' is required");
        malformed("{\"templateID\":1}", "'templateID'");
        malformed("{\"templateID\":\"b\",\"timeout\":\"5\"}", "'timeout'");
        malformed("{\"templateID\":\"b\",\"timeout\":1.5}", "'timeout'");
        malformed("{\"templateID\":\"b\",\"timeout\":2147483648}", "'timeout'");
        malformed("{\"templateID\":\"b\",\"secure\":\"yes\"}", "'secure'");
        malformed("{\"templateID\":\"b\",\"metadata\":[]}", "'metadata'");
        malformed("{\"templateID\":\"b\",\"metadata\":{\"a\":1}}", "'metadata'");
        malformed("{\"templateID\":\"b\",\"envVars\":{\"a\":null}}", "'envVars'");
        malformed("{\"templateID\":\"b\",\"envVars\":{\"\":\"x\"}}", "'envVars'");
        malformed("{\"templateID\":\"b\",\"envVars\":{\"a=b\":\"x\"}}", "'envVars'");
        malformed("{\"templateID\":\"b\",\"autoPause\":1}", "'autoPause'");
        malformed("{\"templateID\":\"b\",\"autoResume\":true}", "'autoResume'");
        malformed("{\"templateID\":\"b\",\"autoResume\":{}}", "'autoResume.enabled'");
        malformed("{\"templateID\":\"b\",\"network\":[]}", "'network'");
        malformed("{\"templateID\":\"b\",\"network\":{\"allowOut\":\"x\"}}", "'allowOut'");
        malformed("{\"templateID\":\"b\",\"network\":{\"denyOut\":[1]}}", "'denyOut'");
        malformed("{\"templateID\":\"b\",\"network\":{\"allowPublicTraffic\":\"no\"}}", "'allowPublicTraffic'");
        malformed("{\"templateID\":\"b\",\"network\":{\"maskRequestHost\":1}}", "'maskRequestHost'");
        malformed("{\"templateID\":\"b\",\"volumeMounts\":{}}", "'volumeMounts'");
        malformed("{\"templateID\":\"b\",\"volumeMounts\":[{\"name\":\"v\"}]}", "'volumeMounts'");
        malformed("{\"templateID\":\"b\",\"mcp\":\"x\"}", "'mcp'");
        malformed("{\"templateID\":\"b\",\"iam\":1}", "'iam'");
}

static void test_limits(void **state)
{
        (void)state;
        CLEANUP_BUF struct buf b = {};
        buf_adds(&b, "{\"templateID\":\"b\",\"metadata\":{\"k\":\"");
        for (int i = 0; i < SANDBOX_METADATA_MAX; i++)
                buf_addc(&b, 'x');
        buf_adds(&b, "\"}}");
        malformed(buf_str(&b), "'metadata'");
}

/* Items S34, S38, S78, S79, S80, S86 and S88 */
static void test_unavailable_is_refused(void **state)
{
        (void)state;
        refused("{\"templateID\":\"b\",\"autoPauseMemory\":false}", ERROR_INVALID, "autoPauseMemory=false only applies when autoPause is true.");
        refused("{\"templateID\":\"b\",\"autoPause\":true,\"autoPauseMemory\":false,\"autoResume\":{\"enabled\":true}}", ERROR_INVALID, "autoResume");
        refused("{\"templateID\":\"b\",\"network\":{\"allowPublicTraffic\":false}}", ERROR_INVALID,
                "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.");
        refused("{\"templateID\":\"b\",\"network\":{\"allowOut\":[\"example.com\"]}}", ERROR_INVALID, "you must include 'ALL_TRAFFIC' in deny out");
        refused("{\"templateID\":\"b\",\"network\":{\"allowOut\":[\"*\"],\"denyOut\":[\"1.2.3.4\"]}}", ERROR_INVALID, "'ALL_TRAFFIC'");
        refused("{\"templateID\":\"b\",\"network\":{\"allowOut\":[\"https://example.com\"],\"denyOut\":[\"0.0.0.0/0\"]}}", ERROR_INVALID,
                "invalid allowed address or domain https://example.com");
        refused("{\"templateID\":\"b\",\"network\":{\"allowOut\":[\"1.2.3.4/33\"],\"denyOut\":[\"0.0.0.0/0\"]}}", ERROR_INVALID, "invalid allowed");
        refused("{\"templateID\":\"b\",\"network\":{\"allowOut\":[\"0.0.0.0\"]}}", ERROR_INVALID, "invalid allowed address 0.0.0.0");
        refused("{\"templateID\":\"b\",\"network\":{\"denyOut\":[\"example.com\"]}}", ERROR_INVALID, "invalid denied CIDR example.com");
        refused("{\"templateID\":\"b\",\"network\":{\"denyOut\":[\"1.2.3.4/33\"]}}", ERROR_INVALID, "invalid denied CIDR 1.2.3.4/33");
        refused("{\"templateID\":\"b\",\"network\":{\"denyOut\":[\"::\"]}}", ERROR_INVALID, "invalid denied CIDR ::");
        refused("{\"templateID\":\"b\",\"network\":{\"egressProxy\":{\"address\":\"h:1\"}}}", ERROR_FORBIDDEN, "egressProxy");
        refused("{\"templateID\":\"b\",\"network\":{\"rules\":{\"a.com\":[]}}}", ERROR_INVALID, "rules");
        for (const char *const *mask = (const char *const[]){ "", ":80", "a b", "a\\r\\nX: y", "a/b", "\u00e4.com", "${HOST}", NULL }; *mask; mask++) {
                CLEANUP_FREE char *body = xasprintf("{\"templateID\":\"b\",\"network\":{\"maskRequestHost\":\"%s\"}}", *mask);

                refused(body, ERROR_INVALID, "invalid maskRequestHost");
        }
        refused("{\"templateID\":\"b\",\"iam\":{\"tokens\":{\"a\":{}}}}", ERROR_INVALID, "iam is not enabled");
        refused("{\"templateID\":\"b\",\"volumeMounts\":[{\"name\":\"v\",\"path\":\"/m\"}]}", ERROR_INVALID, "Volume mounts are not enabled.");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_sdks_send), cmocka_unit_test(test_defaults), cmocka_unit_test(test_malformed),
                cmocka_unit_test(test_limits),         cmocka_unit_test(test_unavailable_is_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
