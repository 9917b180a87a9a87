/* Connect's streaming envelopes (envd.md 1.4): flags byte, 4-byte big-endian length, JSON.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"

/* The agent sends output in pieces of at most 64 KiB, base64 in JSON. */
#define ENVELOPE_MAX (4u << 20)

/* Appends one envelope. */
void envelope_format(struct buf *b, unsigned char flags, const json_t *message);

/* Takes the first complete envelope out of `b`: 1, 0 when more bytes are needed, -EMSGSIZE beyond ENVELOPE_MAX,
 * -EPROTO for compressed or unknown flags, -EBADMSG for what is no JSON object. *ret_end: the end-of-stream one. */
int envelope_take(struct buf *b, json_t **ret, bool *ret_end);
