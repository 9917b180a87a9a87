/* Theory of operation: see layer.h for the hard part. Everything that is written after the layers goes through
 * the same confined tree, because an image may hold symlinks anywhere (/etc/resolv.conf is one in many).
 */
#include "unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "guest.h"
#include "layer.h"
#include "serial.h"
#include "tree.h"

#define LAYERS_MAX 1024

static const char hosts[] =
        "127.0.0.1\tlocalhost\n"
        "127.0.1.1\t" GUEST_HOSTNAME "\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "ff02::1\tip6-allnodes\n"
        "ff02::2\tip6-allrouters\n";

struct reporter {
        json_t *id;
        size_t layer;
};

static void report(const struct layer_stats *stats, void *data)
{
        struct reporter *r = data;

        serial_event(r->id, json_pack("{s:I,s:I,s:I}", "layer", (json_int_t)r->layer, "entries",
                                      (json_int_t)stats->entries, "bytes", (json_int_t)stats->bytes));
}

/* Creates the file anew: what is there, a link most of all, is replaced. */
static int create_file(struct tree *t, const char *path, mode_t mode, int *ret, struct error *err)
{
        const char *name;
        int parent, fd, r = tree_parent(t, path, true, &parent, &name, err);

        if (r < 0)
                return r;
        r = tree_remove_at(parent, name);
        if (r < 0)
                return error_errno(err, r, "replace /%s", path);
        fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                return error_errno(err, errno, "create /%s", path);
        if (fchmod(fd, mode) < 0) {
                r = error_errno(err, errno, "set the mode of /%s", path);
                close(fd);
                return r;
        }
        *ret = fd;
        return 0;
}

static int write_text(struct tree *t, const char *path, const char *text, struct error *err)
{
        CLEANUP_CLOSE int fd = -1;
        int r = create_file(t, path, 0644, &fd, err);

        if (r < 0)
                return r;
        r = fd_write_all(fd, text, strlen(text));
        return r < 0 ? error_errno(err, r, "write /%s", path) : 0;
}

static int install_binary(struct tree *t, struct error *err)
{
        CLEANUP_CLOSE int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = -1;
        int r = create_file(t, &AGENT_BINARY[1], 0777, &to, err);
        ssize_t n;

        if (r < 0)
                return r;
        if (from < 0)
                return error_errno(err, errno, "open the running agent");
        while ((n = sendfile(to, from, NULL, 16 << 20)) > 0)
                ;
        return n < 0 ? error_errno(err, errno, "install %s", AGENT_BINARY) : 0;
}

int unpack_install(const char *root, struct error *err)
{
        struct tree t;
        int r = tree_open(&t, root, TREE_FOLLOW_IN_ROOT, err);

        if (r < 0)
                return r;
        r = install_binary(&t, err);
        if (r >= 0)
                r = write_text(&t, "etc/hostname", GUEST_HOSTNAME "\n", err);
        if (r >= 0)
                r = write_text(&t, "etc/hosts", hosts, err);
        if (r >= 0)
                r = write_text(&t, "etc/resolv.conf", "nameserver " GUEST_GATEWAY "\n", err);
        tree_close(&t);
        return r;
}

static int by_name(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in the root, sorted, without lost+found. */
static json_t *list_root(const char *root)
{
        CLEANUP_CLOSEDIR DIR *dir = opendir(root);
        json_t *list = json_array();
        char **names = NULL;
        size_t count = 0;
        struct dirent *e;

        while (dir && (e = readdir(dir))) {
                if (streq(e->d_name, ".") || streq(e->d_name, "..") || streq(e->d_name, "lost+found"))
                        continue;
                names = xreallocarray(names, count + 1, sizeof(*names));
                names[count++] = utf8_scrub(e->d_name, strlen(e->d_name));
        }
        if (count)
                qsort(names, count, sizeof(*names), by_name);
        for (size_t i = 0; i < count; i++) {
                json_array_append_new(list, json_string(names[i]));
                free(names[i]);
        }
        free(names);
        return list;
}

static int apply_one(const json_t *layer, size_t index, struct reporter *reporter, struct layer_stats *stats,
                     struct error *err)
{
        const char *file = json_str(layer, "file"), *name = json_str(layer, "name");
        CLEANUP_FREE char *path = NULL;
        int r;

        if (!file || strstr(file, ".."))
                return error_set(err, ERROR_INVALID, "layer %zu: no file below the share", index);
        path = xasprintf("%s/%s", agent_options.share, file);
        reporter->layer = index;
        r = layer_apply(path, NEW_ROOT, index == 0, stats, report, reporter, err);
        return r < 0 ? error_wrap(err, r, "layer %s", name ? name : file) : 0;
}

int unpack_layers(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        const json_t *layers = json_object_get(request, "layers"), *layer;
        struct reporter reporter = { .id = id };
        struct layer_stats stats = {};
        size_t i;
        int r;

        if (!json_is_array(layers) || json_array_size(layers) > LAYERS_MAX)
                return error_set(err, ERROR_INVALID, "unpack needs layers: an array of at most %d", LAYERS_MAX);
        r = guest_mount_root(err);
        if (r >= 0)
                r = guest_mount_share(agent_options.share, err);
        /* An image without an entry for its root gets the usual one (known-failures D5 68). */
        if (r >= 0 && (chown(NEW_ROOT, 0, 0) < 0 || chmod(NEW_ROOT, 0755) < 0))
                r = error_errno(err, errno, "prepare the root directory");
        json_array_foreach(layers, i, layer) {
                if (r >= 0)
                        r = apply_one(layer, i, &reporter, &stats, err);
                if (r >= 0)
                        report(&stats, &reporter);
        }
        if (r >= 0)
                r = unpack_install(NEW_ROOT, err);
        if (r < 0)
                return r;
        sync();
        *ret = json_pack("{s:I,s:I,s:o}", "entries", (json_int_t)stats.entries, "bytes", (json_int_t)stats.bytes, "root",
                         list_root(NEW_ROOT));
        return 0;
}
