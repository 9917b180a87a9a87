/* Pure decisions about a download: encoding, range, names and types (envd.md 3.5). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum encoding {
        ENCODING_IDENTITY,
        ENCODING_GZIP,
        ENCODING_NONE,       /* nothing acceptable: 406 */
};

/* By an Accept-Encoding header (NULL = absent). Identity is preferred only where the client does so. */
enum encoding negotiate_encoding(const char *accept);
/* May the answer be identity at all? */
bool negotiate_identity(const char *accept);

enum range {
        RANGE_ALL,           /* no, malformed or several ranges: the whole file */
        RANGE_PART,
        RANGE_UNSATISFIABLE,
};
enum range negotiate_range(const char *header, uint64_t size, uint64_t *ret_start, uint64_t *ret_length);

/* "inline; filename=…" in the spelling that Go's mime package gives. The caller frees. */
char *negotiate_disposition(const char *name);

/* The media type by the name's extension, else by the first bytes. Static text. */
const char *negotiate_type(const char *name, const void *head, unsigned long len);
