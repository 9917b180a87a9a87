/* Heads and bodies off the wire: what is accepted, what is refused with which status, how bodies decode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "http/wire.h"

static void collect(void *userdata, const void *data, size_t len)
{
        buf_add(userdata, data, len);
}

static int refused(const char *head, size_t len)
{
        struct http_request r;
        struct buf body = {};
        struct wire *w = NULL;
        const char *why;
        int status = wire_request(head, len, collect, &body, &r, &w, &why);

        if (!status) {
                http_request_free(&r);
                wire_free(w);
        } else {
                assert_non_null(why);
        }
        buf_free(&body);
        return status;
}

#define assert_status(status, head) assert_int_equal(refused(head, sizeof(head) - 1), status)

static void test_accepted(void **state)
{
        static const char head[] = "POST http://h.example:80/a%2Fb?x=1&y HTTP/1.1\r\nHost: other\r\nX-Empty:\r\n"
                                   "x-two:  v \r\nContent-Length: 5\r\n\r\n";
        struct http_request r;
        struct buf body = {};
        struct wire *w;
        const char *why;

        (void)state;
        assert_int_equal(wire_request(head, strlen(head), collect, &body, &r, &w, &why), 0);
        assert_string_equal(r.method, "POST");
        assert_string_equal(r.target, "/a%2Fb?x=1&y");
        assert_string_equal(r.path, "/a%2Fb");
        assert_string_equal(r.query, "x=1&y");
        assert_string_equal(http_headers_get(&r.headers, "host"), "h.example:80");
        assert_string_equal(http_headers_get(&r.headers, "x-empty"), "");
        assert_string_equal(http_headers_get(&r.headers, "X-Two"), "v");
        assert_int_equal(r.content_length, 5);
        assert_false(r.chunked);
        assert_false(wire_complete(w));
        /* It stops behind the message. */
        assert_int_equal(wire_body(w, "he", 2), 2);
        assert_int_equal(wire_body(w, "lloGET", 6), 3);
        assert_true(wire_complete(w));
        assert_string_equal(buf_str(&body), "hello");
        buf_free(&body);
        http_request_free(&r);
        wire_free(w);
}

static void test_refused(void **state)
{
        (void)state;
        assert_status(0, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_status(0, "GET / HTTP/1.0\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\nHost: a\n\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nX Y: a\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nnocolon\r\n\r\n");
        assert_status(400, "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_status(400, "GET x HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_status(400, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_status(400, "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_status(400, "NONSENSE\r\n\r\n");
        assert_status(400, "\x16\x03\x01\x02\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5 5\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n");
        assert_status(400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n");
        assert_status(400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_status(400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n");
        assert_status(501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n");
        assert_status(501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n");
        assert_status(400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_status(505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n");
}

static void test_many_headers(void **state)
{
        struct buf b = {};

        (void)state;
        buf_adds(&b, "GET / HTTP/1.1\r\nHost: a\r\n");
        for (int i = 0; i < WIRE_HEADERS_MAX; i++)
                buf_addf(&b, "X-%d: v\r\n", i);
        buf_adds(&b, "\r\n");
        assert_int_equal(refused(b.data, b.len), 431);
        buf_free(&b);
}

static void test_chunked(void **state)
{
        static const char head[] = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n";
        static const char stream[] = "3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\nGET";
        struct http_request r;
        struct buf body = {};
        struct wire *w;
        const char *why;
        size_t at = 0;

        (void)state;
        assert_int_equal(wire_request(head, strlen(head), collect, &body, &r, &w, &why), 0);
        assert_true(r.chunked);
        assert_int_equal(r.content_length, -1);
        while (!wire_complete(w)) {
                assert_int_equal(wire_body(w, stream + at, 1), 1);
                at++;
        }
        assert_string_equal(stream + at, "GET");
        assert_string_equal(buf_str(&body), "abcde");
        wire_free(w);
        assert_int_equal(http_headers_get(&r.headers, "x-trailer") != NULL, 0);
        http_request_free(&r);

        assert_int_equal(wire_request(head, strlen(head), collect, &body, &r, &w, &why), 0);
        assert_true(wire_body(w, "zz\r\n", 4) < 0);
        wire_free(w);
        http_request_free(&r);
        buf_free(&body);
}

static int response(const char *head, bool no_body, struct http_response *r, struct wire **w, struct buf *body)
{
        return wire_response(head, strlen(head), no_body, collect, body, r, w);
}

static void test_response(void **state)
{
        struct http_response r;
        struct buf body = {};
        struct wire *w;

        (void)state;
        assert_int_equal(response("HTTP/1.1 200 Fine\nA: b\n c\nContent-Length: 2\n\n", false, &r, &w, &body), 0);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.reason, "Fine");
        assert_int_equal(r.content_length, 2);
        assert_int_equal(wire_body(w, "ok", 2), 2);
        assert_true(wire_complete(w));
        wire_free(w);
        http_response_free(&r);

        /* Until the peer closes. */
        buf_clear(&body);
        assert_int_equal(response("HTTP/1.0 200 OK\r\n\r\n", false, &r, &w, &body), 0);
        assert_int_equal(r.content_length, -1);
        assert_int_equal(wire_body(w, "rest", 4), 4);
        assert_false(wire_complete(w));
        assert_int_equal(wire_eof(w), 0);
        assert_string_equal(buf_str(&body), "rest");
        wire_free(w);
        http_response_free(&r);

        /* Cut in the middle. */
        assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", false, &r, &w, &body), 0);
        assert_int_equal(wire_body(w, "rest", 4), 4);
        assert_true(wire_eof(w) < 0);
        wire_free(w);
        http_response_free(&r);

        assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true, &r, &w, &body), 0);
        assert_true(wire_complete(w));
        wire_free(w);
        http_response_free(&r);
        assert_true(response("nonsense\r\n\r\n", false, &r, &w, &body) < 0);
        assert_true(response("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", false, &r, &w, &body) < 0);
        buf_free(&body);
}

static void test_head_length(void **state)
{
        (void)state;
        assert_int_equal(wire_head_length("a\r\n\r\nb", 6, 0), 5);
        assert_int_equal(wire_head_length("a\r\n\r\nb", 6, 4), 5);
        assert_int_equal(wire_head_length("a\n\nb", 4, 0), 3);
        assert_int_equal(wire_head_length("a\r\n\r", 4, 0), 0);
        assert_int_equal(wire_head_length("", 0, 0), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_accepted),     cmocka_unit_test(test_refused),  cmocka_unit_test(test_many_headers),
                cmocka_unit_test(test_chunked),      cmocka_unit_test(test_response), cmocka_unit_test(test_head_length),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
