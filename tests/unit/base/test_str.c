#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "base/str.h"

static void predicates(void **state)
{
        char s[] = "  Ab \n";

        (void)state;
        assert_true(streq(NULL, NULL));
        assert_false(streq("a", NULL));
        assert_true(str_starts("abc", "ab"));
        assert_true(str_ends("abc", "bc"));
        assert_false(str_ends("c", "bc"));
        assert_string_equal(str_lower(str_trim(s)), "ab");
        assert_true(str_is_hex("0af", 3));
        assert_false(str_is_hex("0AF", 3));
        assert_false(str_is_hex("0af", 4));
        assert_true(str_equal_constant_time("abc", "abc"));
        assert_false(str_equal_constant_time("abc", "abd"));
        assert_false(str_equal_constant_time("abc", "ab"));
}

static void one_line(void **state)
{
        static const char *const cases[][2] = {{"", ""}, {" \n\t\r\n", ""}, {"a", "a"}, {"  a  b\n", "a  b"},
                                               {"a\n\r\n  b\nc \033[0m", "a | b | c  [0m"}, {"\n\nx\ty", "x y"}};

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                char *line = str_one_line(cases[i][0]);

                assert_string_equal(line, cases[i][1]);
                free(line);
        }
}

static void numbers(void **state)
{
        uint64_t v;

        (void)state;
        assert_true(str_to_u64("18446744073709551615", UINT64_MAX, &v));
        assert_int_equal(v, UINT64_MAX);
        assert_false(str_to_u64("18446744073709551616", UINT64_MAX, &v));
        assert_false(str_to_u64("", 10, &v));
        assert_false(str_to_u64("11", 10, &v));
        assert_false(str_to_u64("-1", 10, &v));
        assert_false(str_to_u64("1 ", 10, &v));
}

static void hex(void **state)
{
        unsigned char bytes[3];
        char out[7];

        (void)state;
        assert_true(hex_decode("00fFa5", bytes, 3));
        hex_encode(bytes, 3, out);
        assert_string_equal(out, "00ffa5");
        assert_false(hex_decode("00ff", bytes, 3));
        assert_false(hex_decode("00fg00", bytes, 3));
}

static void utf8(void **state)
{
        static const struct {
                const char *in;
                size_t len;
                const char *out;
        } cases[] = {
                {"plain", 5, "plain"},
                {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
                {"a\xff\0b", 4, "a\xef\xbf\xbd\xef\xbf\xbd" "b"},
                {"\xc0\xaf", 2, "\xef\xbf\xbd\xef\xbf\xbd"},
                {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                {"\xe2\x82", 2, "\xef\xbf\xbd\xef\xbf\xbd"},
                {"\xf4\x90\x80\x80", 4, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                char *s = utf8_scrub(cases[i].in, cases[i].len);

                assert_string_equal(s, cases[i].out);
                assert_int_equal(utf8_valid(cases[i].in, cases[i].len), strcmp(cases[i].in, s) == 0);
                assert_true(utf8_valid(s, strlen(s)));
                free(s);
        }
}

static void identifiers(void **state)
{
        char id[21], uuid[UUID_LEN + 1], other[UUID_LEN + 1];

        (void)state;
        random_id(id, 20);
        assert_int_equal(strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789"), 20);
        random_uuid(uuid);
        random_uuid(other);
        assert_true(uuid_valid(uuid));
        assert_int_equal(uuid[14], '4');
        assert_string_not_equal(uuid, other);
        assert_false(uuid_valid("550e8400-e29b-41d4-a716-44665544000"));
        assert_false(uuid_valid("550e8400-e29b-41d4-a716_446655440000"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(predicates), cmocka_unit_test(one_line), cmocka_unit_test(numbers), cmocka_unit_test(hex),
                                           cmocka_unit_test(utf8), cmocka_unit_test(identifiers)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
