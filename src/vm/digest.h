/* The digest of an artifact: SHA-256 over the SHA-256 of each MiB of it (the last one may be shorter).
 *
 * It depends on the content alone, but a MiB that is a hole costs nothing: a root file system of 10 GiB with 200 MB of data
 * is read in 0.2 s instead of 7. A part of a file can be checked against its own MiBs later.
 */
#pragma once

#include <stdint.h>

#define DIGEST_CHUNK (1u << 20)
#define DIGEST_HEX_LEN 64

/* Reads `fd`, a regular file or memfd, from its start whatever its offset. `ret_hex` has room for DIGEST_HEX_LEN + 1 bytes.
 * 0 or -errno; -EIO when the file shrank meanwhile. */
int digest_file(int fd, uint64_t *ret_size, char *ret_hex);
