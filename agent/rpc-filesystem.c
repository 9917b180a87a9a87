/* The filesystem service on the wire (envd.md 2.2). Each call resolves its paths on the loop and does the rest in
 * the thread pool, since a disk or a network mount may take its time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "entry.h"
#include "fileops.h"
#include "path.h"
#include "protojson.h"
#include "rpc-methods.h"
#include "rpc.h"
#include "state.h"
#include "watch-rpc.h"

#define ENTRIES_MAX 1000000 /* of one listing */

static void fail_work(struct rpc_work *w, enum rpc_code code, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

static void fail_work(struct rpc_work *w, enum rpc_code code, const char *format, ...)
{
        va_list ap;

        w->code = code;
        va_start(ap, format);
        vsnprintf(w->err.message, sizeof(w->err.message), format, ap);
        va_end(ap);
}

int filesystem_path(struct rpc *c, const json_t *request, const char *name, char **ret)
{
        CLEANUP_FREE char *workdir = state_default_workdir();
        const char *path = "";
        struct error err;

        if (proto_string(request, name, &path, &err) < 0) {
                rpc_fail_error(c, &err);
                return -EINVAL;
        }
        if (path_resolve(path, c->user.home, workdir, ret, &err) < 0) {
                rpc_fail(c, RPC_INVALID_ARGUMENT, "failed to expand path '%s' for user '%s': %s", path, c->user.name,
                         err.message);
                return -EINVAL;
        }
        return 0;
}

/* Puts the resolved paths into a fresh request for the pool and runs it there. */
static void resolve_and_run(struct rpc *c, const json_t *request, const char *const names[],
                            void (*work)(struct rpc_work *w))
{
        CLEANUP_JSON json_t *resolved = json_copy((json_t *)request);

        for (size_t i = 0; names[i]; i++) {
                CLEANUP_FREE char *path = NULL;

                if (filesystem_path(c, request, names[i], &path) < 0)
                        return;
                /* Paths came as JSON strings, so they are valid ones still; home directories may not be. */
                json_object_set_new(resolved, names[i], entry_string(path));
        }
        rpc_in_pool(c, resolved, work);
}

static void add_entry(struct rpc_work *w, json_t *entry)
{
        CLEANUP_JSON json_t *answer = json_object();
        CLEANUP_FREE char *text = NULL;

        json_object_set_new(answer, "entry", entry);
        text = json_text(answer);
        buf_adds(&w->result, text);
}

static void reply_entry(struct rpc_work *w, const char *path)
{
        json_t *entry = entry_info(path, w->call->legacy);

        if (entry)
                add_entry(w, entry);
        else
                fail_work(w, RPC_INTERNAL, "error getting file info: lstat %s: %s", path, strerror(errno));
}

static const char *lower_error(int number)
{
        return number == ENOENT ? "no such file or directory" : number == ENOTDIR ? "not a directory"
             : number == EEXIST ? "file exists"               : strerror(number);
}

static void work_stat(struct rpc_work *w)
{
        const char *path = json_str(w->request, "path");
        json_t *entry = entry_info(path, w->call->legacy);

        if (entry)
                add_entry(w, entry);
        else if (errno == ENOENT)
                fail_work(w, RPC_NOT_FOUND, "file not found: lstat %s: %s", path, lower_error(errno));
        else
                fail_work(w, RPC_INTERNAL, "error getting file info: lstat %s: %s", path, lower_error(errno));
}

static void work_make_dir(struct rpc_work *w)
{
        const char *path = json_str(w->request, "path");
        struct stat st;

        if (stat(path, &st) == 0) {
                if (S_ISDIR(st.st_mode))
                        fail_work(w, RPC_ALREADY_EXISTS, "directory already exists: %s", path);
                else
                        fail_work(w, RPC_INVALID_ARGUMENT, "path already exists but it is not a directory: %s", path);
                return;
        }
        if (errno != ENOENT) {
                fail_work(w, RPC_INTERNAL, "error getting file info: stat %s: %s", path, lower_error(errno));
                return;
        }
        if (fileops_make_directories(path, &w->call->user, &w->err) < 0)
                w->code = RPC_INTERNAL;
        else
                reply_entry(w, path);
}

static void work_move(struct rpc_work *w)
{
        const char *from = json_str(w->request, "source"), *to = json_str(w->request, "destination");
        struct stat st;

        if (lstat(from, &st) < 0) {
                fail_work(w, errno == ENOENT ? RPC_NOT_FOUND : RPC_INTERNAL, "source file not found: lstat %s: %s", from,
                          lower_error(errno));
                return;
        }
        if (fileops_make_parents(to, &w->call->user, &w->err) < 0) {
                w->code = RPC_INTERNAL;
                return;
        }
        if (lstat(to, &st) == 0 && S_ISDIR(st.st_mode))
                fail_work(w, RPC_INTERNAL, "error renaming: rename %s %s: %s", from, to, lower_error(EEXIST));
        else if (rename(from, to) < 0)
                fail_work(w, errno == ENOENT ? RPC_NOT_FOUND : RPC_INTERNAL, "error renaming: rename %s %s: %s", from, to,
                          lower_error(errno));
        else
                reply_entry(w, to);
}

static void work_remove(struct rpc_work *w)
{
        const char *path = json_str(w->request, "path");
        int r = fileops_remove(path);

        if (r < 0)
                fail_work(w, RPC_INTERNAL, "error removing file or directory: %s: %s", path, lower_error(-r));
        else
                buf_adds(&w->result, "{}");
}

static int by_name(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

static char **read_names(const char *path, size_t *ret_count)
{
        CLEANUP_CLOSEDIR DIR *dir = opendir(path);
        char **names = NULL;
        size_t count = 0;
        struct dirent *e;

        while (dir && (e = readdir(dir)) && count < ENTRIES_MAX) {
                if (streq(e->d_name, ".") || streq(e->d_name, ".."))
                        continue;
                if ((count & (count - 1)) == 0)
                        names = xreallocarray(names, count ? 2 * count : 1, sizeof(*names));
                names[count++] = xstrdup(e->d_name);
        }
        if (count)
                qsort(names, count, sizeof(*names), by_name);
        *ret_count = count;
        return names;
}

/* Pre-order, siblings in byte order; what vanishes meanwhile or cannot be read is skipped. */
static void list_directory(struct rpc_work *w, json_t *entries, const char *path, uint32_t depth)
{
        size_t count;
        char **names = read_names(path, &count);

        for (size_t i = 0; i < count; i++) {
                CLEANUP_FREE char *child = xasprintf("%s%s%s", path, str_ends(path, "/") ? "" : "/", names[i]);
                struct stat st;
                json_t *entry = json_array_size(entries) < ENTRIES_MAX ? entry_info(child, w->call->legacy) : NULL;

                if (entry) {
                        json_array_append_new(entries, entry);
                        if (depth > 1 && lstat(child, &st) == 0 && S_ISDIR(st.st_mode))
                                list_directory(w, entries, child, depth - 1);
                }
                free(names[i]);
        }
        free(names);
}

static void work_list(struct rpc_work *w)
{
        const char *path = json_str(w->request, "path");
        CLEANUP_JSON json_t *entries = NULL, *answer = NULL;
        CLEANUP_FREE char *text = NULL;
        uint32_t depth = 0;
        struct stat st;

        if (proto_uint32(w->request, "depth", &depth, &w->err) < 0) {
                w->code = RPC_INVALID_ARGUMENT;
                return;
        }
        if (stat(path, &st) < 0) {
                if (errno == ELOOP)
                        fail_work(w, RPC_FAILED_PRECONDITION, "cyclic symlink or chain >255 links at \"%s\"", path);
                else
                        fail_work(w, errno == ENOENT ? RPC_NOT_FOUND : RPC_INTERNAL, "path not found: %s: %s", path,
                                  lower_error(errno));
                return;
        }
        if (!S_ISDIR(st.st_mode)) {
                fail_work(w, RPC_INVALID_ARGUMENT, "path is not a directory: %s", path);
                return;
        }
        entries = json_array();
        list_directory(w, entries, path, depth ? depth : 1);
        answer = json_object();
        if (json_array_size(entries))
                json_object_set(answer, "entries", entries);
        text = json_text(answer);
        buf_adds(&w->result, text);
}

static const char *const one_path[] = { "path", NULL };
static const char *const two_paths[] = { "source", "destination", NULL };

static void handle_stat(struct rpc *c, json_t *request)
{
        resolve_and_run(c, request, one_path, work_stat);
}

static void handle_make_dir(struct rpc *c, json_t *request)
{
        resolve_and_run(c, request, one_path, work_make_dir);
}

static void handle_move(struct rpc *c, json_t *request)
{
        resolve_and_run(c, request, two_paths, work_move);
}

static void handle_list(struct rpc *c, json_t *request)
{
        resolve_and_run(c, request, one_path, work_list);
}

static void handle_remove(struct rpc *c, json_t *request)
{
        resolve_and_run(c, request, one_path, work_remove);
}

const struct rpc_method filesystem_methods[] = {
        { "/filesystem.Filesystem/Stat", RPC_UNARY, handle_stat },
        { "/filesystem.Filesystem/MakeDir", RPC_UNARY, handle_make_dir },
        { "/filesystem.Filesystem/Move", RPC_UNARY, handle_move },
        { "/filesystem.Filesystem/ListDir", RPC_UNARY, handle_list },
        { "/filesystem.Filesystem/Remove", RPC_UNARY, handle_remove },
        { "/filesystem.Filesystem/WatchDir", RPC_SERVER_STREAM, handle_watch_dir },
        { "/filesystem.Filesystem/CreateWatcher", RPC_UNARY, handle_create_watcher },
        { "/filesystem.Filesystem/GetWatcherEvents", RPC_UNARY, handle_get_watcher_events },
        { "/filesystem.Filesystem/RemoveWatcher", RPC_UNARY, handle_remove_watcher },
        {},
};
