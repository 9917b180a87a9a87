/* /proc/self/mountinfo, the part that tells one mount from another. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct mount_entry {
        int id;     /* unique among what is mounted now */
        char *path; /* of the mount point, unescaped */
        char *type; /* of the file system, "tmpfs" */
};

/* The mounts of `text` (NUL-terminated), in the order in which they were made; lines that are no mounts are left out.
 * Returns their number; the caller frees `ret` with mountinfo_free(). */
size_t mountinfo_parse(const char *text, struct mount_entry **ret);
void mountinfo_free(struct mount_entry *mounts, size_t count);

/* Is a mount of the same number at the same place among them? */
bool mountinfo_has(const struct mount_entry *mounts, size_t count, const struct mount_entry *m);
