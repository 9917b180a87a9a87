/* Kernel-facing pieces of the initramfs and init roles: mounts, modules, the network interface, the virtio
 * devices, and moving into the real root.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

#define NEW_ROOT "/newroot"
#define SHARE_DIR "/run/vmon/share"
#define SHARE_TAG "share"

/* Mounts what of /proc, /sys, /dev, /dev/pts, /dev/shm, /run, /tmp (initramfs: not /tmp) and the cgroup2 tree
 * is missing. Failures are logged, not fatal: a rescue console beats a panic. */
void guest_mount_basics(bool cgroups);

/* Loads /modules/<name> for each name in /modules/order, in order. A module that is already there, built in or
 * has no device is no error. */
int guest_load_modules(struct error *err);

/* The value of `name=` on the kernel command line; the caller frees; NULL when absent. */
char *guest_kernel_option(const char *name);

/* Brings up lo and, where there is one, eth0 with the fixed address, route and MTU. */
int guest_configure_network(struct error *err);

/* /dev/vdX of the virtio-blk device with this serial, NULL when there is none. The caller frees. */
char *guest_disk_by_serial(const char *serial);

/* Waits up to `timeout_s` for a block device to appear. */
int guest_wait_for(const char *device, unsigned timeout_s, struct error *err);

/* Mounts /dev/vda (ext4) at `NEW_ROOT`; already mounted is success. */
int guest_mount_root(struct error *err);

/* Mounts the modules disk at <root>/lib/modules/<release>, resolved inside the root. No such disk is success. */
int guest_mount_module_disk(const char *root, struct error *err);

/* Mounts the host's share read-only at `at`; already mounted is success. */
int guest_mount_share(const char *at, struct error *err);

/* Moves the mounts into NEW_ROOT, deletes the initramfs, changes the root and executes argv[0]. Returns only on
 * failure. Threads of the caller die in the exec. */
int guest_switch_root(const char *const argv[], struct error *err);

/* sync, read-only remount, reboot(RB_POWER_OFF). Returns only when it is refused. */
void guest_power_off(void);
