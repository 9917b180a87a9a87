/* The archive of a build context: a tar, plain or packed by gzip or zstd (told by magic), read once and whole.
 *
 * Other than a reader that stops at tar's end mark, it goes to the end of the file: a gzip trailer or zstd frame that is cut or wrong,
 * and a plain tar without its end mark, are errors (known-failures D1 20). One thread a handle.
 */
#pragma once

#include <archive.h>

#include "base/error.h"

/* Zero bytes accepted behind the end mark: tar pads to its record size. */
#define CONTEXT_PADDING_MAX (1024 * 1024)

struct context_archive;

/* Opens the archive at `path`. On success the caller releases `ret` with context_archive_close(). A file that cannot be read is
 * reported by its errno, one that is no archive as ERROR_INVALID, here or by the first archive_next(). */
int context_archive_open(const char *path, struct context_archive **ret, struct error *err);

/* The tar reader, for archive_next() and entry_create(); it belongs to the handle. */
struct archive *context_archive_tar(struct context_archive *c);

/* After archive_next() said 0: reads what is left, ERROR_INVALID unless the archive is complete. */
int context_archive_finish(struct context_archive *c, struct error *err);

/* NULL is fine. Returns NULL. */
struct context_archive *context_archive_close(struct context_archive *c);
