#include "cmd/restore.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "cmd/data_dir.h"
#include "store/records.h"
#include "store/secret.h"
#include "store/store.h"

#define STORE_NAME "vmon.db"

static int copy_file(const char *from, const char *to, struct error *err)
{
        CLEANUP_CLOSE int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;

        if (in < 0)
                return error_errno(err, errno, "open %s", from);
        out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (out < 0)
                return error_errno(err, errno, "create %s", to);
        return fd_copy_sparse(in, out, err);
}

static int count_records(struct records *r, struct restore_summary *ret, struct error *err)
{
        struct team **teams;
        int x = records_team_list(r, &teams, &ret->teams, err);

        ret->templates = 0;
        for (size_t i = 0; x == 0 && i < ret->teams; i++) {
                size_t n = 0;

                x = records_template_count(r, teams[i]->id, &n, err);
                ret->templates += n;
        }
        if (x == 0)
                team_list_free(teams, ret->teams);
        return x;
}

static int check_records(struct store *store, const unsigned char *secret, struct restore_summary *ret, struct error *err)
{
        struct records *records;
        int r = records_open(store, &records, err);

        if (r < 0)
                return r;
        records_set_secret(records, secret);
        r = records_check_secret(records, err);
        if (r == 0)
                r = count_records(records, ret, err);
        records_close(records);
        return r;
}

/* Opening also migrates the copy and folds its journal into it. */
static int check_copy(const char *data_dir, const char *copy, struct restore_summary *ret, struct error *err)
{
        CLEANUP_FREE char *secret_path = path_join(data_dir, "root-secret"), *url = xasprintf("sqlite:%s", copy);
        unsigned char secret[SECRET_LEN];
        struct store *store;
        int r;

        if (!path_exists(secret_path))
                return error_set(err, ERROR_NOT_FOUND, "%s is missing: put the root-secret of the backed-up data directory there first",
                                 secret_path);
        r = secret_load(secret_path, secret, err);
        if (r == 0)
                r = store_verify(copy, err);
        if (r == 0)
                r = store_open(url, &store, err);
        if (r == 0) {
                r = check_records(store, secret, ret, err);
                store_close(store);
        }
        explicit_bzero(secret, sizeof(secret));
        return r;
}

/* A journal that an earlier store left would be applied to the new one. */
static int publish(const char *copy, const char *path, struct error *err)
{
        static const char *const left[] = { "-wal", "-shm" };

        for (size_t i = 0; i < 2; i++) {
                CLEANUP_FREE char *journal = xasprintf("%s%s", path, left[i]);

                if (unlink(journal) < 0 && errno != ENOENT)
                        return error_errno(err, errno, "remove %s", journal);
        }
        return file_publish(copy, path, err);
}

static int restore_inside(const char *data_dir, const char *scratch, const char *file, bool drill, struct restore_summary *ret,
                          struct error *err)
{
        CLEANUP_FREE char *copy = path_join(scratch, STORE_NAME), *beside = xasprintf("%s/" STORE_NAME ".restored.tmp", data_dir);
        CLEANUP_FREE char *path = path_join(data_dir, STORE_NAME);
        int r = copy_file(file, copy, err);

        if (r == 0)
                r = check_copy(data_dir, copy, ret, err);
        if (r < 0 || drill)
                return r;
        if (rename(copy, beside) < 0)
                return error_errno(err, errno, "rename %s", copy);
        return publish(beside, path, err);
}

int restore_store(const char *data_dir, const char *file, bool drill, struct restore_summary *ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(data_dir, STORE_NAME), *scratch = xasprintf("%s/restore-XXXXXX", data_dir);
        CLEANUP_CLOSE int lock = -1;
        int r = drill ? dir_make(data_dir, 0711, err) : data_dir_open(data_dir, &lock, err);

        if (r == 0 && !drill && path_exists(path))
                r = error_set(err, ERROR_CONFLICT, "%s exists: move it away first, so that nothing is overwritten", path);
        if (r == 0 && !mkdtemp(scratch))
                r = error_errno(err, errno, "create %s", scratch);
        if (r == 0) {
                r = restore_inside(data_dir, scratch, file, drill, ret, err);
                tree_remove(scratch, NULL);
        }
        return r < 0 ? error_wrap(err, r, "restore %s", file) : 0;
}
