/* The client against a scripted peer on the other end of a socket pair, on one loop; libuv writes from the
 * test side happen by plain send(), which a socket buffer takes at once.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "http/client.h"

struct fixture {
        uv_loop_t loop;
        struct http_call *call;
        int peer;
        int responses, status_code, ends, closes, status;
        bool pause_on_data, drained;
        struct buf body;
};

static void on_response(struct http_call *c, const struct http_response *r, void *userdata)
{
        struct fixture *f = userdata;

        (void)c;
        f->responses++;
        f->status_code = r->status;
}

static void on_data(struct http_call *c, const void *data, size_t len, void *userdata)
{
        struct fixture *f = userdata;

        buf_add(&f->body, data, len);
        if (f->pause_on_data)
                http_call_pause(c);
}

static void on_end(struct http_call *c, void *userdata)
{
        struct fixture *f = userdata;

        (void)c;
        f->ends++;
}

static void on_drain(struct http_call *c, void *userdata)
{
        struct fixture *f = userdata;

        (void)c;
        f->drained = true;
}

static void on_close(struct http_call *c, int status, void *userdata)
{
        struct fixture *f = userdata;

        (void)c;
        f->closes++;
        f->status = status;
}

static const struct http_call_ops ops = {
        .on_response = on_response, .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_close = on_close,
};

static void begin(struct fixture *f, const char *method, bool chunked, bool upgrade)
{
        struct http_headers h = {};
        struct error err;
        int fds[2];

        *f = (struct fixture){};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        f->peer = fds[1];
        uv_loop_init(&f->loop);
        http_headers_add(&h, "Host", "guest");
        if (upgrade)
                http_headers_add(&h, "Upgrade", "websocket");
        assert_int_equal(http_call_new(&f->loop, fds[0], method, "/p?q", &h, chunked, &ops, f, &f->call, &err), 0);
        http_headers_free(&h);
}

static void turn(struct fixture *f)
{
        for (int i = 0; i < 20; i++)
                uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void say(struct fixture *f, const char *s)
{
        assert_int_equal(send(f->peer, s, strlen(s), MSG_NOSIGNAL), strlen(s));
        turn(f);
}

static void hear(struct fixture *f, struct buf *out)
{
        char block[65536];
        ssize_t n;

        turn(f);
        while ((n = recv(f->peer, block, sizeof(block), MSG_DONTWAIT)) > 0) {
                buf_add(out, block, (size_t)n);
                turn(f);
        }
}

/* Reads the request first: closing with it unread would be a reset. */
static void leave(struct fixture *f)
{
        CLEANUP_BUF struct buf sent = {};

        if (f->peer < 0)
                return;
        hear(f, &sent);
        close(f->peer);
        f->peer = -1;
}

static void finish(struct fixture *f, int status)
{
        leave(f);
        uv_run(&f->loop, UV_RUN_DEFAULT);
        assert_int_equal(f->closes, 1);
        assert_int_equal(f->status, status);
        assert_int_equal(uv_loop_close(&f->loop), 0);
        buf_free(&f->body);
}

static void test_request_and_response(void **state)
{
        CLEANUP_BUF struct buf sent = {};
        struct fixture f;

        (void)state;
        begin(&f, "POST", true, false);
        http_call_write(f.call, "hello", 5);
        http_call_end(f.call);
        hear(&f, &sent);
        assert_string_equal(buf_str(&sent), "POST /p?q HTTP/1.1\r\nHost: guest\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        say(&f, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_int_equal(f.responses, 1);
        assert_int_equal(f.status_code, 201);
        say(&f, "3\r\nabc\r\n");
        assert_string_equal(buf_str(&f.body), "abc");
        assert_int_equal(f.ends, 0);
        say(&f, "0\r\n\r\n");
        assert_int_equal(f.ends, 1);
        finish(&f, 0);
}

static void test_until_close(void **state)
{
        struct fixture f;

        (void)state;
        begin(&f, "GET", false, false);
        say(&f, "HTTP/1.0 200 OK\n\nbody");
        leave(&f);
        turn(&f);
        assert_string_equal(buf_str(&f.body), "body");
        finish(&f, 0);
}

static void test_head_request(void **state)
{
        struct fixture f;

        (void)state;
        begin(&f, "HEAD", false, false);
        say(&f, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
        assert_int_equal(f.ends, 1);
        finish(&f, 0);
}

static void failing(const char *answer, int status)
{
        struct fixture f;

        begin(&f, "GET", false, false);
        if (*answer)
                say(&f, answer);
        finish(&f, status);
}

static void test_failures(void **state)
{
        CLEANUP_BUF struct buf big = {};

        (void)state;
        failing("", -ECONNRESET);
        failing("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", -ECONNRESET);
        failing("HTTP/1.1 200", -EPROTO);
        failing("SSH-2.0-OpenSSH\r\n\r\n", -EPROTO);
        failing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", -EPROTO);
        failing("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", -EPROTO);
        buf_adds(&big, "HTTP/1.1 200 OK\r\nX: ");
        while (big.len < 70000)
                buf_addc(&big, 'a');
        failing(buf_str(&big), -EPROTO);
}

static void test_tunnel(void **state)
{
        CLEANUP_BUF struct buf sent = {};
        struct fixture f;

        (void)state;
        begin(&f, "GET", false, true);
        http_call_end(f.call);
        say(&f, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nearly");
        assert_int_equal(f.status_code, 101);
        assert_string_equal(buf_str(&f.body), "early");
        http_call_write(f.call, "raw", 3);
        hear(&f, &sent);
        assert_non_null(strstr(buf_str(&sent), "\r\n\r\nraw"));
        shutdown(f.peer, SHUT_WR);
        turn(&f);
        assert_int_equal(f.ends, 1);
        assert_int_equal(f.closes, 0); /* our half is still open */
        http_call_write(f.call, "last", 4);
        http_call_end(f.call);
        buf_clear(&sent);
        hear(&f, &sent);
        assert_string_equal(buf_str(&sent), "last");
        finish(&f, 0);
}

static void test_pause(void **state)
{
        struct fixture f;

        (void)state;
        begin(&f, "GET", false, false);
        f.pause_on_data = true;
        say(&f, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc");
        say(&f, "def");
        assert_string_equal(buf_str(&f.body), "abc");
        assert_int_equal(f.ends, 0);
        http_call_resume(f.call);
        assert_string_equal(buf_str(&f.body), "abcdef");
        turn(&f);
        assert_int_equal(f.ends, 0);
        http_call_resume(f.call);
        turn(&f);
        assert_int_equal(f.ends, 1);
        finish(&f, 0);
}

static void test_drain(void **state)
{
        CLEANUP_BUF struct buf sent = {};
        CLEANUP_FREE char *block = calloc(1, 65536);
        struct fixture f;
        size_t total = 0;

        (void)state;
        begin(&f, "POST", false, false);
        while (http_call_write(f.call, block, 65536) < 1024 * 1024)
                total += 65536;
        total += 65536;
        assert_false(f.drained);
        hear(&f, &sent);
        assert_true(f.drained);
        assert_true(sent.len > total);
        http_call_abort(f.call);
        finish(&f, -ECANCELED);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_request_and_response), cmocka_unit_test(test_until_close),
                cmocka_unit_test(test_head_request),         cmocka_unit_test(test_failures),
                cmocka_unit_test(test_tunnel),               cmocka_unit_test(test_pause),
                cmocka_unit_test(test_drain),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
