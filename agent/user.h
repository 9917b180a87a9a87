/* Users and groups from the guest's own /etc/passwd and /etc/group, read anew at each look-up because steps
 * add users at run time. NSS is out of reach for a static binary (design 2).
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#define USER_GROUPS_MAX 256

struct user {
        char *name;
        char *home; /* "/" when the entry has none */
        uid_t uid;
        gid_t gid;
        gid_t groups[USER_GROUPS_MAX]; /* supplementary and primary */
        size_t group_count;
};

/* Finds `name`; -ENOENT when there is no such user. Without any passwd file, "root" exists with home /root.
 * On success the caller releases `ret` with user_free(). */
int user_lookup(const char *name, struct user *ret);
void user_free(struct user *u);

/* The ID of a group; -ENOENT when unknown. */
int group_lookup(const char *name, gid_t *ret);

/* The names of an owner and a group, the decimal ID when unknown. The caller frees. */
char *user_name(uid_t uid);
char *group_name(gid_t gid);
