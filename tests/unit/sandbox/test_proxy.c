/* The proxy between a real client and a real "guest" on loopback. The manager is a fake that dials the port asked for;
 * the guest is a blocking script in the test. Hang guards of 20 s only.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "sandbox/proxy.h"

static struct {
        uv_loop_t loop;
        uv_async_t stop;
        struct http_server *server;
        struct proxy *proxy;
        pthread_t thread;
        int port;
        int guest, guest_port; /* listening */
        int dead, dials, late_port, life;
} t;

int sandbox_route(struct sandbox_manager *m, const char *id, struct sandbox_route *ret)
{
        assert_ptr_equal(m, &t);
        *ret = (struct sandbox_route){.running = true, .life = (uint64_t)__atomic_load_n(&t.life, __ATOMIC_SEQ_CST), .public_traffic = !streq(id, "isecure")};
        strcpy(ret->traffic_token, "opensesame");
        if ((str_starts(id, "iabc") || streq(id, "isecure")) && !__atomic_load_n(&t.dead, __ATOMIC_SEQ_CST))
                return 0;
        ret->running = false;
        return -ENOENT;
}

int sandbox_dial(struct sandbox_manager *m, const char *id, int port, int *ret_fd)
{
        struct sockaddr_in a = {.sin_family = AF_INET};
        int dials = __atomic_add_fetch(&t.dials, 1, __ATOMIC_SEQ_CST), fd;

        (void)m;
        (void)id;
        if (port == 49983)
                port = t.guest_port;
        if (port == 7777 && dials == 3) /* opens while the proxy tries */
                port = t.guest_port;
        a.sin_port = htons((uint16_t)port);
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
                int r = -errno;

                close(fd);
                return r;
        }
        *ret_fd = fd;
        return 0;
}

int sandbox_by_signature(struct sandbox_manager *m, const char *path, const char *operation, const char *user, const char *expiration,
                         const char *signature, char *ret_id)
{
        (void)m;
        if (!streq(path, "a b.txt") || !streq(user, "") || expiration || !streq(signature, streq(operation, "read") ? "v1_r" : "v1_w"))
                return -ENOENT;
        strcpy(ret_id, "iabc");
        return 0;
}

static void handler(struct http_exchange *x, void *data)
{
        static const struct http_exchange_ops api;

        if (proxy_wants(http_exchange_request(x))) {
                proxy_handle(data, x);
                return;
        }
        http_exchange_accept(x, &api, NULL, false);
        http_exchange_reply(x, 200, "text/plain", "the API", 7);
}

static void on_done(void *data)
{
        (void)data;
        proxy_free(t.proxy);
        uv_close((uv_handle_t *)&t.stop, NULL);
}

static void on_stop(uv_async_t *a)
{
        (void)a;
        http_server_close(t.server, on_done, NULL);
}

static void *run(void *arg)
{
        uv_run(&t.loop, UV_RUN_DEFAULT);
        return arg;
}

static void guard(int fd)
{
        struct timeval tv = {.tv_sec = 20};

        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
}

static int setup(void **state)
{
        struct sockaddr_in a = {.sin_family = AF_INET};
        socklen_t len = sizeof(a);
        struct http_server_options o = {.handler = handler};
        struct error err;

        (void)state;
        memset(&t, 0, sizeof(t));
        t.life = 1;
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        t.guest = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        guard(t.guest);
        if (bind(t.guest, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(t.guest, 10) < 0)
                return -1;
        getsockname(t.guest, (struct sockaddr *)&a, &len);
        t.guest_port = ntohs(a.sin_port);
        uv_loop_init(&t.loop);
        uv_async_init(&t.loop, &t.stop, on_stop);
        proxy_new(&t.loop, (struct sandbox_manager *)&t, &t.proxy);
        o.data = t.proxy;
        assert_int_equal(http_server_new(&t.loop, "127.0.0.1", 0, &o, &t.server, &err), 0);
        t.port = http_server_port(t.server);
        return pthread_create(&t.thread, NULL, run, NULL);
}

static int teardown(void **state)
{
        (void)state;
        uv_async_send(&t.stop);
        pthread_join(t.thread, NULL);
        close(t.guest);
        return uv_loop_close(&t.loop);
}

static int dial(void)
{
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)t.port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        guard(fd);
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
        return fd;
}

static int guest_accept(void)
{
        int fd = accept(t.guest, NULL, NULL);

        assert_true(fd >= 0);
        guard(fd);
        return fd;
}

static void put(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(int fd, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        assert_int_equal(send(fd, b.data, b.len, MSG_NOSIGNAL), b.len);
}

/* Until `until` is at the end, or the end of the stream when NULL. Returns whether it ended by a reset. */
static bool get(int fd, const char *until, struct buf *out)
{
        char c[65536];

        buf_clear(out);
        for (;;) {
                ssize_t n = recv(fd, c, until ? 1 : sizeof(c), 0);

                if (n <= 0) {
                        assert_true(n == 0 || errno == ECONNRESET);
                        return n < 0;
                }
                buf_add(out, c, (size_t)n);
                if (until && out->len >= strlen(until) && str_ends(buf_str(out), until))
                        return false;
        }
}

static void assert_has(const struct buf *b, const char *text)
{
        if (!strstr(buf_str(b), text))
                fail_msg("\"%s\" not in: %s", text, buf_str(b));
}

static void assert_lacks(const struct buf *b, const char *text)
{
        if (strcasestr(buf_str(b), text))
                fail_msg("\"%s\" in: %s", text, buf_str(b));
}

#define SANDBOX "Host: localhost\r\nE2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: "

static void test_relay_and_api_on_one_connection(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "POST /x%%2Fy?q=1 HTTP/1.1\r\n" SANDBOX "%d\r\nX-Mine: 1\r\nContent-Length: 5\r\n\r\nhello", t.guest_port);
        g = guest_accept();
        get(g, "hello", &b);
        assert_has(&b, "POST /x%2Fy?q=1 HTTP/1.1\r\nHost: localhost\r\n");
        assert_has(&b, "X-Mine: 1\r\n");
        assert_lacks(&b, "e2b-sandbox");
        put(g, "HTTP/1.1 201 Created\r\nX-Guest: yes\r\nContent-Length: 4\r\n\r\ngood");
        get(fd, "good", &b);
        assert_has(&b, "HTTP/1.1 201 Created\r\n");
        assert_has(&b, "X-Guest: yes\r\n");
        assert_has(&b, "Connection: keep-alive\r\n");
        close(g);
        put(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        get(fd, "the API", &b);
        put(fd, "GET /2 HTTP/1.1\r\nHost: %d-iabc.localhost\r\n\r\n", t.guest_port);
        g = guest_accept();
        get(g, "\r\n\r\n", &b);
        put(g, "HTTP/1.0 200 OK\r\n\r\nuntil close");
        close(g);
        get(fd, "0\r\n\r\n", &b);
        assert_has(&b, "until close");
        close(fd);
}

static void test_streaming(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "POST / HTTP/1.1\r\n" SANDBOX "49983\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        g = guest_accept();
        get(g, "3\r\none\r\n", &b);
        assert_has(&b, "Transfer-Encoding: chunked\r\n");
        /* Both directions at once, each piece through before the next is sent. */
        put(g, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
        get(fd, "1\r\na\r\n", &b);
        put(fd, "3\r\ntwo\r\n0\r\n\r\n");
        get(g, "3\r\ntwo\r\n0\r\n\r\n", &b);
        put(g, "1\r\nb\r\n0\r\n\r\n");
        get(fd, "1\r\nb\r\n0\r\n\r\n", &b);
        close(g);
        close(fd);
}

static void test_refusals(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: inone\r\nE2b-Sandbox-Port: 49983\r\n\r\n");
        get(fd, "}", &b);
        assert_has(&b, "HTTP/1.1 502 ");
        assert_has(&b, "{\"sandboxId\":\"inone\",\"message\":\"The sandbox was not found\",\"code\":502}");
        put(fd, "GET / HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: inone\r\n\r\n");
        get(fd, "missing header\n", &b);
        assert_has(&b, "HTTP/1.1 400 ");
        assert_has(&b, "Content-Type: text/plain; charset=utf-8\r\n");
        put(fd, "POST /files/../init HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: inone\r\nE2b-Sandbox-Port: 49983\r\n\r\n");
        get(fd, "}", &b);
        assert_has(&b, "HTTP/1.1 404 ");
        put(fd, "GET / HTTP/1.1\r\nHost: %d-isecure.localhost\r\n\r\n", t.guest_port);
        get(fd, "}", &b);
        assert_has(&b, "HTTP/1.1 403 ");
        assert_has(&b, "is missing");
        put(fd, "GET / HTTP/1.1\r\nHost: %d-isecure.localhost\r\nE2B-Traffic-Access-Token: no\r\n\r\n", t.guest_port);
        get(fd, "}", &b);
        assert_has(&b, "is invalid");
        put(fd, "GET / HTTP/1.1\r\nHost: 9-inone.localhost\r\nUser-Agent: Mozilla/5.0\r\n\r\n");
        get(fd, "</html>", &b);
        assert_has(&b, "Sandbox Not Found");
        assert_int_equal(t.dials, 0);
        close(fd);
}

static void test_traffic_token(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "GET / HTTP/1.1\r\nHost: %d-isecure.localhost\r\ne2b-traffic-access-token: opensesame\r\n\r\n", t.guest_port);
        g = guest_accept();
        get(g, "\r\n\r\n", &b);
        assert_lacks(&b, "opensesame");
        close(g);
        get(fd, "}", &b);
        /* It broke before the head: as if nothing listened. */
        assert_has(&b, "port is not open");
        close(fd);
}

static void test_dial(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "GET / HTTP/1.1\r\n" SANDBOX "7777\r\n\r\n");
        g = guest_accept();
        assert_int_equal(t.dials, 3);
        get(g, "\r\n\r\n", &b);
        put(g, "HTTP/1.1 204 No Content\r\n\r\n");
        get(fd, "\r\n\r\n", &b);
        assert_has(&b, " 204 ");
        close(g);
        t.dials = 0;
        put(fd, "GET / HTTP/1.1\r\n" SANDBOX "1\r\n\r\n");
        get(fd, "}", &b);
        assert_int_equal(t.dials, 5);
        assert_has(&b, "{\"sandboxId\":\"iabc\",\"message\":\"The sandbox is running but port is not open\",\"port\":1,\"code\":502}");
        close(fd);
}

static void test_signed_url(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "POST /files?path=a+b.txt&signature=v1_w HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        g = guest_accept();
        get(g, "\r\n\r\n", &b);
        assert_has(&b, "POST /files?path=a+b.txt&signature=v1_w ");
        put(g, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]");
        get(fd, "[]", &b);
        close(g);
        put(fd, "GET /files?path=a+b.txt&signature=v1_w HTTP/1.1\r\nHost: localhost\r\n\r\n");
        get(fd, "ended\n", &b);
        assert_has(&b, " 400 ");
        close(fd);
}

static void test_websocket(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "GET /ws HTTP/1.1\r\n" SANDBOX "%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\nfirst",
            t.guest_port);
        g = guest_accept();
        get(g, "\r\n\r\n", &b);
        assert_has(&b, "Upgrade: websocket\r\n");
        assert_has(&b, "Sec-WebSocket-Key: k\r\n");
        put(g, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n!");
        get(fd, "!", &b);
        assert_has(&b, "HTTP/1.1 101 ");
        assert_has(&b, "Sec-WebSocket-Accept: a\r\n");
        get(g, "first", &b);
        put(fd, "ping");
        get(g, "ping", &b);
        put(g, "pong");
        get(fd, "pong", &b);
        shutdown(fd, SHUT_WR);
        get(g, NULL, &b);
        put(g, "after your half");
        close(g);
        get(fd, NULL, &b);
        assert_string_equal(buf_str(&b), "after your half");
        close(fd);
}

static void test_client_leaves(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "GET / HTTP/1.1\r\n" SANDBOX "%d\r\n\r\n", t.guest_port);
        g = guest_accept();
        get(g, "\r\n\r\n", &b);
        close(fd);
        get(g, NULL, &b); /* ends */
        close(g);
        fd = dial();
        put(fd, "GET / HTTP/1.1\r\n" SANDBOX "1\r\n\r\n");
        close(fd); /* while dialling: teardown must find nothing left */
}

static void test_guest_breaks(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        put(fd, "GET / HTTP/1.1\r\n" SANDBOX "%d\r\n\r\n", t.guest_port);
        g = guest_accept();
        get(g, "\r\n\r\n", &b);
        put(g, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        get(fd, "half", &b);
        close(g);
        assert_true(get(fd, NULL, &b));
        close(fd);
}

static void test_guest_dies(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), other = dial(), g, g2;

        (void)state;
        put(fd, "GET / HTTP/1.1\r\n" SANDBOX "%d\r\n\r\n", t.guest_port);
        g = guest_accept();
        put(g, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
        get(fd, "1\r\na\r\n", &b);
        put(other, "GET / HTTP/1.1\r\n" SANDBOX "%d\r\n\r\n", t.guest_port);
        g2 = guest_accept();
        get(g2, "\r\n\r\n", &b);
        __atomic_store_n(&t.dead, 1, __ATOMIC_SEQ_CST); /* without a word on the sockets */
        assert_true(get(fd, NULL, &b));
        get(other, "}", &b);
        assert_has(&b, "The sandbox was not found");
        close(fd);
        close(other);
        close(g);
        close(g2);
}

/* 32 MiB each way through a reader that begins late: bounded memory is the engine's part, here nothing may be lost. */
static void test_large_bodies(void **state)
{
        enum { SIZE = 32 << 20 };
        CLEANUP_FREE char *block = xcalloc(1, SIZE);
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g, status;
        pid_t child;

        (void)state;
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                g = accept(t.guest, NULL, NULL);
                size_t at = 0;

                while (at < SIZE) {
                        ssize_t n = recv(g, block, SIZE, 0);

                        if (n <= 0)
                                _exit(1);
                        at += (size_t)n; /* the head counts too: at least SIZE less a head is through then */
                }
                dprintf(g, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", SIZE);
                for (at = 0; at < SIZE;) {
                        ssize_t n = send(g, block + at, SIZE - at, MSG_NOSIGNAL);

                        if (n <= 0)
                                _exit(1);
                        at += (size_t)n;
                }
                recv(g, block, SIZE, 0);
                _exit(0);
        }
        put(fd, "POST / HTTP/1.1\r\n" SANDBOX "%d\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", t.guest_port, SIZE);
        for (size_t at = 0; at < SIZE;) {
                ssize_t n = send(fd, block + at, SIZE - at, MSG_NOSIGNAL);

                assert_true(n > 0);
                at += (size_t)n;
        }
        get(fd, NULL, &b);
        assert_has(&b, "HTTP/1.1 200 OK\r\n");
        assert_int_equal(b.len - (size_t)(strstr(b.data, "\r\n\r\n") + 4 - b.data), SIZE);
        close(fd);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
}

/* One exchange over `fd` to the guest on `g` (accepted when -1); the guest's side, still open, is returned. */
static int exchange(int fd, int g, const char *request, const char *answer)
{
        CLEANUP_BUF struct buf b = {};

        put(fd, request, t.guest_port);
        if (g < 0)
                g = guest_accept();
        get(g, "\r\n\r\n", &b);
        assert_lacks(&b, "Connection:");
        put(g, "%s", answer);
        get(fd, str_ends(answer, "end") ? "end" : "\r\n\r\n", &b);
        return g;
}

#define GET "GET / HTTP/1.1\r\n" SANDBOX "%d\r\n\r\n"
#define FRAMED "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nend"

static void test_kept_connections(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), other = dial(), g, h;

        (void)state;
        g = exchange(fd, -1, GET, FRAMED);
        g = exchange(fd, g, "HEAD / HTTP/1.1\r\n" SANDBOX "%d\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n");
        g = exchange(other, g, GET, "HTTP/1.1 204 No Content\r\n\r\n"); /* whoever asks */
        assert_int_equal(t.dials, 1);
        /* What has a body cannot be sent twice: a connection of its own, which is kept too. */
        put(fd, "POST / HTTP/1.1\r\n" SANDBOX "%d\r\nContent-Length: 4\r\n\r\nbody", t.guest_port);
        h = guest_accept();
        get(h, "body", &b);
        put(h, FRAMED);
        get(fd, "end", &b);
        h = exchange(fd, h, GET, FRAMED);
        assert_int_equal(t.dials, 2);
        /* The agent keeps its connections: there a body may go over one. */
        put(other, "POST / HTTP/1.1\r\n" SANDBOX "49983\r\nContent-Length: 4\r\n\r\nbody");
        int agent = guest_accept();
        for (int i = 0; i < 2; i++) {
                get(agent, "body", &b);
                put(agent, FRAMED);
                get(other, "end", &b);
                if (i == 0)
                        put(other, "POST / HTTP/1.1\r\n" SANDBOX "49983\r\nContent-Length: 4\r\n\r\nbody");
        }
        assert_int_equal(t.dials, 3);
        close(agent);
        /* The next life of the sandbox sees none of them. */
        __atomic_store_n(&t.life, 2, __ATOMIC_SEQ_CST);
        close(exchange(fd, -1, GET, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nend"));
        assert_int_equal(t.dials, 4);
        get(g, NULL, &b);
        get(h, NULL, &b);
        assert_int_equal(b.len, 0);
        close(exchange(fd, -1, GET, "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nend"));
        assert_int_equal(t.dials, 5);
        close(g);
        close(h);
        close(fd);
        close(other);
}

static void test_kept_connections_that_are_no_use(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), g;

        (void)state;
        close(exchange(fd, -1, GET, FRAMED)); /* closed while nobody uses it */
        g = exchange(fd, -1, GET, FRAMED);
        assert_int_equal(t.dials, 2);
        /* Closed when the next request is on its way: it is sent again. */
        put(fd, GET, t.guest_port);
        get(g, "\r\n\r\n", &b);
        close(g);
        g = exchange(fd, -1, "", FRAMED);
        assert_int_equal(t.dials, 3);
        /* Bytes that nobody asked for are nobody's answer. */
        put(g, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfalse");
        close(exchange(fd, -1, GET, FRAMED "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfalse"));
        close(g);
        g = exchange(fd, -1, GET, FRAMED);
        /* A broken answer is not asked for twice. */
        put(fd, GET, t.guest_port);
        get(g, "\r\n\r\n", &b);
        put(g, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ne");
        close(g);
        get(fd, NULL, &b);
        assert_true(str_ends(buf_str(&b), "\r\n\r\ne"));
        assert_int_equal(t.dials, 5);
        close(fd);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(test_relay_and_api_on_one_connection), T(test_streaming), T(test_refusals), T(test_traffic_token), T(test_dial),
                T(test_signed_url), T(test_websocket), T(test_client_leaves), T(test_guest_breaks), T(test_guest_dies),
                T(test_large_bodies), T(test_kept_connections), T(test_kept_connections_that_are_no_use),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
