/* A VM's slot is a locked file /run/vmon/slots/N: the kernel hands it out atomically and takes it back when
 * the shim is gone, however it ended. The slot gives the uid and the host-side network addresses. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>

#include "base/file.h"
#include "base/rand.h"
#include "shim.h"

#define SLOT_DIR "/run/vmon/slots"
/* 4096 VMs per host; each takes a /30 on the host side. */
#define SLOTS 4096

int slot_claim(int *ret_slot, int *ret_fd, struct error *err)
{
        unsigned start;
        int r;

        r = dir_make(SLOT_DIR, 0700, err);
        if (r < 0)
                return r;
        random_bytes(&start, sizeof start);
        for (unsigned i = 0; i < SLOTS; i++) {
                CLEANUP_CLOSE int fd = -1;
                unsigned slot = (start + i) % SLOTS;
                char path[64];

                snprintf(path, sizeof path, SLOT_DIR "/%u", slot);
                fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
                if (fd < 0)
                        return error_errno(err, errno, "claim a VM slot: open %s", path);
                if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
                        *ret_slot = (int)slot;
                        *ret_fd = STEAL_FD(fd);
                        return 0;
                }
                if (errno != EWOULDBLOCK)
                        return error_errno(err, errno, "claim a VM slot: lock %s", path);
        }
        return error_set(err, ERROR_LIMIT, "all %d VM slots of this host are in use", SLOTS);
}
