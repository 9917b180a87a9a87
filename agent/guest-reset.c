/* Theory of operation: mounts are told apart by their number and place. Those of the start are kept, but for file systems in
 * memory: these go with everything else and come back empty, which is simpler than emptying them in place. Only the
 * channel's thread calls here after the start.
 */
#include "guest-reset.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/swap.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "guest-devices.h"
#include "guest-objects.h"
#include "guest.h"
#include "mountinfo.h"
#include "state.h"

#define MOUNTINFO_BYTES_MAX (16UL << 20)
#define SWAPS_BYTES_MAX (1UL << 20)

static struct mount_entry *initial;
static size_t initial_count;
static struct device_list initial_devices;

static int read_mounts(struct mount_entry **ret, size_t *ret_count, struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        int r = file_read("/proc/self/mountinfo", MOUNTINFO_BYTES_MAX, &text, err);

        if (r >= 0)
                *ret_count = mountinfo_parse(buf_str(&text), ret);
        return r;
}

static void remember_devices(void)
{
        CLEANUP_CLOSE int dev = open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct error err;

        if (dev < 0 || devices_remember(dev, &initial_devices, &err) < 0)
                log_warn("the names in /dev at the start are not known: %s", dev < 0 ? strerror(errno) : err.message);
}

/* Without a list nothing is touched. */
static int restore_devices(struct error *err)
{
        CLEANUP_CLOSE int dev = -1;

        if (initial_devices.count == 0)
                return 0;
        dev = open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return dev < 0 ? error_errno(err, errno, "open /dev") : devices_restore(dev, &initial_devices, device_in_sysfs, err);
}

void guest_reset_prepare(void)
{
        struct mount_entry *mounts = NULL;
        size_t count = 0, kept = 0;
        struct error err;

        if (read_mounts(&mounts, &count, &err) < 0) {
                log_warn("what is mounted at the start is not known: %s", err.message);
                return;
        }
        for (size_t i = 0; i < count; i++) {
                if (streq(mounts[i].type, "tmpfs")) {
                        free(mounts[i].path);
                        free(mounts[i].type);
                } else {
                        mounts[kept++] = mounts[i];
                }
        }
        initial = mounts;
        initial_count = kept;
        remember_devices();
}

/* Newest first, so that what is stacked on or below another goes before it. */
static int unmount_new(struct error *err)
{
        struct mount_entry *mounts = NULL;
        size_t count = 0;
        int r = read_mounts(&mounts, &count, err);

        for (size_t i = count; r >= 0 && i-- > 0;) {
                if (mountinfo_has(initial, initial_count, &mounts[i]))
                        continue;
                if (umount2(mounts[i].path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0 && errno != ENOENT && errno != EINVAL)
                        r = error_errno(err, errno, "unmount %s, which the step has mounted", mounts[i].path);
        }
        mountinfo_free(mounts, count);
        return r;
}

/* The swap files of /proc/swaps: a heading, then one path a line, escaped as in mountinfo but for paths of blanks. */
static int swap_off(struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        char *save = NULL, *line;

        if (file_read("/proc/swaps", SWAPS_BYTES_MAX, &text, NULL) < 0 || !text.data)
                return 0;
        strtok_r(text.data, "\n", &save);
        while ((line = strtok_r(NULL, "\n", &save))) {
                line[strcspn(line, " \t")] = 0;
                if (*line == '/' && swapoff(line) < 0 && errno != EINVAL)
                        return error_errno(err, errno, "end the swapping to %s", line);
        }
        return 0;
}

static int make_writable(struct error *err)
{
        struct statvfs s;

        if (statvfs("/", &s) == 0 && (s.f_flag & ST_RDONLY) && mount(NULL, "/", NULL, MS_REMOUNT | MS_NOATIME, NULL) < 0)
                return error_errno(err, errno, "make the root file system writable again");
        return 0;
}

int guest_reset(struct error *err)
{
        int r;

        if (!initial)
                return error_set(err, ERROR_INTERNAL, "what was mounted at the start is not known");
        r = swap_off(err);
        if (r >= 0)
                r = unmount_new(err);
        if (r >= 0)
                r = make_writable(err);
        if (r >= 0)
                r = guest_end_loops(err);
        if (r < 0)
                return r;
        guest_mount_basics(true);
        r = guest_end_ipc(err);
        if (r >= 0)
                r = restore_devices(err);
        if (r < 0)
                return r;
        if (sethostname(GUEST_HOSTNAME, strlen(GUEST_HOSTNAME)) < 0)
                log_warn("set the host name: %s", strerror(errno));
        state_write_files();
        return 0;
}
