/* The names in /dev, as they were at the start: what a step makes, removes or changes there is undone behind it, since /dev is in memory
 * and a step that comes from the cache leaves nothing in it. What the kernel itself makes and removes is left to the kernel.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

#define DEVICE_NAMES_MAX 4096 /* of the start */
#define DEVICE_DEPTH_MAX 8    /* of directories */

struct device_name {
        char *path; /* below /dev */
        mode_t mode;
        uid_t uid;
        gid_t gid;
        dev_t device; /* of nodes */
        char *target; /* of symlinks, else NULL */
};

struct device_list {
        struct device_name *names; /* directories before what is in them */
        size_t count;
};

/* Is the device `number` (character or block, by `mode`) the kernel's own at `path`? */
typedef bool (*device_is_kernels)(const char *path, mode_t mode, dev_t number);
bool device_in_sysfs(const char *path, mode_t mode, dev_t number);

/* All names below the directory `dir` on its own file system. An error leaves the list empty. */
int devices_remember(int dir, struct device_list *ret, struct error *err);
/* Removes what is not in the list and not the kernel's, makes what is missing, sets owner and mode where they differ. The content of
 * regular files is not looked at. */
int devices_restore(int dir, const struct device_list *list, device_is_kernels kernels, struct error *err);
void device_list_free(struct device_list *list);
