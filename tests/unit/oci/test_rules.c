/* The small pure rules: second tries, ranges, credentials, origins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/json.h"
#include "base/str.h"
#include "oci/download.h"
#include "oci/retry.h"

static void retry(void **state)
{
        (void)state;
        assert_int_equal(retry_delay_ms(429, NULL, 1), 1000);
        assert_int_equal(retry_delay_ms(429, NULL, 5), 16000);
        assert_int_equal(retry_delay_ms(429, NULL, 6), -1);
        assert_int_equal(retry_delay_ms(429, "0", 1), 0);
        assert_int_equal(retry_delay_ms(429, "60", 5), 60000);
        assert_int_equal(retry_delay_ms(429, "60", 6), -1);
        assert_int_equal(retry_delay_ms(429, "61", 1), -1);
        assert_int_equal(retry_delay_ms(429, "-1", 1), -1);
        assert_int_equal(retry_delay_ms(429, "", 1), -1);
        assert_int_equal(retry_delay_ms(429, "Wed, 21 Oct 2026 07:28:00 GMT", 1), -1);
        assert_int_equal(retry_delay_ms(429, "99999999999999999999", 1), -1);
        assert_int_equal(retry_delay_ms(503, "999", 1), 250);
        assert_int_equal(retry_delay_ms(0, NULL, 4), 2000);
        assert_int_equal(retry_delay_ms(0, NULL, 5), -1);
        assert_int_equal(retry_delay_ms(404, NULL, 1), -1);
        assert_int_equal(retry_delay_ms(501, NULL, 1), -1);
        assert_int_equal(retry_delay_ms(200, NULL, 1), -1);
}

static void range(void **state)
{
        static const char *const bad[] = {
                "", "bytes", "bytes ", "bytes 1", "bytes 1-", "bytes 1-2", "bytes 1-2/", "bytes 2-1/5", "bytes 1-5/5", "bytes */5",
                "bytes 1-2/5x", "bytes -1-2/5", "bytes 1-2/-5", "bytes 99999999999999999999-2/5", "items 1-2/5", "bytes 1 -2/5",
        };
        uint64_t from, to, total;

        (void)state;
        assert_true(content_range_parse("bytes 5-9/10", &from, &to, &total));
        assert_int_equal(from, 5);
        assert_int_equal(to, 9);
        assert_int_equal(total, 10);
        assert_true(content_range_parse("bytes 0-0/*", &from, &to, &total));
        assert_true(total == UINT64_MAX);
        for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
                assert_false(content_range_parse(bad[i], &from, &to, &total));
}

static int auth(const char *text, struct oci_auth *ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;

        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        return oci_auth_parse(j, ret, err);
}

static void credentials(void **state)
{
        static const struct {
                const char *text, *part;
        } bad[] = {
                {"[]", "object"},
                {"{}", "type"},
                {"{\"type\":\"ftp\"}", "unknown type"},
                {"{\"type\":\"registry\",\"username\":\"u\"}", "password"},
                {"{\"type\":\"registry\",\"username\":\"\",\"password\":\"p\"}", "username"},
                {"{\"type\":\"registry\",\"username\":\"u:v\",\"password\":\"p\"}", "':'"},
                {"{\"type\":\"aws\",\"awsAccessKeyId\":\"a\",\"awsRegion\":\"r\"}", "awsSecretAccessKey"},
                {"{\"type\":\"aws\",\"awsAccessKeyId\":\"a\",\"awsSecretAccessKey\":\"s\",\"awsRegion\":\"evil.com/\"}", "awsRegion"},
                {"{\"type\":\"gcp\",\"serviceAccountJson\":{}}", "serviceAccountJson"},
        };
        struct oci_auth a = {};

        (void)state;
        assert_int_equal(auth("{\"type\":\"registry\",\"username\":\"u\",\"password\":\"p\"}", &a, NULL), 0);
        assert_int_equal(a.kind, OCI_AUTH_BASIC);
        assert_string_equal(a.password, "p");
        oci_auth_free(&a);
        assert_null(a.password);
        for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
                struct error err = {};

                assert_true(auth(bad[i].text, &a, &err) < 0);
                assert_non_null(strstr(err.message, bad[i].part));
                assert_null(a.username);
        }
}

static void origin(const char *url, const char *expected)
{
        CLEANUP_FREE char *o = transfer_origin(url);

        assert_true(streq(o, expected));
}

static void origins(void **state)
{
        static const char *const list[] = {"127.0.0.1:5000", "Reg.Local", NULL};

        (void)state;
        origin("https://A.example/x", "https://a.example:443");
        origin("http://a.example:8080?x", "http://a.example:8080");
        origin("https://user:pw@a.example/", "https://a.example:443");
        origin("ftp://a.example/", NULL);
        origin("file:///etc/passwd", NULL);
        origin("nonsense", NULL);
        assert_true(transfer_insecure(list, "reg.local"));
        assert_false(transfer_insecure(list, "127.0.0.1"));
        assert_false(transfer_insecure(NULL, "x"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(retry), cmocka_unit_test(range), cmocka_unit_test(credentials), cmocka_unit_test(origins),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
