/* Base64 as proto3 JSON wants it: padded standard alphabet out; either alphabet, padded or not, in. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

void base64_add(struct buf *to, const void *data, size_t len);

/* Appends the decoded bytes; false (nothing appended) on a foreign character or an impossible length. */
bool base64_decode(const char *text, size_t len, struct buf *to);
