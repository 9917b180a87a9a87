/* See the header. The key of the default team exists nowhere in clear but in its file, so a crash between minting and
 * writing must not leave a team that nobody can use: a marker file is there from before the team is made until the key is
 * written, and while it is, the key is made (again).
 */
#include "cmd/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define TOKEN_BYTES 32
#define DEFAULT_TEAM "default"

/* The one that holds the lock writes its process ID into it, for the message only. */
static int take_lock(const char *path, int *ret_fd, struct error *err)
{
        CLEANUP_FREE char *file = path_join(path, "lock");
        CLEANUP_CLOSE int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        char pid[32] = {};
        if (fd < 0)
                return error_errno(err, errno, "open %s", file);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
                if (read(fd, pid, sizeof pid - 1) < 0)
                        pid[0] = '\0';
                return error_set(err, ERROR_CONFLICT,
                                 "another vmon serve%s%s is running on the data directory %s; stop it first, or give another --data-dir",
                                 pid[0] ? ", process " : "", pid, path);
        }
        int n = snprintf(pid, sizeof pid, "%d", getpid());
        if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, n, 0) != n)
                return error_errno(err, errno, "write %s", file);
        *ret_fd = STEAL_FD(fd);
        return 0;
}

int data_dir_open(const char *path, int *ret_lock_fd, struct error *err)
{
        static const char *const parts[] = { "cache/oci", "cache/steps", "files", "builds", "sandboxes" };
        int r = dir_make(path, 0711, err); /* machines run under their own users and reach their files by name */
        if (r == 0)
                r = take_lock(path, ret_lock_fd, err);
        for (size_t i = 0; r == 0 && i < sizeof parts / sizeof *parts; i++) {
                CLEANUP_FREE char *part = path_join(path, parts[i]);
                r = dir_make(part, 0711, err);
        }
        return r;
}

static int token_make(const char *path, char **ret, struct error *err)
{
        unsigned char bytes[TOKEN_BYTES];
        char text[2 * TOKEN_BYTES + 2];
        random_bytes(bytes, sizeof bytes);
        hex_encode(bytes, sizeof bytes, text);
        *ret = xstrdup(text);
        strcat(text, "\n");
        int r = file_write_atomic(path, text, strlen(text), 0600, err);
        explicit_bzero(text, sizeof text);
        if (r < 0)
                free(STEAL(*ret));
        return r;
}

int cluster_token_load(const char *path, char **ret, struct error *err)
{
        CLEANUP_BUF struct buf b = {};
        if (!path_exists(path))
                return token_make(path, ret, err);
        int r = file_read(path, 4096, &b, err);
        if (r < 0)
                return r;
        const char *token = b.data ? str_trim(b.data) : "";
        if (strlen(token) < 32)
                return error_set(err, ERROR_INVALID, "the cluster token in %s is shorter than 32 characters; remove the file to have one made", path);
        *ret = xstrdup(token);
        return 0;
}

static int make_default_team(struct records *records, struct team **ret, struct error *err)
{
        char id[UUID_LEN + 1], name[] = DEFAULT_TEAM;
        random_uuid(id);
        struct team t = { .id = id, .name = name, .slug = name };
        team_defaults(&t);
        int r = records_team_create(records, &t, err);
        return r < 0 ? r : records_team_get(records, id, ret, err);
}

static int any_team(struct records *records, bool *ret, struct error *err)
{
        struct team **teams = NULL;
        size_t n = 0;
        int r = records_team_list(records, &teams, &n, err);
        if (r < 0)
                return r;
        team_list_free(teams, n);
        *ret = n > 0;
        return 0;
}

static int mint_key(struct records *records, const struct team *team, const char *data_dir, char **ret_key, struct error *err)
{
        CLEANUP_FREE char *path = path_join(data_dir, "default-key");
        CLEANUP_FREE char *key = NULL, *key_id = NULL;
        int r = records_key_create(records, team->id, &key, &key_id, err);
        if (r < 0)
                return r;
        CLEANUP_FREE char *line = xasprintf("%s\n", key);
        r = file_write_atomic(path, line, strlen(line), 0600, err);
        explicit_bzero(line, strlen(line));
        if (r == 0)
                *ret_key = STEAL(key);
        return r;
}

int default_team_ensure(struct records *records, const char *data_dir, char **ret_key, struct error *err)
{
        CLEANUP_FREE char *marker = path_join(data_dir, "default-key.pending");
        struct team *team = NULL;
        bool there = false, cut_off = path_exists(marker);
        *ret_key = NULL;
        int r = any_team(records, &there, err);
        if (r < 0 || (there && !cut_off))
                return r;
        r = file_write_atomic(marker, "", 0, 0600, err);
        if (r == 0)
                r = there ? records_team_by_slug(records, DEFAULT_TEAM, &team, err) : make_default_team(records, &team, err);
        if (r == 0)
                r = mint_key(records, team, data_dir, ret_key, err);
        if (r == 0 && unlink(marker) < 0)
                r = error_errno(err, errno, "remove %s", marker);
        team_free(team);
        return r < 0 ? error_wrap(err, r, "create the default team") : 0;
}
