/* The HTTP/1.1 server engine, shared by the driver's API, the traffic proxy and the guest agent.
 *
 * One libuv loop thread owns a server and its connections; every function here except where noted must
 * be called on that thread. A connection carries requests in turn (keep-alive); each is handed to the
 * server's handler as an exchange as soon as its head is complete, so that routing is per request (API
 * and sandbox traffic share connections). Both bodies stream: the handler reads the request body by
 * callbacks with pause/resume, and writes the response in pieces with a high-water mark.
 *
 * Strictness: obsolete line folding, bad Content-Length, Content-Length together with chunked, spaces
 * before colons, NUL bytes, heads above HTTP_HEAD_MAX and unknown transfer codings get 400/431/501 and
 * the connection is closed. `Expect: 100-continue` is answered when the handler begins to read the body.
 * HTTP/1.0 is answered and closed. Pipelined requests are answered in order.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/error.h"
#include "http/message.h"
#include "http/transport.h"

#define HTTP_HEAD_MAX (64 * 1024)       /* bytes of one request head */
#define HTTP_HIGH_WATER (256 * 1024)    /* queued response bytes above which writers should pause */

struct http_server;
struct http_exchange; /* one request with its response; lives until its on_close ran */

struct http_exchange_ops {
        /* Request body bytes; not called after http_exchange_pause() until resume. May be NULL: then the
         * body is read and dropped. */
        void (*on_data)(struct http_exchange *x, const void *data, size_t len, void *userdata);
        /* The request body is complete. */
        void (*on_end)(struct http_exchange *x, void *userdata);
        /* Queued response bytes fell below HTTP_HIGH_WATER / 2 after having been above HTTP_HIGH_WATER. */
        void (*on_drain)(struct http_exchange *x, void *userdata);
        /* Last call for this exchange, exactly once: response complete (aborted = false) or the peer went
         * away / the connection broke (aborted = true; may come at any time, also before the request body
         * ended: a peer that closes mid-stream is noticed at once). Free userdata here. */
        void (*on_close)(struct http_exchange *x, bool aborted, void *userdata);
        /* A peer that closes its sending side cannot be told from one that has gone. By default both abort the
         * exchange, as streams need; with this set a peer that sent its whole request still gets the response (a
         * peer that has gone shows when that is written). For short answers. */
        bool serves_half_closed;
};

/* Called on the loop thread for each complete request head. It must call http_exchange_accept() before
 * it returns. */
typedef void (*http_handler)(struct http_exchange *x, void *data);

struct http_server_options {
        http_handler handler;
        void *data;
        unsigned idle_timeout_s; /* keep-alive idle limit; 0 = 640 (envd.md 1.1) */
        unsigned head_timeout_s; /* from first byte of a head to its end; 0 = 30 */
        unsigned max_connections; /* 0 = 10000; above it new ones get 503 and are closed */
        void *ssl_ctx;            /* SSL_CTX * for TLS, or NULL (driver only; the agent passes NULL) */
        const struct http_transport *transport; /* &http_tls_transport (tls.h) with ssl_ctx, else NULL */
};

/* Creates a server that listens on `host`:`port` (numeric address; port 0 = any, see
 * http_server_port()). The error names address and cause ("address in use"). */
int http_server_new(uv_loop_t *loop, const char *host, int port, const struct http_server_options *options,
                    struct http_server **ret, struct error *err);
/* The same on an already listening socket, which the server owns from then on. */
int http_server_new_fd(uv_loop_t *loop, int fd, const struct http_server_options *options,
                       struct http_server **ret, struct error *err);
int http_server_port(const struct http_server *s);
/* Stops accepting; idle connections close, busy ones after their response. `done` is called when none is
 * left; the server is freed then. */
void http_server_stop(struct http_server *s, void (*done)(void *data), void *data);
/* Closes everything now (connections included); done as above. */
void http_server_close(struct http_server *s, void (*done)(void *data), void *data);

/* The parsed request head; valid until on_close. */
const struct http_request *http_exchange_request(const struct http_exchange *x);
/* The peer's address as text, "" when unknown. */
const char *http_exchange_peer(const struct http_exchange *x);

/* Sets who handles the exchange. `ops` must outlive it. Body bytes flow from here on (paused = false) or
 * after http_exchange_resume() (paused = true). */
void http_exchange_accept(struct http_exchange *x, const struct http_exchange_ops *ops, void *userdata,
                          bool paused);
void http_exchange_pause(struct http_exchange *x);
void http_exchange_resume(struct http_exchange *x);

/* Starts the response. Request body bytes go on coming to on_data until the response ends. `length` is the body length, or -1 for chunked (close-delimited for HTTP/1.0).
 * Content-Length, Transfer-Encoding, Connection and Date are the engine's; the others come from `headers`
 * (may be NULL). 1xx is not allowed here; 204 and 304 have no body and need length 0 (204 is sent without
 * Content-Length). May be called before the request body ended; what is left of it is then read and
 * dropped up to a limit, beyond which the connection closes after the response. */
void http_exchange_start(struct http_exchange *x, int status, const struct http_headers *headers, int64_t length);
/* Queues body bytes (copied). Returns the bytes now queued on the connection. A no-op after the peer left. */
size_t http_exchange_write(struct http_exchange *x, const void *data, size_t len);
size_t http_exchange_queued(const struct http_exchange *x);
/* Ends the body. With a fixed length that was not reached the connection is aborted. */
void http_exchange_end(struct http_exchange *x);
/* Start + write + end. `content_type` may be NULL for an empty body. */
void http_exchange_reply(struct http_exchange *x, int status, const char *content_type, const void *body, size_t len);
/* Breaks the connection at once (RST where possible): for a response that cannot be completed. */
void http_exchange_abort(struct http_exchange *x);

/* Takes the connection over after an Upgrade: writes `head` (the raw response head bytes) and from then on
 * on_data gets the peer's raw bytes, http_exchange_write() sends raw bytes, on_end means the peer half-closed,
 * http_exchange_end() half-closes our side; on_close comes when both sides are done or it broke. */
void http_exchange_takeover(struct http_exchange *x, const void *head, size_t len);
