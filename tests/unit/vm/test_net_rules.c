/* net_rules.h: resolv.conf and the text of the rules; test_net.sh tries them in the kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "vm/net_rules.h"

static void expect(const char *text, const char *address)
{
        char got[NET_ADDRESS_MAX] = "";

        assert_int_equal(net_parse_resolver(text, got), address != NULL);
        assert_string_equal(got, address ? address : "");
}

static void test_resolver(void **state)
{
        (void)state;
        expect("nameserver 10.255.255.53\n", "10.255.255.53");
        expect("nameserver 10.255.255.53", "10.255.255.53");
        expect("search example.com\n#nameserver 1.1.1.1\nnameserver\t192.0.2.7 # comment\n", "192.0.2.7");
        expect("nameserver 127.0.0.53\nnameserver 127.1.2.3\nnameserver 9.9.9.9\n", "9.9.9.9");
        expect("nameserver fd00::1\r\nnameserver 192.168.1.1\r\n", "192.168.1.1");
        expect("", NULL);
        expect("\n\n", NULL);
        expect("nameserver", NULL);
        expect("nameserver \n", NULL);
        expect("nameserver 127.0.0.53\n", NULL);
        expect("nameserver 0.0.0.0\n", NULL);
        expect("nameserver 1.2.3.4; flush ruleset\n", NULL); /* nothing but an address gets into the rules */
        expect("nameserver 1.2.3\n", NULL);
        expect("nameserver 1.2.3.4.5\n", NULL);
        expect("xnameserver 1.2.3.4\n", NULL);
        expect("nameserver\n1.2.3.4\n", NULL);
}

static void test_inner(void **state)
{
        struct buf strict = {}, lax = {}, silent = {};
        (void)state;

        net_rules_inner(&strict, "10.0.0.53", false);
        net_rules_inner(&lax, "10.0.0.53", true);
        net_rules_inner(&silent, NULL, false);
        /* The resolver is let through before its private range is denied. */
        assert_true(strstr(strict.data, "ip daddr 10.0.0.53") < strstr(strict.data, "10.0.0.0/8"));
        assert_non_null(strstr(strict.data, "169.254.0.0/16"));
        assert_null(strstr(lax.data, "10.0.0.0/8"));
        assert_null(strstr(silent.data, "dnat"));
        /* net.c writes them into a pipe in one go. */
        assert_true(strict.len <= 4096);
        buf_free(&strict);
        buf_free(&lax);
        buf_free(&silent);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_resolver), cmocka_unit_test(test_inner)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
