/* The server behind TLS, with OpenSSL's own client and a certificate made on the spot. */
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "http/server.h"
#include "http/tls.h"

#define BIG (4 << 20)

static struct {
        uv_loop_t loop;
        uv_async_t stop;
        struct http_server *server;
        void *context;
        pthread_t thread;
        int port;
        char dir[32];
        char *cert, *key;
} t;

static void on_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        (void)x;
        buf_add(userdata, data, len);
}

static void on_end(struct http_exchange *x, void *userdata)
{
        struct buf *b = userdata;

        http_exchange_reply(x, 200, "text/plain", b->data, b->len);
}

static void on_close(struct http_exchange *x, bool aborted, void *userdata)
{
        (void)x;
        (void)aborted;
        buf_free(userdata);
        free(userdata);
}

static const struct http_exchange_ops ops = {.on_data = on_data, .on_end = on_end, .on_close = on_close};

static void handler(struct http_exchange *x, void *data)
{
        (void)data;
        http_exchange_accept(x, &ops, xcalloc(1, sizeof(struct buf)), false);
}

static void on_done(void *data)
{
        (void)data;
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

static void make_certificate(void)
{
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *cert = X509_new();
        FILE *f;

        ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
        X509_gmtime_adj(X509_getm_notBefore(cert), 0);
        X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
        X509_set_pubkey(cert, key);
        X509_sign(cert, key, EVP_sha256());
        f = fopen(t.cert, "w");
        PEM_write_X509(f, cert);
        fclose(f);
        f = fopen(t.key, "w");
        PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL);
        fclose(f);
        X509_free(cert);
        EVP_PKEY_free(key);
}

static int setup(void **state)
{
        struct http_server_options o = {.handler = handler, .transport = &http_tls_transport};
        struct error err;

        (void)state;
        memset(&t, 0, sizeof(t));
        strcpy(t.dir, "/tmp/vmon-tls-XXXXXX");
        assert_non_null(mkdtemp(t.dir));
        t.cert = path_join(t.dir, "cert.pem");
        t.key = path_join(t.dir, "key.pem");
        make_certificate();
        assert_int_equal(http_tls_context_new(t.cert, t.key, &t.context, &err), 0);
        o.ssl_ctx = t.context;
        uv_loop_init(&t.loop);
        uv_async_init(&t.loop, &t.stop, on_stop);
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
        http_tls_context_free(t.context);
        tree_remove(t.dir, &err);
        free(t.cert);
        free(t.key);
        return uv_loop_close(&t.loop);
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

static void exchange(SSL *ssl, size_t size)
{
        CLEANUP_FREE char *body = xmalloc(size), *head = xasprintf("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n", size);
        CLEANUP_BUF struct buf got = {};
        char block[16384];

        for (size_t i = 0; i < size; i++)
                body[i] = (char)('a' + i % 23);
        assert_int_equal(SSL_write(ssl, head, (int)strlen(head)), strlen(head));
        assert_int_equal(SSL_write(ssl, body, (int)size), size);
        while (got.len < size || memcmp(got.data + got.len - size, body, size) != 0) {
                int n = SSL_read(ssl, block, sizeof(block));

                assert_true(n > 0);
                buf_add(&got, block, (size_t)n);
                assert_true(got.len < size + 1000);
        }
        assert_int_equal(strncmp(got.data, "HTTP/1.1 200 OK\r\n", 17), 0);
}

static void session(int version)
{
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        const unsigned char *protocol;
        unsigned protocol_len;
        int fd = dial();
        SSL *ssl;

        SSL_CTX_set_max_proto_version(ctx, version);
        ssl = SSL_new(ctx);
        SSL_set_alpn_protos(ssl, (const unsigned char *)"\x02h2\x08http/1.1", 12);
        SSL_set_fd(ssl, fd);
        assert_int_equal(SSL_connect(ssl), 1);
        SSL_get0_alpn_selected(ssl, &protocol, &protocol_len);
        assert_int_equal(protocol_len, 8);
        assert_memory_equal(protocol, "http/1.1", 8);
        exchange(ssl, 5);
        exchange(ssl, BIG);
        exchange(ssl, 5);
        SSL_shutdown(ssl);
        SSL_free(ssl);
        SSL_CTX_free(ctx);
        close(fd);
}

static void test_exchanges(void **state)
{
        (void)state;
        session(TLS1_2_VERSION);
        session(TLS1_3_VERSION);
}

static void test_plain_text_is_cut(void **state)
{
        static const char request[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        char block[1024];
        int fd = dial();
        ssize_t n;

        (void)state;
        assert_int_equal(send(fd, request, strlen(request), 0), strlen(request));
        while ((n = recv(fd, block, sizeof(block), 0)) > 0)
                assert_true(block[0] != 'H');
        assert_true(n == 0 || errno == ECONNRESET);
        close(fd);
}

static void test_bad_files(void **state)
{
        struct error err;
        void *ctx;

        (void)state;
        assert_true(http_tls_context_new("/nonexistent.pem", t.key, &ctx, &err) < 0);
        assert_non_null(strstr(err.message, "/nonexistent.pem"));
        assert_true(http_tls_context_new(t.cert, t.cert, &ctx, &err) < 0);
        assert_non_null(strstr(err.message, "private key"));
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {T(test_exchanges), T(test_plain_text_is_cut), T(test_bad_files)};

        return cmocka_run_group_tests(tests, NULL, NULL);
}
