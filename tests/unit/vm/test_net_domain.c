/* net_domain.h and net_sniff.h: which name a connection asks for, and whether a rule allows it (sandbox-api 13.2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "vm/net_sniff.h"

static void domain(const char *text, const char *expected)
{
        char got[NET_DOMAIN_MAX] = "";

        assert_int_equal(net_parse_domain(text, got), expected != NULL);
        if (expected)
                assert_string_equal(got, expected);
}

static void patterns(void **state)
{
        char label[80], longest[300] = "";

        (void)state;
        domain("example.com", "example.com");
        domain("EXAMPLE.Com.", "example.com");
        domain("*.Example.com", "*.example.com");
        domain("*", "*");
        domain("localhost", "localhost");
        domain("_dmarc.xn--bcher-kva.example", "_dmarc.xn--bcher-kva.example");
        domain("", NULL);
        domain(".", NULL);
        domain("*.", NULL);
        domain("*.*", NULL);
        domain("a.*.com", NULL);
        domain("**", NULL);
        domain("a..b", NULL);
        domain(".a", NULL);
        domain("a b", NULL);
        domain("a;b", NULL);
        domain("b\xc3\xbc" "cher.example", NULL);
        domain("a.com/path", NULL);
        domain("a.com:443", NULL);
        domain("1.2.3.4", NULL);
        domain("1.2.3.256", NULL);
        domain("10", NULL);
        memset(label, 'a', sizeof(label));
        label[63] = '\0';
        domain(label, label);
        for (int i = 0; i < 4; i++)
                strcat(strcat(longest, label), i < 3 ? "." : "");
        domain(longest, NULL); /* 255 */
        longest[253] = '\0';
        domain(longest, longest);
        label[63] = 'a';
        label[64] = '\0';
        domain(label, NULL);
}

static void matching(void **state)
{
        (void)state;
        assert_true(net_domain_matches("example.com", "example.com"));
        assert_false(net_domain_matches("example.com", "www.example.com"));
        assert_false(net_domain_matches("example.com", "badexample.com"));
        assert_true(net_domain_matches("*.example.com", "www.example.com"));
        assert_true(net_domain_matches("*.example.com", "a.b.example.com"));
        assert_false(net_domain_matches("*.example.com", "example.com"));
        assert_false(net_domain_matches("*.example.com", "badexample.com"));
        assert_true(net_domain_matches("*", "anything"));
}

static void sniff(const void *data, size_t len, const char *expected)
{
        char name[NET_DOMAIN_MAX] = "";

        assert_int_equal(net_sniff(data, len, name), expected ? NET_SNIFF_NAME : NET_SNIFF_NONE);
        if (expected)
                assert_string_equal(name, expected);
}

static void http(const char *text, const char *expected)
{
        sniff(text, strlen(text), expected);
}

static void http_heads(void **state)
{
        static const char whole[] = "GET / HTTP/1.1\r\nhost: Www.Example.com:8080 \r\nA: b\r\n\r\n";
        char name[NET_DOMAIN_MAX];

        (void)state;
        http(whole, "www.example.com");
        http("GET / HTTP/1.0\nHost:\ta.example\n\nbody", "a.example");
        http("CONNECT other:443 HTTP/1.1\r\nHost: a.example\r\n\r\n", "a.example");
        for (size_t i = 0; i < sizeof(whole) - 1; i++)
                assert_int_equal(net_sniff(whole, i, name), NET_SNIFF_MORE);
        http("GET / HTTP/1.1\r\nA: b\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: a.example\r\nHOST: a.example\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost : a.example\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: a.example\r\n folded\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: a.example\rHost: b.example\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: a.example b.example\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost: a.example:80x\r\n\r\n", NULL);
        http("GET / HTTP/1.1\r\nHost:\r\n\r\n", NULL);
        http("GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n", NULL);
        http("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NULL);
        http("SSH-2.0-OpenSSH_9.2\r\n", NULL);
        http("\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n", NULL);
        sniff("GET / HTTP/1.1\r\nHost: a.example\0b\r\n\r\n", 41, NULL);
        sniff("\x05\x01\x00", 3, NULL);
}

/* What never ends has no name. */
static void heads_are_bounded(void **state)
{
        struct buf b = {};
        char name[NET_DOMAIN_MAX];

        (void)state;
        buf_adds(&b, "GET / HTTP/1.1\r\n");
        while (b.len < NET_SNIFF_MAX - 8)
                buf_adds(&b, "A: b\r\n");
        assert_int_equal(net_sniff(b.data, b.len, name), NET_SNIFF_MORE);
        while (b.len < NET_SNIFF_MAX)
                buf_addc(&b, 'a');
        assert_int_equal(net_sniff(b.data, b.len, name), NET_SNIFF_NONE);
        buf_free(&b);
}

static void add16(struct buf *b, size_t n)
{
        buf_addc(b, (char)(n >> 8));
        buf_addc(b, (char)n);
}

static void add_server_name(struct buf *b, const char *name, size_t len)
{
        add16(b, 0);
        add16(b, len + 5);
        add16(b, len + 3);
        buf_addc(b, 0);
        add16(b, len);
        buf_add(b, name, len);
}

/* A ClientHello with `extensions`, in records of at most `chunk` bytes. */
static void hello(struct buf *out, const struct buf *extensions, size_t chunk)
{
        struct buf body = {}, message = {};

        add16(&body, 0x0303);
        for (int i = 0; i < 32; i++)
                buf_addc(&body, (char)i);
        buf_add(&body, "\x04" "sess", 5);
        add16(&body, 2);
        add16(&body, 0x1301);
        buf_add(&body, "\x01\x00", 2);
        add16(&body, extensions->len);
        buf_add(&body, extensions->data, extensions->len);
        buf_add(&message, "\x01\x00", 2);
        add16(&message, body.len);
        buf_add(&message, body.data, body.len);
        for (size_t at = 0; at < message.len; at += chunk) {
                size_t n = message.len - at < chunk ? message.len - at : chunk;

                buf_add(out, "\x16\x03\x01", 3);
                add16(out, n);
                buf_add(out, message.data + at, n);
        }
        buf_free(&body);
        buf_free(&message);
}

static void tls(const struct buf *extensions, const char *expected)
{
        for (size_t chunk = 1; chunk < 600; chunk += chunk < 8 ? 1 : 97) {
                struct buf b = {};
                char name[NET_DOMAIN_MAX];

                hello(&b, extensions, chunk);
                sniff(b.data, b.len, expected);
                for (size_t i = 0; i < b.len && expected; i++)
                        assert_int_equal(net_sniff(b.data, i, name), NET_SNIFF_MORE);
                buf_free(&b);
        }
}

static void client_hellos(void **state)
{
        struct buf one = {}, two = {}, none = {}, address = {}, zero = {}, port = {}, cut = {};

        (void)state;
        add16(&one, 0x002b);
        add16(&one, 3);
        buf_add(&one, "\x02\x03\x04", 3);
        buf_add(&none, one.data, one.len);
        add_server_name(&one, "Api.Example.com", 15);
        tls(&one, "api.example.com");
        buf_add(&two, one.data, one.len);
        add_server_name(&two, "b.example", 9);
        tls(&two, NULL);
        tls(&none, NULL);
        add_server_name(&address, "192.0.2.1", 9);
        tls(&address, NULL);
        add_server_name(&zero, "a.example\0.b", 12);
        tls(&zero, NULL);
        add_server_name(&port, "a.example:1", 11);
        tls(&port, NULL);
        buf_add(&cut, one.data, one.len - 1);
        tls(&cut, NULL);
        sniff("\x16\x03\x01\x00\x01\x02", 6, NULL); /* a ServerHello */
        sniff("\x16\x03\x01\x00\x00", 5, NULL);
        sniff("\x16\x03\x01\xff\xff", 5, NULL);
        sniff("\x16\x02\x01\x00\x01\x01", 6, NULL);
        sniff("\x16\x03\x01\x00\x04\x01\xff\xff\xff", 9, NULL); /* 16 MiB to come */
        buf_free(&one);
        buf_free(&two);
        buf_free(&none);
        buf_free(&address);
        buf_free(&zero);
        buf_free(&port);
        buf_free(&cut);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(patterns), cmocka_unit_test(matching), cmocka_unit_test(http_heads),
                                           cmocka_unit_test(heads_are_bounded), cmocka_unit_test(client_hellos)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
