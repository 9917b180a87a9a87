/* Files: whole-file reading with a limit, durable publication, trees. Paths are UTF-8-agnostic. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"

/* Reads a whole file into `ret` (appended). A file larger than `limit` bytes is ERROR_LIMIT. */
int file_read(const char *path, size_t limit, struct buf *ret, struct error *err);

/* Publishes `data` at `path`: writes "<path>.<random>.tmp" beside it with `mode`, fsyncs, renames,
 * fsyncs the directory. After a crash either the old or the new content is there. */
int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, struct error *err);

/* The second half of a publication for a file or directory that was written under another name in the
 * same directory: fsync, rename over `to`, fsync of the directory. */
int file_publish(const char *from, const char *to, struct error *err);

/* Makes the content of a file that is complete durable. */
int file_fsync(const char *path, struct error *err);
int dir_fsync(const char *path, struct error *err);

/* mkdir -p with `mode` for what is created. */
int dir_make(const char *path, mode_t mode, struct error *err);

/* rm -rf that does not follow links nor cross into mounts; a missing path is success. */
int tree_remove(const char *path, struct error *err);

/* Writes everything despite short writes and EINTR; 0 or -errno. */
int fd_write_all(int fd, const void *data, size_t len);

/* Reads exactly `len` bytes; -EPIPE when the file ends before. */
int fd_read_all(int fd, void *data, size_t len);

/* Copies data extents only: holes stay holes (SEEK_DATA). `to` is truncated to the size of `from`. */
int fd_copy_sparse(int from, int to, struct error *err);

/* Allocated bytes of one file (st_blocks), 0 when missing; summed for a directory tree. */
uint64_t tree_allocated_bytes(const char *path);

bool path_exists(const char *path);

/* "<a>/<b>"; the caller frees. */
char *path_join(const char *a, const char *b);
