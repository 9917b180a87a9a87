/* Writer of "newc" cpio archives, the form in which the kernel takes an initramfs. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

struct cpio {
        struct buf out;     /* the archive so far */
        uint32_t inode;     /* of the last entry */
};

/* Appends one entry. `name` has no leading '/', parents must be added before; `mode` holds the type: regular files
 * have `len` (below 4 GiB) bytes of `data`, directories and devices none; `rdev` is for devices. Owner root, time 0:
 * the same input gives the same bytes. */
void cpio_add(struct cpio *c, const char *name, mode_t mode, dev_t rdev, const void *data, size_t len);

/* Ends the archive; nothing may be added after it. */
void cpio_end(struct cpio *c);
void cpio_free(struct cpio *c);
