/* Theory of operation: fgetpwent_r/fgetgrent_r over the files, with a line buffer of a named size; a line that
 * does not fit ends the search of its file (it cannot be an account that matters).
 */
#include "user.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"

#define PASSWD_FILE "/etc/passwd"
#define GROUP_FILE "/etc/group"
#define ACCOUNT_LINE_MAX (256 * 1024)

static void add_group(struct user *u, gid_t gid)
{
        for (size_t i = 0; i < u->group_count; i++)
                if (u->groups[i] == gid)
                        return;
        if (u->group_count < USER_GROUPS_MAX)
                u->groups[u->group_count++] = gid;
}

static void read_groups(struct user *u)
{
        CLEANUP_FCLOSE FILE *f = fopen(GROUP_FILE, "re");
        CLEANUP_FREE char *line = xmalloc(ACCOUNT_LINE_MAX);
        struct group entry, *g;

        add_group(u, u->gid);
        while (f && fgetgrent_r(f, &entry, line, ACCOUNT_LINE_MAX, &g) == 0)
                for (char **member = g->gr_mem; *member; member++)
                        if (streq(*member, u->name))
                                add_group(u, g->gr_gid);
}

static void fill(struct user *u, const char *name, const char *home, uid_t uid, gid_t gid)
{
        *u = (struct user){ .name = xstrdup(name), .home = xstrdup(home && *home ? home : "/"), .uid = uid, .gid = gid };
        read_groups(u);
}

int user_lookup(const char *name, struct user *ret)
{
        CLEANUP_FCLOSE FILE *f = fopen(PASSWD_FILE, "re");
        CLEANUP_FREE char *line = xmalloc(ACCOUNT_LINE_MAX);
        struct passwd entry, *p;

        if (!f && streq(name, "root")) {
                fill(ret, "root", "/root", 0, 0);
                return 0;
        }
        while (f && fgetpwent_r(f, &entry, line, ACCOUNT_LINE_MAX, &p) == 0)
                if (streq(p->pw_name, name)) {
                        fill(ret, p->pw_name, p->pw_dir, p->pw_uid, p->pw_gid);
                        return 0;
                }
        return -ENOENT;
}

void user_free(struct user *u)
{
        free(u->name);
        free(u->home);
        *u = (struct user){};
}

int group_lookup(const char *name, gid_t *ret)
{
        CLEANUP_FCLOSE FILE *f = fopen(GROUP_FILE, "re");
        CLEANUP_FREE char *line = xmalloc(ACCOUNT_LINE_MAX);
        struct group entry, *g;

        if (!f && streq(name, "root")) {
                *ret = 0;
                return 0;
        }
        while (f && fgetgrent_r(f, &entry, line, ACCOUNT_LINE_MAX, &g) == 0)
                if (streq(g->gr_name, name)) {
                        *ret = g->gr_gid;
                        return 0;
                }
        return -ENOENT;
}

char *user_name(uid_t uid)
{
        CLEANUP_FCLOSE FILE *f = fopen(PASSWD_FILE, "re");
        CLEANUP_FREE char *line = xmalloc(ACCOUNT_LINE_MAX);
        struct passwd entry, *p;

        while (f && fgetpwent_r(f, &entry, line, ACCOUNT_LINE_MAX, &p) == 0)
                if (p->pw_uid == uid)
                        return xstrdup(p->pw_name);
        return xasprintf("%u", (unsigned)uid);
}

char *group_name(gid_t gid)
{
        CLEANUP_FCLOSE FILE *f = fopen(GROUP_FILE, "re");
        CLEANUP_FREE char *line = xmalloc(ACCOUNT_LINE_MAX);
        struct group entry, *g;

        while (f && fgetgrent_r(f, &entry, line, ACCOUNT_LINE_MAX, &g) == 0)
                if (g->gr_gid == gid)
                        return xstrdup(g->gr_name);
        return xasprintf("%u", (unsigned)gid);
}
