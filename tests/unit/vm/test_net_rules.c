/* net_rules.h: resolv.conf and the text of the rules; test_net.sh tries them in the kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
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

static void cidr(const char *text, const char *expected)
{
        char got[NET_CIDR_MAX] = "";

        assert_int_equal(net_parse_cidr(text, got), expected != NULL);
        if (expected)
                assert_string_equal(got, expected);
}

static void test_cidr(void **state)
{
        (void)state;
        cidr("1.2.3.4", "1.2.3.4/32");
        cidr("1.2.3.4/24", "1.2.3.0/24");
        cidr("255.255.255.255/0", "0.0.0.0/0");
        cidr("10.0.0.0/32", "10.0.0.0/32");
        cidr("", NULL);
        cidr("/", NULL);
        cidr("1.2.3.4/", NULL);
        cidr("1.2.3.4/33", NULL);
        cidr("1.2.3.4/-1", NULL);
        cidr("1.2.3.4/8 ", NULL);
        cidr("1.2.3", NULL);
        cidr("::1", NULL);
        cidr("1.2.3.4; flush ruleset", NULL);
        cidr("1.2.3.4/8; flush ruleset", NULL);
        cidr("example.com", NULL);
}

static void test_egress(void **state)
{
        static const char *const all[] = {"0.0.0.0/0", NULL}, *const some[] = {"9.9.9.9", "8.0.0.0/7", NULL}, *const bad[] = {"1.2.3.4", "x;y", NULL};
        const struct net_egress e = {some, all}, wrong = {bad, NULL};
        struct buf text = {}, open = {}, out = {};
        struct error err = {};

        (void)state;
        assert_int_equal(net_rules_inner(&text, &(struct net_rules){.resolver = "192.0.2.53", .egress = &e}, NULL), 0);
        /* Internal ranges first, then allow, then deny; no names for who may reach nothing. */
        const char *internal = strstr(text.data, "169.254.0.0/16"), *allow = strstr(text.data, "9.9.9.9/32 accept");
        const char *second = strstr(text.data, "8.0.0.0/7 accept"), *deny = strstr(text.data, "0.0.0.0/0 drop");
        assert_true(internal && internal < allow && allow < second && second < deny);
        assert_null(strstr(text.data, "192.0.2.53"));
        assert_int_equal(net_rules_inner(&open, &(struct net_rules){.resolver = "192.0.2.53", .egress = &(struct net_egress){some, some}}, NULL), 0);
        assert_non_null(strstr(open.data, "192.0.2.53"));
        assert_int_equal(net_rules_inner(&out, &(struct net_rules){.egress = &wrong}, &err), -EINVAL);
        assert_non_null(strstr(err.message, "'x;y'"));
        buf_free(&text);
        buf_free(&open);
        buf_free(&out);
}

/* As many entries as are taken fit what net.c writes into a pipe in one go. */
static void test_egress_bound(void **state)
{
        const char *list[NET_EGRESS_MAX + 2];
        struct buf most = {}, more = {};

        (void)state;
        for (size_t i = 0; i <= NET_EGRESS_MAX; i++)
                list[i] = "255.255.255.255/32";
        list[NET_EGRESS_MAX + 1] = NULL;
        assert_int_equal(net_rules_inner(&more, &(struct net_rules){.egress = &(struct net_egress){list, NULL}}, NULL), -EINVAL);
        list[NET_EGRESS_MAX] = NULL;
        assert_int_equal(net_rules_inner(&most, &(struct net_rules){.resolver = "255.255.255.255", .egress = &(struct net_egress){list, NULL}}, NULL), 0);
        assert_true(most.len <= 61440);
        buf_clear(&most);
        list[NET_EGRESS_MAX - 1] = NULL;
        assert_int_equal(net_rules_inner(&most, &(struct net_rules){.resolver = "255.255.255.255", .listener_port = 65535, .egress =
                                                                    &(struct net_egress){list, NULL, (const char *const[]){"*", NULL}}}, NULL), 0);
        assert_true(most.len <= 61440);
        buf_free(&most);
        buf_free(&more);
}

/* Names are read where an address has not decided; the resolver answers although all else is denied. */
static void test_domains(void **state)
{
        static const char *const all[] = {"0.0.0.0/0", NULL}, *const some[] = {"9.9.9.9", NULL}, *const names[] = {"Example.com", "*.b.org", NULL},
                               *const bad[] = {"x;y", NULL};
        const struct net_egress e = {some, all, names}, wrong = {some, all, bad};
        struct buf text = {}, out = {};
        struct error err = {};

        (void)state;
        assert_int_equal(net_rules_inner(&text, &(struct net_rules){.resolver = "192.0.2.53", .egress = &e, .listener_port = 4242}, NULL), 0);
        const char *dns = strstr(text.data, "dnat to 192.0.2.53"), *internal = strstr(text.data, "169.254.0.0/16");
        const char *allowed = strstr(text.data, "jump allowed"), *redirect = strstr(text.data, "redirect to :4242");
        assert_true(dns && dns < internal && internal < allowed && allowed < redirect);
        assert_true(strstr(text.data, "chain output") < strstr(strstr(text.data, "chain output"), "169.254.0.0/16"));
        assert_null(strstr(text.data, "xample"));
        assert_int_equal(net_rules_inner(&out, &(struct net_rules){.egress = &wrong, .listener_port = 1}, &err), -EINVAL);
        assert_non_null(strstr(err.message, "'x;y' is no domain"));
        buf_free(&text);
        buf_free(&out);
}

static void test_always_denied(void **state)
{
        static const char *const denied[] = {"0.1.2.3", "10.255.255.255", "100.64.0.1", "100.127.9.9", "127.0.0.1", "169.254.169.254", "172.16.0.1",
                                             "172.31.255.255", "192.168.0.1", "224.0.0.1", "255.255.255.255"},
                               *const fine[] = {"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.0.0", "172.32.0.0",
                                                "192.167.1.1", "223.255.255.255"};
        (void)state;
        for (size_t i = 0; i < sizeof(denied) / sizeof(*denied); i++)
                assert_true(net_always_denied((struct in_addr){inet_addr(denied[i])}));
        for (size_t i = 0; i < sizeof(fine) / sizeof(*fine); i++)
                assert_false(net_always_denied((struct in_addr){inet_addr(fine[i])}));
}

static void test_inner(void **state)
{
        struct buf strict = {}, lax = {}, silent = {};
        (void)state;

        assert_int_equal(net_rules_inner(&strict, &(struct net_rules){.resolver = "10.0.0.53"}, NULL), 0);
        assert_int_equal(net_rules_inner(&lax, &(struct net_rules){.resolver = "10.0.0.53", .allow_private = true}, NULL), 0);
        assert_int_equal(net_rules_inner(&silent, &(struct net_rules){}, NULL), 0);
        /* The resolver is let through before its private range is denied. */
        assert_true(strstr(strict.data, "ip daddr 10.0.0.53") < strstr(strict.data, "10.0.0.0/8"));
        assert_non_null(strstr(strict.data, "169.254.0.0/16"));
        assert_null(strstr(lax.data, "10.0.0.0/8"));
        assert_null(strstr(silent.data, "dnat"));
        buf_free(&strict);
        buf_free(&lax);
        buf_free(&silent);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_resolver), cmocka_unit_test(test_inner), cmocka_unit_test(test_cidr), cmocka_unit_test(test_egress), cmocka_unit_test(test_egress_bound),
                                           cmocka_unit_test(test_domains), cmocka_unit_test(test_always_denied)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
