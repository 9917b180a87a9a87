/* System V objects are found by their place in the kernel's tables (the *_STAT calls), queues by a mount of their file system, loop
 * devices by sysfs; their nodes in /dev may be anything by now, so that each is opened by a node of our own.
 */
#include "guest-objects.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "tree.h"

#define QUEUES "/run/.vmon-queues"
#define LOOP_NODE "/dev/.vmon-loop"
#define SYSFS_LINE_MAX 4096

union semun { /* semctl(2): the caller defines it */
        int val;
        struct semid_ds *buf;
        struct seminfo *info;
};

static int gone(int r, const char *what, struct error *err)
{
        return r < 0 && errno != EINVAL && errno != EIDRM ? error_errno(err, errno, "remove %s, which the step has made", what) : 0;
}

static int end_memory(struct error *err)
{
        struct shm_info info;
        struct shmid_ds ds;
        int r = 0, last = shmctl(0, SHM_INFO, (struct shmid_ds *)&info);

        for (int i = 0; i <= last && r == 0; i++) {
                int id = shmctl(i, SHM_STAT, &ds);

                if (id >= 0)
                        r = gone(shmctl(id, IPC_RMID, NULL), "a shared memory segment", err);
        }
        return r;
}

static int end_semaphores(struct error *err)
{
        struct seminfo info;
        struct semid_ds ds;
        int r = 0, last = semctl(0, 0, SEM_INFO, (union semun){ .info = &info });

        for (int i = 0; i <= last && r == 0; i++) {
                int id = semctl(i, 0, SEM_STAT, (union semun){ .buf = &ds });

                if (id >= 0)
                        r = gone(semctl(id, 0, IPC_RMID), "a semaphore set", err);
        }
        return r;
}

static int end_messages(struct error *err)
{
        struct msginfo info;
        struct msqid_ds ds;
        int r = 0, last = msgctl(0, MSG_INFO, (struct msqid_ds *)&info);

        for (int i = 0; i <= last && r == 0; i++) {
                int id = msgctl(i, MSG_STAT, &ds);

                if (id >= 0)
                        r = gone(msgctl(id, IPC_RMID, NULL), "a message queue", err);
        }
        return r;
}

/* A kernel without them has none. */
static int end_posix_queues(struct error *err)
{
        CLEANUP_CLOSE int fd = -1;
        int r = 0;

        if (mkdir(QUEUES, 0700) < 0 && errno != EEXIST)
                return error_errno(err, errno, "create " QUEUES);
        if (mount("mqueue", QUEUES, "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0) {
                fd = open(QUEUES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                r = fd < 0 ? -errno : tree_empty(fd);
                umount2(QUEUES, MNT_DETACH);
        }
        rmdir(QUEUES);
        return r < 0 ? error_errno(err, -r, "remove the message queues that the step has made") : 0;
}

int guest_end_ipc(struct error *err)
{
        int r = end_memory(err);

        if (r == 0)
                r = end_semaphores(err);
        if (r == 0)
                r = end_messages(err);
        return r == 0 ? end_posix_queues(err) : r;
}

static int end_loop(const char *name, struct error *err)
{
        CLEANUP_FREE char *file = xasprintf("/sys/block/%s/loop/backing_file", name), *number = xasprintf("/sys/block/%s/dev", name);
        CLEANUP_BUF struct buf text = {};
        CLEANUP_CLOSE int fd = -1;
        unsigned a, b;

        if (!path_exists(file) || file_read(number, SYSFS_LINE_MAX, &text, NULL) < 0 || sscanf(buf_str(&text), "%u:%u", &a, &b) != 2)
                return 0;
        unlink(LOOP_NODE);
        if (mknod(LOOP_NODE, S_IFBLK | 0600, makedev(a, b)) < 0)
                return error_errno(err, errno, "make a node for %s", name);
        fd = open(LOOP_NODE, O_RDONLY | O_CLOEXEC);
        unlink(LOOP_NODE);
        if (fd < 0 || (ioctl(fd, LOOP_CLR_FD) < 0 && errno != ENXIO))
                return error_errno(err, errno, "free the loop device %s, which the step has set up", name);
        return 0;
}

int guest_end_loops(struct error *err)
{
        CLEANUP_CLOSEDIR DIR *d = opendir("/sys/block");
        int r = 0;

        for (struct dirent *e; d && r == 0 && (e = readdir(d));)
                if (str_starts(e->d_name, "loop"))
                        r = end_loop(e->d_name, err);
        return r;
}
