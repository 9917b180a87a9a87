/* One HTTP/1.x message off the wire: finds the head, checks it more strictly than the packaged parser does,
 * and decodes the body. Used by server and client; internal to src/http/. No I/O.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "http/message.h"

#define WIRE_HEADERS_MAX 256 /* header lines of one head */

/* The length of the head at the start of `data`, its blank line included; 0 while it is incomplete. A search
 * that found nothing in the first `from` bytes goes on there. */
size_t wire_head_length(const char *data, size_t len, size_t from);

struct wire;
typedef void (*wire_body_fn)(void *userdata, const void *data, size_t len);

/* Parses a complete request head of `len` bytes. Returns 0 with a wire for its body, or the HTTP status to
 * refuse it with, and then *ret_why says why (static text). */
int wire_request(const char *head, size_t len, wire_body_fn on_body, void *userdata, struct http_request *ret,
                 struct wire **ret_wire, const char **ret_why);

/* The same for a response. `no_body`: it answers a HEAD. Guests run servers of every kind, so bare line feeds
 * and folded lines, refused in requests, are mended here. Returns 0 or -EPROTO. */
int wire_response(const char *head, size_t len, bool no_body, wire_body_fn on_body, void *userdata,
                  struct http_response *ret, struct wire **ret_wire);

struct wire *wire_free(struct wire *w); /* accepts and returns NULL */

/* Decodes body bytes; stops behind the end of the message. Returns the bytes consumed or -EPROTO. */
ssize_t wire_body(struct wire *w, const char *data, size_t len);
bool wire_complete(const struct wire *w);
/* The peer closed: 0 when the message is complete with that, else -EPROTO. */
int wire_eof(struct wire *w);
