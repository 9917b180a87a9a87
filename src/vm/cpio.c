/* newc: a header of 13 eight-digit hex numbers behind "070701", the NUL-terminated name, the data; name and data are
 * padded to four bytes (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).
 */
#include "vm/cpio.h"

#include <string.h>
#include <sys/sysmacros.h>

static void pad(struct buf *b)
{
        while (b->len % 4)
                buf_addc(b, '\0');
}

void cpio_add(struct cpio *c, const char *name, mode_t mode, dev_t rdev, const void *data, size_t len)
{
        c->inode++;
        /* magic ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check */
        buf_addf(&c->out, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", c->inode, (unsigned)mode, 0, 0,
                 1, 0, (unsigned)len, 0, 0, major(rdev), minor(rdev), (unsigned)strlen(name) + 1, 0);
        buf_add(&c->out, name, strlen(name) + 1);
        pad(&c->out);
        buf_add(&c->out, data, len);
        pad(&c->out);
}

void cpio_end(struct cpio *c)
{
        cpio_add(c, "TRAILER!!!", 0, 0, NULL, 0);
        /* A loader may round the image up: whole blocks leave it nothing to guess. */
        while (c->out.len % 512)
                buf_addc(&c->out, '\0');
}

void cpio_free(struct cpio *c)
{
        buf_free(&c->out);
}
