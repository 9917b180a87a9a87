/* Shared by layers and COPY archives: opening tars and writing one entry below a tree. */
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <stdbool.h>
#include <stdint.h>

#include "tree.h"

static inline void cleanup_archive(struct archive **a)
{
        if (*a)
                archive_read_free(*a);
}
#define CLEANUP_ARCHIVE __attribute__((cleanup(cleanup_archive)))

#define ARCHIVE_BLOCK (1024 * 1024) /* bytes read at once */
#define ENTRY_XATTRS_MAX 256
#define ENTRY_XATTR_BYTES_MAX (64 * 1024)

struct archive *archive_new(void);
int archive_open_path(struct archive *a, const char *path, struct error *err);

/* 1 = an entry, 0 = the end, negative = broken archive. A truncated archive is an error. libarchive's warnings
 * count as success: in the C locale it warns about each non-ASCII name whose bytes are right all the same. */
int archive_next(struct archive *a, struct archive_entry **ret, struct error *err);

/* Where entry_write_data() reports how far it is; may be called often. */
typedef void (*entry_progress)(uint64_t bytes, void *data);

/* Creates the object of `e` as dir_fd/name, which must not exist unless both are directories. Applies owner,
 * mode, extended attributes and mtime (a directory's mtime excepted). Hard links are made by the caller.
 * With `devices` false, devices, pipes (FIFOs) and sockets are ERROR_INVALID. */
int entry_create(struct archive *a, struct archive_entry *e, int dir_fd, const char *name, bool devices,
                 entry_progress progress, void *data, struct error *err);

/* Owner, mode and extended attributes of a directory that exists. */
int entry_apply_directory(struct archive_entry *e, int fd, struct error *err);
