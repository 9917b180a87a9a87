/* The dispatcher behind a real server on loopback, with blocking clients. Hang guards of 20 s only. */
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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "http/server.h"

static struct {
        uv_loop_t loop;
        uv_async_t stop;
        struct http_server *server;
        struct api *api;
        pthread_t thread;
        int port;
        char dir[32];
        sem_t entered, leave, left; /* of /slow */
        int teams;                  /* authenticated minus released */
} t;

static int authenticate(void *data, const char *key, void **ret_team, bool *ret_blocked, struct error *err)
{
        (void)data;
        if (streq(key, "e2b_down"))
                return error_set(err, ERROR_UNAVAILABLE, "store is full");
        if (!streq(key, "e2b_01") && !streq(key, "e2b_02"))
                return error_set(err, ERROR_UNAUTHORISED, "Invalid API key");
        if (streq(key, "e2b_02")) {
                *ret_blocked = true;
                error_set(err, ERROR_FORBIDDEN, "team is blocked: unpaid");
        }
        __atomic_add_fetch(&t.teams, 1, __ATOMIC_SEQ_CST);
        *ret_team = &t;
        return 0;
}

static void release_team(void *data, void *team)
{
        (void)data;
        assert_ptr_equal(team, &t);
        __atomic_sub_fetch(&t.teams, 1, __ATOMIC_SEQ_CST);
}

static int do_echo(void *data, struct api_request *q, struct api_response *r, struct error *err)
{
        (void)data;
        (void)err;
        r->status = 201;
        r->json = json_pack("{s:s, s:O, s:b}", "id", q->params[0], "body", q->json, "team", q->team != NULL);
        http_headers_add(&r->headers, "X-Next-Token", "abc");
        return 0;
}

static int do_empty(void *data, struct api_request *q, struct api_response *r, struct error *err)
{
        (void)q;
        (void)err;
        r->status = *(const int *)data;
        return 0;
}

static int do_fail(void *data, struct api_request *q, struct api_response *r, struct error *err)
{
        (void)data;
        r->text = xstrdup("half an answer");
        return error_set(err, (enum error_kind)atoi(q->params[0]), "it \"failed\"");
}

static int do_nothing(void *data, struct api_request *q, struct api_response *r, struct error *err)
{
        (void)data;
        (void)q;
        (void)r;
        (void)err;
        return 0;
}

static int do_slow(void *data, struct api_request *q, struct api_response *r, struct error *err)
{
        (void)data;
        (void)err;
        sem_post(&t.entered);
        sem_wait(&t.leave);
        r->status = streq(q->http->path, "/slow") && streq(q->body, "b") ? 200 : 500;
        r->text = xstrdup("done");
        r->content_type = "text/plain";
        sem_post(&t.left);
        return 0;
}

static int begin_upload(void *data, struct api_request *q, char **ret_path, unsigned long long *ret_limit, struct error *err)
{
        (void)data;
        if (!strstr(q->http->query, "token=good"))
                return error_set(err, ERROR_FORBIDDEN, "bad upload token");
        *ret_path = xasprintf("%s/upload.tmp", t.dir);
        *ret_limit = 8 << 20;
        return 0;
}

static int do_upload(void *data, struct api_request *q, struct api_response *r, struct error *err)
{
        CLEANUP_FREE char *to = xasprintf("%s/final", t.dir);

        (void)data;
        r->status = 200;
        return streq(q->params[0], "leave") ? 0 : file_publish(q->upload_path, to, err);
}

static const int status_202 = 202, status_204 = 204;
static const struct api_route routes[] = {
        {"POST", "/things/{id}", API_AUTH_KEY, API_JSON | API_MUTATES, do_echo},
        {"GET", "/things/{id}", API_AUTH_KEY, API_JSON_OPTIONAL, do_echo},
        {"GET", "/202", API_AUTH_NONE, 0, do_empty, (void *)&status_202},
        {"GET", "/204", API_AUTH_NONE, 0, do_empty, (void *)&status_204},
        {"GET", "/fail/{kind}", API_AUTH_NONE, 0, do_fail},
        {"GET", "/nothing", API_AUTH_NONE, 0, do_nothing},
        {"POST", "/slow", API_AUTH_NONE, 0, do_slow},
        {"GET", "/cluster", API_AUTH_CLUSTER, 0, do_empty, (void *)&status_204},
        {"PUT", "/upload/{how}", API_AUTH_NONE, API_UPLOAD, do_upload, NULL, begin_upload},
};

static void handler(struct http_exchange *x, void *data)
{
        api_dispatch(data, x);
}

static void on_done(void *data)
{
        (void)data;
        api_free(t.api);
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

static int setup(void **state)
{
        struct api_hooks hooks = {.authenticate = authenticate, .release_team = release_team, .cluster_token = "sesame"};
        struct http_server_options o = {.handler = handler};
        struct error err;

        (void)state;
        memset(&t, 0, sizeof(t));
        strcpy(t.dir, "/tmp/vmon-dispatch-XXXXXX");
        assert_non_null(mkdtemp(t.dir));
        sem_init(&t.entered, 0, 0);
        sem_init(&t.leave, 0, 0);
        sem_init(&t.left, 0, 0);
        uv_loop_init(&t.loop);
        uv_async_init(&t.loop, &t.stop, on_stop);
        assert_int_equal(api_new(&t.loop, 2, &hooks, &t.api), 0);
        api_add_routes(t.api, routes, 4);
        api_add_routes(t.api, routes + 4, sizeof(routes) / sizeof(routes[0]) - 4);
        o.data = t.api;
        assert_int_equal(http_server_new(&t.loop, "127.0.0.1", 0, &o, &t.server, &err), 0);
        t.port = http_server_port(t.server);
        return pthread_create(&t.thread, NULL, run, NULL);
}

static int teardown(void **state)
{
        struct error err;

        (void)state;
        uv_async_send(&t.stop);
        pthread_join(t.thread, NULL);
        tree_remove(t.dir, &err);
        return uv_loop_close(&t.loop) || t.teams;
}

static int dial(void)
{
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)t.port)};
        struct timeval guard = {.tv_sec = 20};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &guard, sizeof(guard));
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
        return fd;
}

static void hear(int fd, struct buf *out)
{
        char block[4096];
        ssize_t n;

        buf_clear(out);
        while ((n = recv(fd, block, sizeof(block), 0)) > 0)
                buf_add(out, block, (size_t)n);
        assert_true(n == 0 || errno == ECONNRESET);
}

static void ask(struct buf *out, const char *request)
{
        int fd = dial();

        assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
        hear(fd, out);
        close(fd);
}

#define HOST "Host: h\r\nConnection: close\r\n"
#define KEY HOST "X-API-KEY: e2b_01\r\n"

static void expect(const char *request, const char *status, const char *text)
{
        CLEANUP_BUF struct buf b = {};

        ask(&b, request);
        if (!strstr(buf_str(&b), status) || !strstr(buf_str(&b), text))
                fail_msg("wanted %s %s, got: %s", status, text, buf_str(&b));
        assert_non_null(strstr(buf_str(&b), "Access-Control-Allow-Origin: *"));
}

static void test_handler(void **state)
{
        (void)state;
        expect("POST /things/a%2Fb HTTP/1.1\r\n" KEY "Transfer-Encoding: chunked\r\n\r\n7\r\n{\"x\":1}\r\n0\r\n\r\n",
               " 201 Created", "{\"id\":\"a/b\",\"body\":{\"x\":1},\"team\":true}");
        expect("GET /things/q HTTP/1.1\r\n" KEY "\r\n", "X-Next-Token: abc", "\"body\":{}");
        expect("GET /things/q HTTP/1.1\r\n" HOST "Authorization: Bearer e2b_01\r\n\r\n", " 201 ", "\"q\"");
        expect("GET /things/q HTTP/1.1\r\n" KEY "\r\n", " 201 ", "Content-Type: application/json; charset=utf-8\r\n");
        expect("GET /202 HTTP/1.1\r\n" HOST "\r\n", " 202 Accepted", "Content-Length: 0\r\n");
        expect("GET /204 HTTP/1.1\r\n" HOST "\r\n", " 204 No Content", "Expose-Headers: X-Next-Token");
}

static void test_head(void **state)
{
        CLEANUP_BUF struct buf b = {};

        (void)state;
        ask(&b, "HEAD /things/q HTTP/1.1\r\n" KEY "\r\n");
        assert_non_null(strstr(buf_str(&b), " 201 "));
        assert_null(strstr(buf_str(&b), "\"id\""));
}

static void test_authentication_first(void **state)
{
        (void)state;
        expect("POST /things/%zz HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nbad", " 401 ",
               "{\"code\":401,\"message\":\"authorization header is missing\"}");
        expect("POST /things/a HTTP/1.1\r\n" HOST "X-API-Key: e2b_99\r\nContent-Length: 99999999\r\n\r\n", " 401 ",
               "Invalid API key");
        expect("GET /things/a HTTP/1.1\r\n" HOST "Authorization: Bearer jwt\r\n\r\n", " 401 ", "Invalid Access token");
        expect("GET /things/a HTTP/1.1\r\n" HOST "X-API-Key: e2b_down\r\n\r\n", " 503 ", "store is full");
        expect("POST /things/a HTTP/1.1\r\n" HOST "X-API-Key: e2b_02\r\nContent-Length: 3\r\n\r\nbad", " 403 ",
               "team is blocked: unpaid");
        expect("GET /things/a HTTP/1.1\r\n" HOST "X-API-Key: e2b_02\r\n\r\n", " 201 ", "\"a\"");
        expect("GET /cluster HTTP/1.1\r\n" HOST "Authorization: Bearer sesam\r\n\r\n", " 401 ", "cluster token");
        expect("GET /cluster HTTP/1.1\r\n" HOST "\r\n", " 401 ", "authorization header is missing");
        expect("GET /cluster HTTP/1.1\r\n" HOST "Authorization: Bearer sesame\r\n\r\n", " 204 ", "");
}

static void test_bad_requests(void **state)
{
        (void)state;
        expect("GET /unknown HTTP/1.1\r\n" HOST "\r\n", " 404 ", "{\"code\":404,\"message\":\"");
        expect("DELETE /things/a HTTP/1.1\r\n" KEY "\r\n", " 405 ", "Allow: POST, GET\r\n");
        expect("DELETE /things/a HTTP/1.1\r\n" KEY "\r\n", " 405 ", "{\"code\":405,\"message\":\"");
        expect("POST /things/%zz HTTP/1.1\r\n" KEY "\r\n", " 400 ", "validation error");
        expect("POST /things/a HTTP/1.1\r\n" KEY "Content-Length: 2\r\n\r\n[]", " 400 ", "Error when parsing request: ");
        expect("POST /things/a HTTP/1.1\r\n" KEY "Content-Length: 2\r\n\r\n{x", " 400 ", "Error when parsing request: ");
        expect("POST /things/a HTTP/1.1\r\n" KEY "\r\n", " 400 ", "Error when parsing request: ");
        expect("POST /things/a HTTP/1.1\r\n" KEY "Content-Length: 16777217\r\n\r\n", " 413 ", "{\"code\":413,");
}

static void test_errors(void **state)
{
        static const char *const wanted[] = {" 500 ", " 400 ", " 401 ", " 403 ", " 404 ", " 409 ", " 429 ", " 503 ", " 503 "};

        (void)state;
        for (int i = 0; i < 9; i++) {
                char request[128];

                snprintf(request, sizeof(request), "GET /fail/%d HTTP/1.1\r\n" HOST "\r\n", i);
                expect(request, wanted[i], "\"message\":\"it \\\"failed\\\"\"}");
        }
        expect("GET /nothing HTTP/1.1\r\n" HOST "\r\n", " 500 ", "{\"code\":500,");
}

static void test_preflight(void **state)
{
        (void)state;
        expect("OPTIONS /things/a HTTP/1.1\r\n" HOST "Origin: http://x\r\nAccess-Control-Request-Method: POST\r\n\r\n",
               " 204 ", "X-API-Key");
}

static void wait_sem(sem_t *s)
{
        struct timespec guard;

        clock_gettime(CLOCK_REALTIME, &guard);
        guard.tv_sec += 20;
        assert_int_equal(sem_timedwait(s, &guard), 0);
}

/* A worker that is busy must hold up nobody else, and must end its work although its client left. */
static void test_slow_handler(void **state)
{
        static const char request[] = "POST /slow HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nb";
        CLEANUP_BUF struct buf b = {};
        int fd = dial();

        (void)state;
        assert_int_equal(send(fd, request, strlen(request), 0), strlen(request));
        wait_sem(&t.entered);
        expect("GET /202 HTTP/1.1\r\n" HOST "\r\n", " 202 ", "");
        sem_post(&t.leave);
        hear(fd, &b);
        assert_non_null(strstr(buf_str(&b), " 200 OK"));
        assert_non_null(strstr(buf_str(&b), "Content-Type: text/plain\r\n"));
        close(fd);
        wait_sem(&t.left);

        fd = dial();
        assert_int_equal(send(fd, request, strlen(request), 0), strlen(request));
        wait_sem(&t.entered);
        close(fd);
        expect("GET /202 HTTP/1.1\r\n" HOST "\r\n", " 202 ", "");
        sem_post(&t.leave);
        wait_sem(&t.left);
}

static void upload(const char *head, size_t size, bool whole, struct buf *out)
{
        CLEANUP_FREE char *body = xmalloc(size);
        size_t at = 0;
        int fd = dial();

        for (size_t i = 0; i < size; i++)
                body[i] = (char)(i % 251);
        assert_int_equal(send(fd, head, strlen(head), 0), strlen(head));
        while (at < size) {
                ssize_t n = send(fd, body + at, size - at, MSG_NOSIGNAL);

                if (n <= 0)
                        break;
                at += (size_t)n;
        }
        if (whole)
                hear(fd, out);
        close(fd);
}

static bool exists(const char *name)
{
        CLEANUP_FREE char *path = xasprintf("%s/%s", t.dir, name);

        return path_exists(path);
}

static void test_upload(void **state)
{
        CLEANUP_FREE char *final = xasprintf("%s/final", t.dir);
        CLEANUP_BUF struct buf b = {}, file = {};
        struct error err;

        (void)state;
        upload("PUT /upload/take?token=good HTTP/1.1\r\n" HOST "Content-Length: 7000000\r\n\r\n", 7000000, true, &b);
        assert_non_null(strstr(buf_str(&b), " 200 OK"));
        assert_non_null(strstr(buf_str(&b), "Content-Length: 0\r\n"));
        assert_int_equal(file_read(final, 8 << 20, &file, &err), 0);
        assert_int_equal(file.len, 7000000);
        for (size_t i = 0; i < file.len; i++)
                if (file.data[i] != (char)(i % 251))
                        fail_msg("byte %zu differs", i);
        assert_false(exists("upload.tmp"));
}

/* The answer to a refused upload may come before its file is removed. */
static bool goes_away(const char *name)
{
        for (int i = 0; i < 5000 && exists(name); i++)
                usleep(1000);
        return !exists(name);
}

static void test_upload_refused(void **state)
{
        CLEANUP_BUF struct buf b = {};

        (void)state;
        expect("PUT /upload/take?token=bad HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", " 403 ", "bad upload token");
        expect("PUT /upload/take?token=good HTTP/1.1\r\n" HOST "Content-Length: 8388609\r\n\r\n", " 413 ", "8388608 bytes");
        assert_true(goes_away("upload.tmp"));
        expect("PUT /upload/leave?token=good HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", " 200 ", "");
        assert_true(goes_away("upload.tmp"));
        assert_false(exists("final"));
}

/* A second upload gets the temporary name again only when the broken one's file has been removed. */
static void test_upload_broken(void **state)
{
        CLEANUP_BUF struct buf b = {};

        (void)state;
        upload("PUT /upload/take?token=good HTTP/1.1\r\n" HOST "Content-Length: 7000000\r\n\r\n", 3000000, false, &b);
        for (int i = 0; i < 2000 && !strstr(buf_str(&b), " 200 OK"); i++) {
                ask(&b, "PUT /upload/take?token=good HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc");
                usleep(1000);
        }
        assert_non_null(strstr(buf_str(&b), " 200 OK"));
        assert_false(exists("upload.tmp"));
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(test_handler), T(test_head), T(test_authentication_first), T(test_bad_requests), T(test_errors),
                T(test_preflight), T(test_slow_handler), T(test_upload), T(test_upload_refused), T(test_upload_broken),
        };

        log_setup(LOG_LEVEL_ERROR, false);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
