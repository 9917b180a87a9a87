/* Tokens and file signatures; the signature vector is the contract's (sandbox-api 3). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "sandbox/token.h"

static unsigned char secret[ROOT_SECRET_LEN] = { 1, 2, 3 };

/* Item S29 */
static void test_signature_vector(void **state)
{
        (void)state;
        char out[FILE_SIGNATURE_MAX];
        file_signature("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", NULL, out);
        assert_string_equal(out, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
        char expiring[FILE_SIGNATURE_MAX];
        file_signature("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "1700000000", expiring);
        assert_string_not_equal(out, expiring);
}

static void test_tokens(void **state)
{
        (void)state;
        char envd[SANDBOX_TOKEN_LEN + 1], again[SANDBOX_TOKEN_LEN + 1], other[SANDBOX_TOKEN_LEN + 1], traffic[SANDBOX_TOKEN_LEN + 1];
        sandbox_envd_token(secret, "iaaaa", envd);
        sandbox_envd_token(secret, "iaaaa", again);
        sandbox_envd_token(secret, "iaaab", other);
        sandbox_traffic_token(secret, "iaaaa", traffic);
        assert_true(str_is_hex(envd, SANDBOX_TOKEN_LEN));
        assert_true(str_is_hex(traffic, SANDBOX_TOKEN_LEN));
        assert_string_equal(envd, again);
        assert_string_not_equal(envd, other);
        assert_string_not_equal(envd, traffic);
}

static void test_secret_matters(void **state)
{
        (void)state;
        unsigned char another[ROOT_SECRET_LEN] = { 1, 2, 4 };
        char a[SANDBOX_TOKEN_LEN + 1], b[SANDBOX_TOKEN_LEN + 1];
        sandbox_envd_token(secret, "iaaaa", a);
        sandbox_envd_token(another, "iaaaa", b);
        assert_string_not_equal(a, b);
}

/* The derivation is a format: running sandboxes keep their tokens over an upgrade. Computed with Python's hmac module. */
static void test_stable(void **state)
{
        (void)state;
        char token[SANDBOX_TOKEN_LEN + 1];
        sandbox_envd_token(secret, "iaaaa", token);
        assert_string_equal(token, "d20ea96c780bb66d4b5f9d4d668fa121160ffe78cae032fc2bd613a445fc9ca1");
        sandbox_traffic_token(secret, "iaaaa", token);
        assert_string_equal(token, "581a5a68583a91f698e3f097ce5054be8ccfcdc108320f94424e8aae1742bc80");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_signature_vector),
                cmocka_unit_test(test_tokens),
                cmocka_unit_test(test_secret_matters),
                cmocka_unit_test(test_stable),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
