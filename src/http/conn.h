/* Internals shared by server.c (listener, life of connections), conn.c (reading) and exchange.c (writing). */
#pragma once

#include "base/buf.h"
#include "http/server.h"
#include "http/wire.h"

#define CONN_READ_SIZE (64 * 1024)      /* bytes asked from the socket at once */
#define CONN_IN_MAX (2 * HTTP_HEAD_MAX) /* unconsumed input above which reading stops */
#define CONN_DRAIN_MAX (1024 * 1024)    /* request body read and dropped to keep a connection alive */
#define CONN_LINGER_S 5                 /* wait for the peer to close after we did */
#define CONN_DRAIN_S 30                 /* time for the rest of an unwanted body */

enum conn_state {
        CONN_HEAD,     /* between requests, or collecting a head */
        CONN_EXCHANGE, /* a request is being served */
        CONN_DRAIN,    /* the response is out, the rest of the request body is dropped */
        CONN_TUNNEL,   /* taken over after an Upgrade */
        CONN_LINGER,   /* our side is shut down; input is dropped until the peer closes */
};

struct http_conn {
        struct http_server *server;
        struct http_conn *prev, *next;
        struct http_conn *next_dirty; /* list of those with unflushed output */
        uv_tcp_t tcp;
        uv_timer_t timer;
        uv_shutdown_t shutdown;
        char peer[INET6_ADDRSTRLEN];

        enum conn_state state;
        bool busy;           /* conn_process() is on the stack */
        bool reading, peer_eof;
        bool closing;        /* uv_close() was called: nothing is sent or delivered any more */
        bool clean;          /* closing after a complete tunnel */
        bool close_after;    /* no further request on this connection */
        bool shut, shut_done;
        bool dirty;
        int handles;         /* open libuv handles; freed at 0 */

        void *session;       /* of the transport, or NULL */
        struct buf raw;      /* with a session: undecoded bytes as read */
        struct buf in;       /* received, not yet consumed */
        size_t scanned;      /* bytes of `in` that hold no end of a head */
        bool head_timed;
        struct wire *wire;   /* the request whose body is read */
        size_t drained;
        struct http_exchange *x;

        struct buf out;      /* to be written by conn_flush() */
        size_t inflight;     /* handed to libuv */
};

struct http_exchange {
        struct http_conn *conn;
        struct http_request request;
        const struct http_exchange_ops *ops;
        void *userdata;
        bool accepted, paused;
        bool expects_continue;
        bool end_delivered;  /* on_end was called */
        bool started, ended; /* of the response */
        bool bodiless;       /* HEAD, 204, 304: body bytes are swallowed */
        bool chunked;
        int64_t left;        /* bytes of a fixed-length body to come, -1 without a length */
        bool above_high;
        struct buf pending;  /* decoded while paused */
};

struct http_server {
        uv_loop_t *loop;
        uv_tcp_t listener;
        uv_prepare_t flusher;
        struct http_server_options options;
        int port;
        struct http_conn *conns, *dirty;
        size_t count;
        char read_buffer[CONN_READ_SIZE]; /* of whichever connection is being read from: what came is copied, which costs less than
                                             a buffer of this size for each */
        int handles;
        bool stopping, closing_handles;
        void (*done)(void *data);
        void *done_data;
};

/* server.c */
void conn_close(struct http_conn *c);       /* at once; on_close follows from the loop */
void conn_close_reset(struct http_conn *c); /* the same with RST */
void conn_unlink_dirty(struct http_conn *c);

/* conn.c */
void conn_read_start(struct http_conn *c);
void conn_process(struct http_conn *c);     /* goes on with whatever can go on; safe to call at any time */
void conn_refuse(struct http_conn *c, int status, const char *why);
void conn_linger(struct http_conn *c);
void conn_on_timer(uv_timer_t *timer);

/* exchange.c */
void conn_send(struct http_conn *c, const void *data, size_t len);
void conn_flush(struct http_conn *c);
void conn_write_raw(struct http_conn *c, struct buf *data); /* to the socket as it is; takes the buffer over */
size_t conn_queued(const struct http_conn *c);
void exchange_continue(struct http_exchange *x); /* sends 100 Continue when that is due */
struct http_exchange *exchange_free(struct http_exchange *x);
