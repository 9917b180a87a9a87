/* Theory of operation: mount(2) by a table; EBUSY means that somebody was faster, which is what we want too.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "guest.h"
#include "tree.h"
#include "uevent.h"

#define CGROUP_ROOT "/sys/fs/cgroup"
#define DEVICE_LOOK_MS 100 /* an event may be lost */

static bool is_mount_point(const char *path)
{
        struct stat here, above;
        CLEANUP_FREE char *parent = xasprintf("%s/..", path);

        return stat(path, &here) == 0 && stat(parent, &above) == 0 &&
               (here.st_dev != above.st_dev || here.st_ino == above.st_ino);
}

static void mount_missing(const char *type, const char *path, unsigned long flags, const char *options)
{
        mkdir(path, 0755);
        if (is_mount_point(path))
                return;
        if (mount(type, path, type, flags, options) < 0 && errno != EBUSY)
                log_warn("mount %s at %s: %s", type, path, strerror(errno));
}

void guest_mount_basics(bool cgroups)
{
        mount_missing("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
        mount_missing("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
        mount_missing("devtmpfs", "/dev", MS_NOSUID, "mode=0755");
        mount_missing("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666");
        mount_missing("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777");
        mount_missing("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755");
        if (cgroups)
                mount_missing("cgroup2", CGROUP_ROOT, MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
        symlink("/proc/self/fd", "/dev/fd");
        symlink("/proc/self/fd/0", "/dev/stdin");
        symlink("/proc/self/fd/1", "/dev/stdout");
        symlink("/proc/self/fd/2", "/dev/stderr");
}

char *guest_disk_by_serial(const char *serial)
{
        for (int letter = 'a'; letter <= 'z'; letter++) {
                CLEANUP_FREE char *path = xasprintf("/sys/block/vd%c/serial", letter);
                CLEANUP_BUF struct buf text = {};

                if (file_read(path, 256, &text, NULL) < 0)
                        continue;
                if (streq(str_trim(text.data ? text.data : (char[]){ 0 }), serial))
                        return xasprintf("/dev/vd%c", letter);
        }
        return NULL;
}

int guest_wait_for(const char *device, unsigned timeout_s, struct error *err)
{
        int64_t end = clock_monotonic_ns() + timeout_s * NSEC_PER_SEC;
        CLEANUP_CLOSE int events = uevent_open();

        /* The kernel makes the node in devtmpfs before it announces the device. */
        while (!path_exists(device)) {
                if (clock_monotonic_ns() > end)
                        return error_set(err, ERROR_UNAVAILABLE,
                                         "%s did not appear within %u s: is the disk attached and virtio_blk loaded?",
                                         device, timeout_s);
                uevent_wait(events, DEVICE_LOOK_MS);
        }
        return 0;
}

int guest_mount_root(struct error *err)
{
        int r;

        mkdir(NEW_ROOT, 0755);
        if (is_mount_point(NEW_ROOT))
                return 0;
        r = guest_wait_for("/dev/vda", 10, err);
        if (r < 0)
                return r;
        if (mount("/dev/vda", NEW_ROOT, "ext4", MS_NOATIME, NULL) < 0)
                return error_errno(err, errno, "mount the root disk /dev/vda as ext4");
        return 0;
}

int guest_mount_module_disk(const char *root, struct error *err)
{
        CLEANUP_FREE char *disk = guest_disk_by_serial("modules");
        struct tree tree;
        struct utsname system;
        char path[PATH_MAX], point[64];
        const char *name;
        int parent, fd, r;

        if (!disk)
                return 0;
        uname(&system);
        snprintf(path, sizeof(path), "lib/modules/%s", system.release);
        r = tree_open(&tree, root, TREE_FOLLOW_IN_ROOT, err);
        if (r < 0)
                return r;
        r = tree_parent(&tree, path, true, &parent, &name, err);
        if (r >= 0 && mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
                r = error_errno(err, errno, "create %s", path);
        fd = r < 0 ? -1 : tree_openat(&tree, path, O_RDONLY | O_DIRECTORY);
        if (r >= 0 && fd < 0)
                r = error_errno(err, fd, "open %s", path);
        if (fd >= 0) {
                snprintf(point, sizeof(point), "/proc/self/fd/%d", fd);
                if (mount(disk, point, "squashfs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0 &&
                    mount(disk, point, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0 && errno != EBUSY)
                        r = error_errno(err, errno, "mount the modules disk %s at %s", disk, path);
                close(fd);
        }
        tree_close(&tree);
        return r;
}

int guest_mount_share(const char *at, struct error *err)
{
        int r = dir_make(at, 0755, err);

        if (r < 0)
                return r;
        if (is_mount_point(at))
                return 0;
        if (mount(SHARE_TAG, at, "virtiofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
                return error_errno(err, errno, "mount the host's share (virtio-fs tag '%s')", SHARE_TAG);
        return 0;
}

/* Frees the initramfs: everything on the first file system but the mount points. */
static void delete_initramfs(int root)
{
        struct stat st, entry;
        CLEANUP_CLOSEDIR DIR *dir = NULL;
        struct statfs fs;
        struct dirent *e;

        /* Only ever empties a ramfs or tmpfs. */
        if (fstatfs(root, &fs) < 0 || (fs.f_type != 0x858458f6 && fs.f_type != 0x01021994) || fstat(root, &st) < 0)
                return;
        dir = fdopendir(fcntl(root, F_DUPFD_CLOEXEC, 3));
        while (dir && (e = readdir(dir))) {
                if (streq(e->d_name, ".") || streq(e->d_name, ".."))
                        continue;
                if (fstatat(root, e->d_name, &entry, AT_SYMLINK_NOFOLLOW) == 0 && entry.st_dev == st.st_dev)
                        tree_remove_at(root, e->d_name);
        }
}

int guest_switch_root(const char *const argv[], struct error *err)
{
        static const char *const moved[] = { "/dev", "/proc", "/sys", "/run" };
        CLEANUP_CLOSE int old = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        char *const environment[] = { (char *)"PATH=" AGENT_PATH, (char *)"HOME=/", (char *)"TERM=linux", NULL };

        for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
                CLEANUP_FREE char *to = path_join(NEW_ROOT, moved[i] + 1);

                mkdir(to, 0755);
                if (mount(moved[i], to, NULL, MS_MOVE, NULL) < 0)
                        umount2(moved[i], MNT_DETACH);
        }
        if (chdir(NEW_ROOT) < 0)
                return error_errno(err, errno, "enter %s", NEW_ROOT);
        if (old >= 0)
                delete_initramfs(old);
        if (mount(NEW_ROOT, "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
                return error_errno(err, errno, "switch to the root file system");
        execve(argv[0], (char *const *)argv, environment);
        return error_errno(err, errno, "execute %s", argv[0]);
}

void guest_power_off(void)
{
        sync();
        mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
        sync();
        if (reboot(RB_POWER_OFF) < 0)
                log_error("power off: %s", strerror(errno));
}
