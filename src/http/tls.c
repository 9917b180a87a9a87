/* One SSL object a connection, between two memory BIOs: ciphertext from the socket is put into one, ciphertext for the
 * socket taken out of the other. Errors are read off OpenSSL's queue at once, so that none is left for another connection.
 */
#include "http/tls.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>

#define RECORD_MAX (16 * 1024)

static void take_output(SSL *ssl, struct buf *out)
{
        BIO *bio = SSL_get_wbio(ssl);
        size_t n = BIO_ctrl_pending(bio);
        int r;

        if (!n || n > INT_MAX)
                return;
        r = BIO_read(bio, buf_reserve(out, n), (int)n);
        if (r > 0)
                buf_grew(out, (size_t)r);
}

static void *tls_open(void *context)
{
        SSL *ssl = SSL_new(context);
        BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());

        if (!ssl || !in || !out) {
                SSL_free(ssl);
                BIO_free(in);
                BIO_free(out);
                return NULL;
        }
        SSL_set_bio(ssl, in, out);
        SSL_set_accept_state(ssl);
        return ssl;
}

static int tls_receive(void *session, const void *data, size_t len, struct buf *in, struct buf *out, bool *ret_eof)
{
        SSL *ssl = session;
        int r, why;

        ERR_clear_error();
        if (len > INT_MAX || BIO_write(SSL_get_rbio(ssl), data, (int)len) != (int)len)
                return -EPROTO;
        do {
                r = SSL_read(ssl, buf_reserve(in, RECORD_MAX), RECORD_MAX);
                if (r > 0)
                        buf_grew(in, (size_t)r);
        } while (r > 0);
        why = SSL_get_error(ssl, r);
        ERR_clear_error();
        take_output(ssl, out);
        *ret_eof = why == SSL_ERROR_ZERO_RETURN;
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE || *ret_eof ? 0 : -EPROTO;
}

static int tls_send(void *session, const void *data, size_t len, struct buf *out)
{
        SSL *ssl = session;
        const char *p = data;

        ERR_clear_error();
        while (len) {
                int r = SSL_write(ssl, p, len > RECORD_MAX ? RECORD_MAX : (int)len);

                if (r <= 0) { /* a memory BIO takes everything: only an unfinished handshake stops it */
                        ERR_clear_error();
                        return -EAGAIN;
                }
                p += r;
                len -= (size_t)r;
        }
        take_output(ssl, out);
        return 0;
}

static bool tls_established(const void *session)
{
        return SSL_is_init_finished((const SSL *)session);
}

static void tls_shutdown(void *session, struct buf *out)
{
        ERR_clear_error();
        if (SSL_is_init_finished((SSL *)session))
                SSL_shutdown(session);
        ERR_clear_error();
        take_output(session, out);
}

static void tls_close(void *session)
{
        SSL_free(session);
}

const struct http_transport http_tls_transport = {
        .open = tls_open,
        .receive = tls_receive,
        .send = tls_send,
        .established = tls_established,
        .shutdown = tls_shutdown,
        .close = tls_close,
};

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in, unsigned in_len,
                           void *arg)
{
        static const unsigned char ours[] = "\x08http/1.1";

        (void)ssl;
        (void)arg;
        if (SSL_select_next_proto((unsigned char **)out, out_len, ours, sizeof(ours) - 1, in, in_len) != OPENSSL_NPN_NEGOTIATED)
                return SSL_TLSEXT_ERR_NOACK;
        return SSL_TLSEXT_ERR_OK;
}

static int load_failed(struct error *err, const char *what, const char *file)
{
        unsigned long e = ERR_get_error();
        const char *reason = e ? ERR_reason_error_string(e) : NULL;

        ERR_clear_error();
        return error_set(err, ERROR_INVALID, "load the TLS %s from %s: %s", what, file, reason ? reason : "unreadable");
}

static int load(SSL_CTX *ctx, const char *cert_file, const char *key_file, struct error *err)
{
        ERR_clear_error();
        if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1)
                return load_failed(err, "certificate", cert_file);
        if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1)
                return load_failed(err, "private key", key_file);
        if (SSL_CTX_check_private_key(ctx) != 1) {
                ERR_clear_error();
                return error_set(err, ERROR_INVALID, "the TLS key in %s does not belong to the certificate in %s", key_file, cert_file);
        }
        return 0;
}

int http_tls_context_new(const char *cert_file, const char *key_file, void **ret, struct error *err)
{
        SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
        int r;

        if (!ctx)
                return error_set(err, ERROR_INTERNAL, "OpenSSL offers no TLS");
        SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
        SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
        r = load(ctx, cert_file, key_file, err);
        if (r < 0) {
                SSL_CTX_free(ctx);
                return r;
        }
        *ret = ctx;
        return 0;
}

void http_tls_context_free(void *context)
{
        SSL_CTX_free(context);
}
