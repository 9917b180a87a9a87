/* JSON lines with descriptors over a Unix stream socket: the shim's protocol and the agent channel.
 * A descriptor travels with the first byte of its line.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/buf.h"

/* One line, either way. The serial protocol's bound (docs/agent-protocol.md); far above any shim message. */
#define LINE_MAX_BYTES (1u << 20)

/* Sends all of `data` with `fd` (-1 = none) attached to its first byte; blocks, never raises SIGPIPE.
 * 0 or -errno (-EAGAIN on a non-blocking socket that is full before the first byte). */
int fd_send(int socket, const void *data, size_t len, int fd);

/* One recvmsg of up to 4 KiB appended to `b`. A descriptor that came along replaces *fd (the former is closed), with
 * close-on-exec. Returns the byte count, 0 at end of stream, -errno. `flags`: MSG_DONTWAIT or 0. */
ssize_t fd_recv(int socket, struct buf *b, int *fd, int flags);

/* Takes the first complete line out of `b`: 1 and the parsed object in *ret; 0 when there is no complete line
 * yet; -EBADMSG when the line is no JSON object, -EMSGSIZE when it passes LINE_MAX_BYTES. */
int line_take(struct buf *b, json_t **ret);

/* Writes `message` as one line, with `fd` or -1. */
int line_send(int socket, const json_t *message, int fd);

/* Waits at most `timeout_ms` (-1 = for ever) for a line: 0, -ETIMEDOUT, -EPIPE at end of stream, or as line_take(). */
int line_receive(int socket, struct buf *b, int timeout_ms, json_t **ret, int *fd);

/* A Unix stream socket connected to (or listening at) <dirfd>/<name>: long directory names do not matter.
 * The descriptor or -errno. */
int unix_connect_at(int dirfd, const char *name);
int unix_listen_at(int dirfd, const char *name, int backlog);
