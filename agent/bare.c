#include "bare.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#define ACCOUNTS_MAX (1 << 20)
#define FIRST_USER_ID 1000U

bool bare_has_shell(const char *root)
{
        CLEANUP_FREE char *path = xasprintf("%s/bin/sh", root);

        return access(path, X_OK) == 0;
}

static int make_dir(const char *root, const char *name, mode_t mode, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("%s%s", root, name);

        if (mkdir(path, 0755) < 0)
                return errno == EEXIST ? 0 : error_errno(err, errno, "create %s", path);
        return chmod(path, mode) < 0 ? error_errno(err, errno, "change the mode of %s", path) : 0;
}

static int read_accounts(const char *path, struct buf *ret, struct error *err)
{
        int r = path_exists(path) ? file_read(path, ACCOUNTS_MAX, ret, err) : 0;

        if (r >= 0 && ret->len && ret->data[ret->len - 1] != '\n')
                buf_addc(ret, '\n');
        return r;
}

/* The third field of the line of `name`, or -ENOENT. */
static int number_of(const char *text, const char *name, unsigned *ret)
{
        size_t len = strlen(name);

        for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
                const char *field = strncmp(line, name, len) == 0 && line[len] == ':' ? strchr(line + len + 1, ':') : NULL;

                if (field) {
                        *ret = (unsigned)strtoul(field + 1, NULL, 10);
                        return 0;
                }
        }
        return -ENOENT;
}

static bool is_taken(const char *text, unsigned number)
{
        CLEANUP_FREE char *field = xasprintf(":%u:", number);

        return strstr(text, field); /* a number in another field costs us one number, no more */
}

static int add_account(const char *path, struct buf *text, const char *line, struct error *err)
{
        buf_addf(text, "%s\n", line);
        return file_write_atomic(path, text->data, text->len, 0644, err);
}

static int set_up_groups(const char *root, unsigned id, unsigned *ret_gid, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("%s/etc/group", root), *line = xasprintf("user:x:%u:", id);
        CLEANUP_BUF struct buf text = {};
        unsigned gid;
        int r = read_accounts(path, &text, err);

        if (r >= 0 && number_of(buf_str(&text), "root", &gid) < 0)
                r = add_account(path, &text, "root:x:0:", err);
        *ret_gid = id;
        if (r >= 0 && number_of(buf_str(&text), "user", ret_gid) < 0)
                r = add_account(path, &text, line, err);
        return r;
}

/* A number that neither file has. */
static int free_number(const char *root, const char *accounts, unsigned *ret, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("%s/etc/group", root);
        CLEANUP_BUF struct buf groups = {};
        int r = read_accounts(path, &groups, err);

        if (r < 0)
                return r;
        for (*ret = FIRST_USER_ID; is_taken(accounts, *ret) || is_taken(buf_str(&groups), *ret); (*ret)++)
                ;
        return 0;
}

static int set_up_users(const char *root, unsigned *ret_uid, unsigned *ret_gid, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("%s/etc/passwd", root), *line = NULL;
        CLEANUP_BUF struct buf text = {};
        unsigned uid;
        int r = read_accounts(path, &text, err);

        if (r >= 0 && number_of(buf_str(&text), "root", &uid) < 0)
                r = add_account(path, &text, "root:x:0:0:root:/root:/bin/sh", err);
        if (r < 0)
                return r;
        if (number_of(buf_str(&text), "user", ret_uid) >= 0)
                return set_up_groups(root, *ret_uid, ret_gid, err);
        r = free_number(root, buf_str(&text), ret_uid, err);
        if (r >= 0)
                r = set_up_groups(root, *ret_uid, ret_gid, err);
        if (r < 0)
                return r;
        line = xasprintf("user:x:%u:%u::/home/user:/bin/sh", *ret_uid, *ret_gid);
        return add_account(path, &text, line, err);
}

static int give_home(const char *root, unsigned uid, unsigned gid, struct error *err)
{
        CLEANUP_FREE char *home = xasprintf("%s/home/user", root);

        return lchown(home, uid, gid) < 0 ? error_errno(err, errno, "give %s to user", home) : 0;
}

static int mark_template(const char *root, const struct bare_ids *ids, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("%s/.e2b", root), *local = xasprintf("%s/usr/local", root);
        CLEANUP_FREE char *text = xasprintf("ENV_ID=%s\nTEMPLATE_ID=%s\nBUILD_ID=%s\n", ids->template_id, ids->template_id,
                                            ids->build_id);
        int r = file_write_atomic(path, text, strlen(text), 0644, err);

        if (r >= 0)
                r = make_dir(root, "/code", 0777, err);
        if (r >= 0)
                r = make_dir(root, "/usr", 0755, err);
        if (r >= 0)
                r = make_dir(root, "/usr/local", 0777, err);
        if (r >= 0 && chmod(local, 0777) < 0)
                r = error_errno(err, errno, "open %s", local);
        return r;
}

int bare_set_up(const char *root, const struct bare_ids *ids, struct error *err)
{
        static const struct {
                const char *name;
                mode_t mode;
        } dirs[] = {{"/etc", 0755}, {"/root", 0700}, {"/tmp", 01777}, {"/home", 0755}, {"/home/user", 0755}};
        unsigned uid, gid;
        int r = 0;

        for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]) && r >= 0; i++)
                r = make_dir(root, dirs[i].name, dirs[i].mode, err);
        if (r >= 0)
                r = set_up_users(root, &uid, &gid, err);
        if (r >= 0)
                r = give_home(root, uid, gid, err);
        return r < 0 || !ids->template_id ? r : mark_template(root, ids, err);
}
