/* The server engine over real loopback sockets: the loop runs on its own thread, the tests are blocking
 * clients. Every read has a hang guard of 20 s, none a lower limit.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "http/server.h"

static struct {
        uv_loop_t loop;
        uv_async_t stop, wake;
        struct http_server *server;
        int port;
        pthread_t thread;
        sem_t closed;                  /* posted by every on_close */
        int aborted;                   /* verdict of the last one */
        struct http_exchange *parked;  /* of /park, resumed by `wake` */
        size_t received;               /* bytes that /park got */
        sem_t parked_up;
} t;

struct state {
        struct buf body;
        size_t to_send;
};

static void echo_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        struct state *s = userdata;

        (void)x;
        buf_add(&s->body, data, len);
}

static void echo_end(struct http_exchange *x, void *userdata)
{
        struct state *s = userdata;

        http_exchange_reply(x, 200, "text/plain", s->body.data, s->body.len);
}

static void on_close(struct http_exchange *x, bool aborted, void *userdata)
{
        struct state *s = userdata;

        if (t.parked == x)
                t.parked = NULL;
        __atomic_store_n(&t.aborted, aborted, __ATOMIC_SEQ_CST);
        sem_post(&t.closed);
        buf_free(&s->body);
        free(s);
}

static void stream_end(struct http_exchange *x, void *userdata)
{
        struct state *s = userdata;

        http_exchange_start(x, 200, NULL, -1);
        http_exchange_write(x, s->body.data, s->body.len);
        http_exchange_write(x, "tail", 4);
        http_exchange_end(x);
}

static void forever_end(struct http_exchange *x, void *userdata)
{
        (void)userdata;
        http_exchange_start(x, 200, NULL, -1);
        http_exchange_write(x, "first", 5);
}

static void pump(struct http_exchange *x, void *userdata)
{
        struct state *s = userdata;
        char block[16384];

        memset(block, 'x', sizeof(block));
        while (s->to_send) {
                size_t n = s->to_send < sizeof(block) ? s->to_send : sizeof(block);

                s->to_send -= n;
                if (http_exchange_write(x, block, n) > HTTP_HIGH_WATER)
                        return;
        }
        http_exchange_end(x);
}

static void big_end(struct http_exchange *x, void *userdata)
{
        struct state *s = userdata;

        s->to_send = 8 << 20;
        http_exchange_start(x, 200, NULL, (int64_t)s->to_send);
        pump(x, userdata);
}

static void park_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        (void)data;
        (void)userdata;
        __atomic_add_fetch(&t.received, len, __ATOMIC_SEQ_CST);
        http_exchange_pause(x);
        t.parked = x;
        sem_post(&t.parked_up);
}

static void park_end(struct http_exchange *x, void *userdata)
{
        (void)userdata;
        http_exchange_reply(x, 200, "text/plain", "all", 3);
}

static void tunnel_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        (void)userdata;
        http_exchange_write(x, data, len);
}

static void tunnel_end(struct http_exchange *x, void *userdata)
{
        (void)userdata;
        http_exchange_write(x, "bye", 3);
        http_exchange_end(x);
}

static const struct http_exchange_ops echo_ops = {.on_data = echo_data, .on_end = echo_end, .on_close = on_close};
static const struct http_exchange_ops half_ops = {.on_data = echo_data, .on_end = echo_end, .on_close = on_close,
                                                  .serves_half_closed = true};
static const struct http_exchange_ops stream_ops = {.on_data = echo_data, .on_end = stream_end, .on_close = on_close};
static const struct http_exchange_ops forever_ops = {.on_end = forever_end, .on_close = on_close};
static const struct http_exchange_ops big_ops = {.on_end = big_end, .on_drain = pump, .on_close = on_close};
static const struct http_exchange_ops park_ops = {.on_data = park_data, .on_end = park_end, .on_close = on_close};
static const struct http_exchange_ops tunnel_ops = {.on_data = tunnel_data, .on_end = tunnel_end, .on_close = on_close};
static const struct http_exchange_ops early_ops = {.on_close = on_close};

static void handler(struct http_exchange *x, void *data)
{
        static const char upgraded[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n";
        const struct http_request *r = http_exchange_request(x);
        struct state *s = xcalloc(1, sizeof(*s));

        (void)data;
        if (strcmp(r->path, "/stream") == 0) {
                http_exchange_accept(x, &stream_ops, s, false);
        } else if (strcmp(r->path, "/half") == 0) {
                http_exchange_accept(x, &half_ops, s, false);
        } else if (strcmp(r->path, "/forever") == 0) {
                http_exchange_accept(x, &forever_ops, s, false);
        } else if (strcmp(r->path, "/big") == 0) {
                http_exchange_accept(x, &big_ops, s, false);
        } else if (strcmp(r->path, "/park") == 0) {
                http_exchange_accept(x, &park_ops, s, false);
        } else if (strcmp(r->path, "/early") == 0) {
                http_exchange_accept(x, &early_ops, s, true);
                http_exchange_reply(x, 413, "text/plain", "no", 2);
        } else if (strcmp(r->path, "/abort") == 0) {
                http_exchange_accept(x, &early_ops, s, true);
                http_exchange_abort(x);
        } else if (strcmp(r->path, "/empty") == 0) {
                http_exchange_accept(x, &early_ops, s, false);
                http_exchange_reply(x, 202, NULL, NULL, 0);
        } else if (r->upgrade) {
                http_exchange_accept(x, &tunnel_ops, s, false);
                http_exchange_takeover(x, upgraded, strlen(upgraded));
        } else {
                http_exchange_accept(x, &echo_ops, s, false);
        }
}

static void on_wake(uv_async_t *a)
{
        (void)a;
        if (t.parked)
                http_exchange_resume(t.parked);
}

static void on_done(void *data)
{
        (void)data;
        uv_close((uv_handle_t *)&t.stop, NULL);
        uv_close((uv_handle_t *)&t.wake, NULL);
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

static int setup(void **state)
{
        struct http_server_options o = {.handler = handler, .max_connections = 20};
        struct error err;

        (void)state;
        memset(&t, 0, sizeof(t));
        sem_init(&t.closed, 0, 0);
        sem_init(&t.parked_up, 0, 0);
        uv_loop_init(&t.loop);
        uv_async_init(&t.loop, &t.stop, on_stop);
        uv_async_init(&t.loop, &t.wake, on_wake);
        if (http_server_new(&t.loop, "127.0.0.1", 0, &o, &t.server, &err) < 0)
                return -1;
        t.port = http_server_port(t.server);
        return pthread_create(&t.thread, NULL, run, NULL);
}

static int teardown(void **state)
{
        (void)state;
        uv_async_send(&t.stop);
        pthread_join(t.thread, NULL);
        return uv_loop_close(&t.loop);
}

static int dial(void)
{
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)t.port)};
        struct timeval guard = {.tv_sec = 20};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &guard, sizeof(guard));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &guard, sizeof(guard));
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
        return fd;
}

static void put(int fd, const char *s)
{
        assert_int_equal(send(fd, s, strlen(s), MSG_NOSIGNAL), strlen(s));
}

/* Reads until `until` is at the end of what came, or to the end of the stream when NULL. */
static void get(int fd, const char *until, struct buf *out)
{
        char c[65536];

        buf_clear(out);
        for (;;) {
                ssize_t n = recv(fd, c, until ? 1 : sizeof(c), 0);

                if (n <= 0) {
                        assert_true(n == 0 || errno == ECONNRESET);
                        return;
                }
                buf_add(out, c, (size_t)n);
                if (until && out->len >= strlen(until) &&
                    memcmp(out->data + out->len - strlen(until), until, strlen(until)) == 0)
                        return;
        }
}

static void wait_sem(sem_t *s)
{
        struct timespec guard;

        clock_gettime(CLOCK_REALTIME, &guard);
        guard.tv_sec += 20;
        assert_int_equal(sem_timedwait(s, &guard), 0);
}

static void assert_has(const struct buf *b, const char *text)
{
        if (!strstr(buf_str(b), text))
                fail_msg("\"%s\" not in: %s", text, buf_str(b));
}

static void assert_lacks(const struct buf *b, const char *text)
{
        if (strstr(buf_str(b), text))
                fail_msg("\"%s\" in: %s", text, buf_str(b));
}

static void test_keep_alive(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        for (int i = 0; i < 3; i++) {
                put(fd, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
                get(fd, "hello", &b);
                assert_has(&b, "HTTP/1.1 200 OK\r\n");
                assert_has(&b, "Content-Length: 5\r\n");
                assert_has(&b, "Connection: keep-alive\r\n");
                assert_has(&b, "Date: ");
        }
        put(fd, "GET /empty HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        get(fd, NULL, &b);
        assert_has(&b, "202 Accepted");
        assert_has(&b, "Content-Length: 0\r\n");
        assert_has(&b, "Connection: close\r\n");
        close(fd);
}

static void test_chunked_bytewise(void **state)
{
        static const char request[] = "POST /stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                                      "3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
        CLEANUP_BUF struct buf b = {};
        int fd = dial(), one = 1;

        (void)state;
        setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof(one));
        for (const char *p = request; *p; p++)
                assert_int_equal(send(fd, p, 1, 0), 1);
        get(fd, "0\r\n\r\n", &b);
        assert_has(&b, "Transfer-Encoding: chunked\r\n");
        assert_has(&b, "\r\n\r\n4\r\nabcd\r\n4\r\ntail\r\n0\r\n\r\n");
        close(fd);
}

static void test_pipelining(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none"
                "POST /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\ntwo"
                "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthree");
        get(fd, NULL, &b);
        assert_true(strstr(buf_str(&b), "one") < strstr(buf_str(&b), "two"));
        assert_true(strstr(buf_str(&b), "two") < strstr(buf_str(&b), "three"));
        close(fd);
}

static void refused(const char *request, const char *status)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        put(fd, request);
        get(fd, NULL, &b);
        assert_has(&b, status);
        assert_has(&b, "{\"code\":");
        assert_has(&b, "Connection: close\r\n");
        close(fd);
}

static void test_refusals(void **state)
{
        CLEANUP_BUF struct buf big = {};

        (void)state;
        refused("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", " 400 ");
        refused("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", " 501 ");
        refused("garbage\r\n\r\n", " 400 ");
        refused("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", " 400 ");
        buf_adds(&big, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
        while (big.len < HTTP_HEAD_MAX + 100)
                buf_addc(&big, 'a');
        refused(buf_str(&big), " 431 "); /* also without an end of the head */
}

static void test_expect(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
        get(fd, "100 Continue\r\n\r\n", &b);
        put(fd, "hi");
        get(fd, "hi", &b);
        assert_has(&b, "200 OK");
        /* A final answer instead of 100: the connection cannot go on. */
        put(fd, "POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
        get(fd, NULL, &b);
        assert_has(&b, "413");
        assert_lacks(&b, "100 Continue");
        assert_has(&b, "Connection: close");
        close(fd);
}

static void test_http10(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "POST /stream HTTP/1.0\r\nContent-Length: 1\r\n\r\nq");
        get(fd, NULL, &b);
        assert_lacks(&b, "chunked");
        assert_has(&b, "\r\n\r\nqtail");
        close(fd);
}

static void test_head_method(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "HEAD /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        get(fd, NULL, &b);
        assert_has(&b, "Content-Length: 8388608\r\n");
        assert_has(&b, "close\r\n\r\n");
        assert_true(b.len < 1000);
        close(fd);
}

static void test_early_answer_keeps_connection(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\n");
        get(fd, "no", &b);
        put(fd, "unreadPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
        get(fd, "ok", &b);
        assert_has(&b, "200 OK");
        close(fd);
}

static void test_large_response(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        get(fd, NULL, &b);
        assert_int_equal(b.len - (size_t)(strstr(b.data, "\r\n\r\n") + 4 - b.data), 8 << 20);
        wait_sem(&t.closed);
        assert_false(t.aborted);
        close(fd);
}

static void test_peer_leaves(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "GET /forever HTTP/1.1\r\nHost: h\r\n\r\n");
        get(fd, "first", &b);
        close(fd);
        wait_sem(&t.closed);
        assert_true(t.aborted);

        fd = dial();
        put(fd, "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf");
        close(fd);
        wait_sem(&t.closed);
        assert_true(t.aborted);
}

static void test_half_close(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "POST /half HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
        shutdown(fd, SHUT_WR);
        get(fd, NULL, &b);
        assert_has(&b, "200 OK");
        close(fd);
}

static void test_abort(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "GET /abort HTTP/1.1\r\nHost: h\r\n\r\n");
        get(fd, NULL, &b);
        assert_int_equal(b.len, 0);
        wait_sem(&t.closed);
        assert_true(t.aborted);
        close(fd);
}

/* While the handler is paused the engine takes a bounded amount: the sender must come to a stop. */
static void test_back_pressure(void **state)
{
        enum { TOTAL = 64 << 20 };
        CLEANUP_BUF struct buf b = {};
        CLEANUP_FREE char *block = xcalloc(1, 65536);
        size_t sent = 0;
        int fd = dial();

        (void)state;
        put(fd, "POST /park HTTP/1.1\r\nHost: h\r\nContent-Length: 67108864\r\n\r\n");
        assert_int_equal(send(fd, block, 1, 0), 1);
        sent = 1;
        wait_sem(&t.parked_up);
        for (;;) {
                ssize_t n = send(fd, block, 65536, MSG_DONTWAIT);

                if (n < 0) {
                        struct timeval tv = {.tv_usec = 200000};
                        fd_set w;

                        assert_int_equal(errno, EAGAIN);
                        FD_ZERO(&w);
                        FD_SET(fd, &w);
                        if (select(fd + 1, NULL, &w, NULL, &tv) == 0)
                                break;
                        continue;
                }
                sent += (size_t)n;
                assert_true(sent < TOTAL / 2);
        }
        assert_int_equal(__atomic_load_n(&t.received, __ATOMIC_SEQ_CST), 1);
        while (sent < TOTAL) {
                size_t want = TOTAL - sent < 65536 ? TOTAL - sent : 65536;
                ssize_t n = send(fd, block, want, MSG_DONTWAIT);

                if (n > 0)
                        sent += (size_t)n;
                uv_async_send(&t.wake);
        }
        while (__atomic_load_n(&t.received, __ATOMIC_SEQ_CST) < TOTAL)
                uv_async_send(&t.wake);
        uv_async_send(&t.wake);
        get(fd, "all", &b);
        assert_has(&b, "200 OK");
        close(fd);
}

static void test_takeover(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        put(fd, "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nraw1");
        get(fd, "raw1", &b);
        assert_has(&b, "101 Switching Protocols");
        put(fd, "raw2");
        get(fd, "raw2", &b);
        shutdown(fd, SHUT_WR);
        get(fd, NULL, &b);
        assert_string_equal(buf_str(&b), "bye");
        wait_sem(&t.closed);
        assert_false(t.aborted);
        close(fd);
}

static void test_too_many(void **state)
{
        CLEANUP_BUF struct buf b = {};
        int fds[21];

        (void)state;
        for (int i = 0; i < 20; i++) {
                fds[i] = dial();
                put(fds[i], "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
                get(fds[i], "ok", &b);
        }
        fds[20] = dial();
        get(fds[20], NULL, &b);
        assert_has(&b, " 503 ");
        for (int i = 0; i < 21; i++)
                close(fds[i]);
}

static void test_address_in_use(void **state)
{
        struct http_server_options o = {.handler = handler};
        struct http_server *s;
        struct error err;
        uv_loop_t loop;

        (void)state;
        uv_loop_init(&loop);
        assert_true(http_server_new(&loop, "127.0.0.1", t.port, &o, &s, &err) < 0);
        assert_non_null(strstr(err.message, "ddress already in use"));
        assert_true(http_server_new(&loop, "localhost", 0, &o, &s, &err) < 0);
        uv_run(&loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&loop), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(test_keep_alive), T(test_chunked_bytewise), T(test_pipelining), T(test_refusals), T(test_expect),
                T(test_http10), T(test_head_method), T(test_early_answer_keeps_connection), T(test_large_response),
                T(test_peer_leaves), T(test_half_close), T(test_abort), T(test_back_pressure), T(test_takeover),
                T(test_too_many), T(test_address_in_use),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
