/* What may lie between a connection's bytes and its socket. TLS is the one there is (tls.h); the agent links none. All
 * calls work on memory: the connection does the I/O.
 */
#pragma once

#include <stdbool.h>

#include "base/buf.h"

struct http_transport {
        void *(*open)(void *context); /* a session; NULL when it cannot be made */
        /* Takes bytes from the peer. Appends what they decode to, and what has to be sent in reply (handshake). Sets
         * *ret_eof when the peer ended its side. 0 or -EPROTO; `out` may hold an alert then. */
        int (*receive)(void *session, const void *data, size_t len, struct buf *in, struct buf *out, bool *ret_eof);
        /* Encodes; 0, or -EAGAIN before the handshake is through. */
        int (*send)(void *session, const void *data, size_t len, struct buf *out);
        bool (*established)(const void *session);
        void (*shutdown)(void *session, struct buf *out); /* end of our side */
        void (*close)(void *session);
};
