/* The two ways a build VM's state becomes an artifact: the whole machine (vm_capture) and its disk (vm_disk_layer).
 * Both speak to the agent over its channel: the caller has closed its own agent handle.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "vm/agent_internal.h"
#include "vm/vm_internal.h"

#define AGENT_TIMEOUT_S 30
/* Freezing and writing back a guest's page cache, under software emulation. */
#define PREPARE_TIMEOUT_S 300
#define MIGRATE_TIMEOUT_S 120
/* First fdset number for disks added to a running QEMU, past those of the command line. */
#define LAYER_SET_BASE 1000

int vm_migration_setup(struct vm *vm, struct error *err)
{
        CLEANUP_JSON json_t *a = json_pack("{s:[{s:s, s:b}, {s:s, s:b}]}", "capabilities", "capability", "x-ignore-shared", "state",
                                           1, "capability", "events", "state", 1);

        return vm_qmp(vm, "migrate-set-capabilities", a, -1, NULL, err);
}

static int migrate_to(struct vm *vm, int fd, struct error *err)
{
        static const char *const ends[] = {"completed", "failed", NULL};
        CLEANUP_JSON json_t *name = json_pack("{s:s}", "fdname", "state"), *uri = json_pack("{s:s}", "uri", "fd:state");
        CLEANUP_JSON json_t *event = NULL, *info = NULL;
        int r = vm_migration_setup(vm, err);

        if (r == 0)
                r = vm_qmp(vm, "getfd", name, fd, NULL, err);
        if (r == 0)
                r = vm_qmp_await(vm, "migrate", uri, -1, "MIGRATION", ends, MIGRATE_TIMEOUT_S, &event, err);
        if (r < 0 || streq(json_str(event, "status"), "completed"))
                return r;
        if (vm_qmp(vm, "query-migrate", NULL, -1, &info, NULL) < 0)
                info = NULL;
        return error_set(err, ERROR_INTERNAL, "QEMU could not save the device state: %s", json_str(info, "error-desc") ?: "no reason given");
}

static int save_state(struct vm *vm, const char *build_dir, struct error *err)
{
        CLEANUP_FREE char *path = path_join(build_dir, "device-state"), *part = xasprintf("%s/device-state.tmp", build_dir);
        CLEANUP_CLOSE int fd = open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        int r;

        if (fd < 0)
                return error_errno(err, errno, "create %s", part);
        r = vm_qmp(vm, "stop", NULL, -1, NULL, err);
        if (r == 0)
                r = migrate_to(vm, fd, err);
        if (r == 0)
                r = file_publish(part, path, err);
        if (r < 0)
                unlink(part);
        return r;
}

int vm_capture(struct vm *vm, const char *build_dir, struct error *err)
{
        struct agent *a;
        int r = agent_connect(vm, NULL, AGENT_TIMEOUT_S, NULL, NULL, &a, err);

        if (r == 0) {
                r = agent_request(a, "prepare-snapshot", NULL, PREPARE_TIMEOUT_S, NULL, NULL, NULL, err);
                /* The channel stays open over the capture: a fork then finds its host side open as well, and the guest sees
                 * no disconnect in its first moment. */
                if (r == 0)
                        r = save_state(vm, build_dir, err);
                agent_close(a);
        }
        if (r == 0)
                r = vm_kill(vm, err);
        return r < 0 ? error_wrap(err, r, "capture VM %s", vm->id) : 0;
}

static int add_fd(struct vm *vm, const char *path, int flags, int set, struct error *err)
{
        CLEANUP_JSON json_t *a = json_pack("{s:i}", "fdset-id", set);
        CLEANUP_CLOSE int fd = open(path, flags | O_CLOEXEC);

        if (fd < 0)
                return error_errno(err, errno, "open %s", path);
        return vm_qmp(vm, "add-fd", a, fd, NULL, err);
}

/* The node now under /dev/vda. */
static int top_node(struct vm *vm, char **ret, struct error *err)
{
        CLEANUP_JSON json_t *list = NULL;
        const json_t *one;
        size_t i;
        int r = vm_qmp(vm, "query-block", NULL, -1, &list, err);

        if (r < 0)
                return r;
        json_array_foreach(list, i, one) {
                const char *node = json_str(json_object_get(one, "inserted"), "node-name");

                if (node && !streq(node, "modules")) {
                        *ret = xstrdup(node);
                        return 0;
                }
        }
        return error_set(err, ERROR_INTERNAL, "QEMU shows no root disk");
}

static int add_overlay(struct vm *vm, const char *next, const char *node, struct error *err)
{
        CLEANUP_JSON json_t *a = NULL;
        CLEANUP_FREE char *file = NULL;
        unsigned random;
        int set, r;

        random_bytes(&random, sizeof random);
        set = LAYER_SET_BASE + (int)(random % 1000000000);
        r = add_fd(vm, next, O_RDWR, set, err);
        if (r == 0)
                r = add_fd(vm, next, O_RDONLY, set, err);
        if (r < 0)
                return r;
        file = xasprintf("/dev/fdset/%d", set);
        a = json_pack("{s:s, s:s, s:b, s:s, s:s, s:n, s:{s:b}, s:{s:s, s:s, s:s, s:s, s:{s:b}}}", "driver", "qcow2", "node-name", node,
                      "read-only", 0, "discard", "unmap", "detect-zeroes", "unmap", "backing", "cache", "no-flush", 1, "file",
                      "driver", "file", "filename", file, "locking", "off", "discard", "unmap", "cache", "no-flush", 1);
        return vm_qmp(vm, "blockdev-add", a, -1, NULL, err);
}

static int put_on_top(struct vm *vm, const char *next, struct error *err)
{
        CLEANUP_FREE char *top = NULL, *node = NULL;
        CLEANUP_JSON json_t *a = NULL;
        char id[9];
        int r = top_node(vm, &top, err);

        if (r < 0)
                return r;
        random_id(id, 8);
        node = xasprintf("layer-%s", id);
        r = add_overlay(vm, next, node, err);
        if (r < 0)
                return r;
        a = json_pack("{s:s, s:s}", "node", top, "overlay", node);
        return vm_qmp(vm, "blockdev-snapshot", a, -1, NULL, err);
}

int vm_disk_layer(struct vm *vm, const char *next, struct error *err)
{
        struct agent *a;
        int r = agent_connect(vm, NULL, AGENT_TIMEOUT_S, NULL, NULL, &a, err), thawed;

        if (r < 0)
                return error_wrap(err, r, "freeze the disk of VM %s", vm->id);
        r = agent_request(a, "fs-freeze", NULL, PREPARE_TIMEOUT_S, NULL, NULL, NULL, err);
        if (r == 0)
                r = put_on_top(vm, next, err);
        /* Thawed in any case: a frozen guest could not even be shut down. */
        thawed = agent_request(a, "fs-thaw", NULL, AGENT_TIMEOUT_S, NULL, NULL, NULL, r == 0 ? err : NULL);
        agent_close(a);
        r = r < 0 ? r : thawed;
        return r < 0 ? error_wrap(err, r, "freeze the disk of VM %s", vm->id) : 0;
}
