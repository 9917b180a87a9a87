/* An asynchronous HTTP/1.1 client for one exchange on an already connected stream socket, on the libuv
 * loop: what the traffic proxy uses to talk to a port in a guest. (Registries go through libcurl; the
 * blocking agent client, vm/agent.h, through libcurl on a passed descriptor.)
 */
#pragma once

#include <uv.h>

#include "base/error.h"
#include "http/message.h"

struct http_call;

struct http_call_ops {
        /* Response head. 1xx other than 101 are not reported. After 101 the call is a raw tunnel: on_data
         * gets raw bytes, on_end means the peer half-closed. */
        void (*on_response)(struct http_call *c, const struct http_response *response, void *userdata);
        void (*on_data)(struct http_call *c, const void *data, size_t len, void *userdata);
        void (*on_end)(struct http_call *c, void *userdata);
        /* Queued request bytes fell below the low-water mark. */
        void (*on_drain)(struct http_call *c, void *userdata);
        /* Optional. The complete exchange has left the connection usable for another (HTTP/1.1, framed, neither side closes): the callee
         * owns `fd`. on_close follows. */
        void (*on_kept)(struct http_call *c, int fd, void *userdata);
        /* Exactly once, last: status 0 after a complete exchange, else -errno (refused, reset, protocol error). */
        void (*on_close)(struct http_call *c, int status, void *userdata);
};

/* Takes `fd` over (also on failure). The head is written at once: method, target and headers verbatim; the
 * caller has put Host, Content-Length or Transfer-Encoding in. With `chunked` http_call_write() frames chunks. */
int http_call_new(uv_loop_t *loop, int fd, const char *method, const char *target, const struct http_headers *headers,
                  bool chunked, const struct http_call_ops *ops, void *userdata, struct http_call **ret, struct error *err);
/* Returns the bytes now queued. */
size_t http_call_write(struct http_call *c, const void *data, size_t len);
void http_call_end(struct http_call *c); /* request body complete, or half-close of a tunnel */
void http_call_pause(struct http_call *c); /* stops reading the response */
void http_call_resume(struct http_call *c);
void http_call_abort(struct http_call *c); /* on_close follows with -ECANCELED */
