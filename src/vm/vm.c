/* Handles on virtual machines: boot, adopt, ask, kill. The shim (shim/shim.h) does the work; every request is a fresh
 * connection to its socket, which makes them independent of each other and of this process's life.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/fdpass.h"
#include "vm/tsc.h"
#include "vm/vm_internal.h"

#define REQUEST_TIMEOUT_MS 30000
/* SIGKILL, teardown of the namespace and two fsyncs: seconds only on a host in trouble. */
#define KILL_TIMEOUT_MS 30000
#define CONSOLE_MAX (64u << 10)

void launch_free(struct launch *l)
{
        for (size_t i = 0; i < l->count; i++)
                close(l->fds[i].fd);
        l->count = 0;
}

void launch_add(struct launch *l, int fd, int number)
{
        l->fds[l->count++] = (struct shim_fd){fd, number};
}

static int open_disk(const char *path, int flags, struct error *err)
{
        int fd = open(path, flags | O_CLOEXEC);

        return fd < 0 ? error_errno(err, errno, "open disk %s", path) : fd;
}

int launch_add_disk(struct launch *l, const char *path, bool writable, struct error *err)
{
        int fd;

        if (l->disks == QEMU_DISKS_MAX)
                return error_set(err, ERROR_LIMIT, "the chain has more than %d disks", QEMU_DISKS_MAX);
        fd = open_disk(path, writable ? O_RDWR : O_RDONLY, err);
        if (fd < 0)
                return fd;
        launch_add(l, fd, qemu_disk_fd(l->disks, false));
        if (writable) {
                /* QEMU reopens the layer read-only when another one is put on top. */
                fd = open_disk(path, O_RDONLY, err);
                if (fd < 0)
                        return fd;
                launch_add(l, fd, qemu_disk_fd(l->disks, true));
        }
        l->qcow2[l->disks++] = str_ends(path, ".qcow2");
        return 0;
}

int launch_add_modules(struct launch *l, const struct kit *kit, struct error *err)
{
        int fd = open(kit->modules, O_RDONLY | O_CLOEXEC);

        if (fd < 0)
                return error_set(err, ERROR_UNAVAILABLE, "open %s: %s (prepare the kit again: vmon kit)", kit->modules,
                                 strerror(errno));
        launch_add(l, fd, QEMU_FD_MODULES);
        return 0;
}

static json_t *strings(char *const *v)
{
        json_t *a = json_array();

        for (; v && *v; v++)
                json_array_append_new(a, json_string(*v));
        return a;
}

static json_t *make_config(const char *id, const char *dir, const struct kit *kit, const struct qemu_options *o,
                           const struct launch *l, int64_t expires_at_ns, char *const *argv)
{
        static const char *const networks[] = {"nat", "user", "none"};
        CLEANUP_FREE char *lib = kit->qemu_lib ? xasprintf("LD_LIBRARY_PATH=%s", kit->qemu_lib) : NULL;
        char *const env[] = {"PATH=/usr/bin:/bin", lib, NULL};
        json_t *fds = json_array();

        for (size_t i = 0; i < l->count; i++)
                json_array_append_new(fds, json_integer(l->fds[i].number));
        return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:i, s:i, s:I}", "id", id, "dir", dir, "network", networks[o->network],
                         "argv", strings(argv), "env", strings(env), "fds", fds, "memory_mib", (int)o->memory_mib, "vcpus",
                         (int)o->vcpus, "expires_at_ns", (json_int_t)expires_at_ns);
}

static int handle_new(const char *dir, int exit_fd, const json_t *status, struct vm **ret, struct error *err)
{
        CLEANUP_CLOSE int dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct vm *vm;

        if (dirfd < 0)
                return error_errno(err, errno, "open %s", dir);
        vm = xcalloc(1, sizeof *vm);
        *vm = (struct vm){.id = xstrdup(json_str(status, "id") ?: ""), .dir = xstrdup(dir), .dirfd = STEAL_FD(dirfd),
                          .exit_fd = exit_fd, .qemu_pid = (pid_t)json_int(status, "qemu_pid", 0),
                          .shim_pid = (pid_t)json_int(status, "shim_pid", 0)};
        *ret = vm;
        return 0;
}

int vm_launch(const char *id, const char *dir, const struct kit *kit, const struct qemu_options *o, const struct launch *l,
              int64_t expires_at_ns, json_t *extra, struct vm **ret, struct error *err)
{
        CLEANUP_FREE char *absolute = realpath(dir, NULL);
        CLEANUP_JSON json_t *config = NULL, *status = NULL;
        CLEANUP_CLOSE int control = -1;
        char **argv;
        int r;

        if (!absolute)
                return error_errno(err, errno, "VM directory %s", dir);
        r = qemu_argv(o, &argv, err);
        if (r < 0)
                return r;
        config = make_config(id, absolute, kit, o, l, expires_at_ns, argv);
        qemu_argv_free(argv);
        if (!config)
                return error_set(err, ERROR_INTERNAL, "VM %s: its configuration is not valid UTF-8", id);
        if (extra)
                json_object_update(config, extra);
        r = shim_spawn(config, l->fds, l->count, &control, &status, err);
        if (r < 0)
                return r;
        r = handle_new(absolute, control, status, ret, err);
        if (r == 0)
                control = -1;
        return r;
}

static int add_memory_file(struct launch *l, const char *path, unsigned memory_mib, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

        if (fd < 0)
                return error_errno(err, errno, "create memory file %s", path);
        if (ftruncate(fd, (off_t)memory_mib << 20) < 0)
                return error_errno(err, errno, "size memory file %s", path);
        launch_add(l, STEAL_FD(fd), QEMU_FD_MEMORY);
        return 0;
}

static int collect(const struct vm_config *c, struct launch *l, struct qemu_options *o, struct error *err)
{
        size_t n = 0;
        int r;

        while (c->disks && c->disks[n])
                n++;
        if (!n)
                return error_set(err, ERROR_INVALID, "a virtual machine needs a disk");
        o->top_writable = n == 1 || str_ends(c->disks[n - 1], ".qcow2");
        for (size_t i = 0; i < n; i++) {
                r = launch_add_disk(l, c->disks[i], o->top_writable && i + 1 == n, err);
                if (r < 0)
                        return r;
        }
        o->disk_qcow2 = l->qcow2;
        o->disks = l->disks;
        r = launch_add_modules(l, c->kit, err);
        if (r < 0)
                return r;
        if (!c->memory_file) {
                o->memory = c->share_dir ? QEMU_MEMORY_MEMFD : QEMU_MEMORY_ANONYMOUS;
                return 0;
        }
        o->memory = QEMU_MEMORY_SHARED;
        return add_memory_file(l, c->memory_file, c->memory_mib, err);
}

static json_t *boot_extra(const struct vm_config *c)
{
        CLEANUP_FREE char *share = c->share_dir ? realpath(c->share_dir, NULL) : NULL;
        json_t *extra = json_object();

        json_object_set_new(extra, "own_memory", json_boolean(c->memory_file != NULL));
        /* A build that waits for somebody to free space would only run into its time limit. */
        json_object_set_new(extra, "end_on_full", json_true());
        if (share) {
                json_t *j = json_pack("{s:s, s:s}", "path", c->kit->virtiofsd, "dir", share);

                if (c->kit->qemu_lib)
                        json_object_set_new(j, "lib", json_string(c->kit->qemu_lib));
                json_object_set_new(extra, "share", j);
        }
        return extra;
}

int vm_boot(const struct vm_config *c, struct vm **ret, struct error *err)
{
        CLEANUP_LAUNCH struct launch l = {};
        CLEANUP_JSON json_t *extra = boot_extra(c);
        struct qemu_options o = {
                .id = c->id, .qemu = c->kit->qemu, .qemu_data = c->kit->qemu_data, .arch = c->kit->arch, .backend = c->backend,
                .cpu_model = c->cpu_model ?: qemu_default_cpu(c->kit->arch, c->backend), .vcpus = c->vcpus,
                .memory_mib = c->memory_mib, .network = c->network, .share = c->share_dir != NULL,
                .kernel = c->kit->vmlinuz, .initrd = c->kit->initramfs, .mode = c->mode, .init = c->init,
                .tsc_khz = tsc_khz()};
        int r = collect(c, &l, &o, err);

        if (r == 0)
                r = vm_launch(c->id, c->dir, c->kit, &o, &l, c->expires_at_ns, extra, ret, err);
        return r < 0 ? error_wrap(err, r, "boot VM %s", c->id) : 0;
}

int vm_adopt(const char *dir, struct vm **ret, struct error *err)
{
        CLEANUP_CLOSE int dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC), exit_fd = -1;
        CLEANUP_JSON json_t *request = json_pack("{s:s}", "op", "status"), *status = NULL;
        int r;

        if (dirfd < 0)
                return error_errno(err, errno, "open %s", dir);
        r = shim_request(dirfd, request, -1, REQUEST_TIMEOUT_MS, &status, NULL, err);
        if (r < 0)
                return r;
        exit_fd = unix_connect_at(dirfd, "shim.sock");
        if (exit_fd < 0)
                return error_set(err, ERROR_NOT_FOUND, "the virtual machine has ended");
        r = handle_new(dir, exit_fd, status, ret, err);
        if (r == 0)
                exit_fd = -1;
        return r;
}

int vm_connect(struct vm *vm, int port, int *ret_fd, struct error *err)
{
        CLEANUP_JSON json_t *request = json_pack("{s:s, s:i}", "op", "connect", "port", port);
        int fd = -1, r;

        r = shim_request(vm->dirfd, request, -1, REQUEST_TIMEOUT_MS, NULL, &fd, err);
        if (r < 0)
                return error_wrap(err, r, "connect to port %d of VM %s", port, vm->id);
        if (fd < 0)
                return error_set(err, ERROR_INTERNAL, "connect to port %d of VM %s: no descriptor came", port, vm->id);
        *ret_fd = fd;
        return 0;
}

int vm_agent_channel(struct vm *vm, int *ret_fd, struct error *err)
{
        int fd = unix_connect_at(vm->dirfd, "agent.sock");

        if (fd == -ENOENT || fd == -ECONNREFUSED)
                return error_set(err, ERROR_NOT_FOUND, "the virtual machine has ended");
        if (fd < 0)
                return error_errno(err, fd, "connect to the agent channel of VM %s", vm->id);
        *ret_fd = fd;
        return 0;
}

static json_t *qmp_request(const char *command, const json_t *arguments)
{
        json_t *request = json_pack("{s:s, s:s}", "op", "qmp", "execute", command);

        if (arguments)
                json_object_set(request, "arguments", (json_t *)arguments);
        return request;
}

int vm_qmp(struct vm *vm, const char *command, const json_t *arguments, int fd, json_t **ret, struct error *err)
{
        CLEANUP_JSON json_t *request = qmp_request(command, arguments), *answer = NULL;
        int r = shim_request(vm->dirfd, request, fd, REQUEST_TIMEOUT_MS, &answer, NULL, err);

        if (r < 0)
                return error_wrap(err, r, "QEMU command %s", command);
        if (ret)
                *ret = json_incref(json_object_get(answer, "return"));
        return 0;
}

int vm_qmp_await(struct vm *vm, const char *command, const json_t *arguments, int fd, const char *event,
                 const char *const *status, unsigned timeout_s, json_t **ret_event, struct error *err)
{
        CLEANUP_JSON json_t *request = qmp_request(command, arguments), *answer = NULL;
        json_t *await = json_pack("{s:s}", "event", event), *list = status ? json_array() : NULL;
        int r;

        for (; status && *status; status++)
                json_array_append_new(list, json_string(*status));
        if (list)
                json_object_set_new(await, "status", list);
        json_object_set_new(request, "await", await);
        r = shim_request(vm->dirfd, request, fd, (int)timeout_s * 1000, &answer, NULL, err);
        if (r < 0)
                return error_wrap(err, r, "QEMU command %s", command);
        if (ret_event)
                *ret_event = json_incref(json_object_get(answer, "event"));
        return 0;
}

int vm_set_expiry(struct vm *vm, int64_t expires_at_ns, struct error *err)
{
        CLEANUP_JSON json_t *request = json_pack("{s:s, s:I}", "op", "set-expiry", "expires_at_ns", (json_int_t)expires_at_ns);
        int r = shim_request(vm->dirfd, request, -1, REQUEST_TIMEOUT_MS, NULL, NULL, err);

        return r < 0 ? error_wrap(err, r, "set the expiry of VM %s", vm->id) : 0;
}

int vm_set_egress(struct vm *vm, const json_t *egress, struct error *err)
{
        CLEANUP_JSON json_t *request = json_pack("{s:s, s:O?}", "op", "set-egress", "egress", egress);
        int r = shim_request(vm->dirfd, request, -1, REQUEST_TIMEOUT_MS, NULL, NULL, err);

        return r < 0 ? error_wrap(err, r, "set the network rules of VM %s", vm->id) : 0;
}

static char *read_console(int fd)
{
        char *text = xmalloc(CONSOLE_MAX + 1), *clean;
        ssize_t n = pread(fd, text, CONSOLE_MAX, 0);

        clean = utf8_scrub(text, n > 0 ? (size_t)n : 0);
        free(text);
        return clean;
}

char *vm_console(struct vm *vm)
{
        CLEANUP_JSON json_t *request = json_pack("{s:s}", "op", "console");
        CLEANUP_CLOSE int fd = -1;

        /* The shim of an ended VM has left its ring in a file. */
        if (shim_request(vm->dirfd, request, -1, REQUEST_TIMEOUT_MS, NULL, &fd, NULL) < 0 || fd < 0)
                fd = openat(vm->dirfd, "console.log", O_RDONLY | O_CLOEXEC);
        return fd < 0 ? xstrdup("") : read_console(fd);
}

int vm_exit_fd(const struct vm *vm)
{
        return vm->exit_fd;
}

pid_t vm_pid(const struct vm *vm)
{
        return vm->qemu_pid;
}

const char *vm_dir(const struct vm *vm)
{
        return vm->dir;
}

/* End of stream on the shim's connection: it and all that it owned is gone. */
bool vm_wait_end(const struct vm *vm, int timeout_ms)
{
        struct pollfd p = {.fd = vm->exit_fd, .events = POLLIN};
        char byte;
        int r;

        for (;;) {
                r = poll(&p, 1, timeout_ms);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r <= 0)
                        return false;
                if (recv(vm->exit_fd, &byte, 1, MSG_DONTWAIT) <= 0)
                        return true;
        }
}

int vm_kill(struct vm *vm, struct error *err)
{
        CLEANUP_JSON json_t *request = json_pack("{s:s}", "op", "kill");
        struct error ignored;

        shim_request(vm->dirfd, request, -1, REQUEST_TIMEOUT_MS, NULL, NULL, &ignored);
        if (vm_wait_end(vm, KILL_TIMEOUT_MS))
                return 0;
        /* A shim that does not react: without it the kernel ends QEMU and the namespace. */
        kill(vm->shim_pid, SIGKILL);
        if (vm_wait_end(vm, KILL_TIMEOUT_MS))
                return 0;
        return error_set(err, ERROR_INTERNAL, "VM %s (QEMU pid %d) does not end", vm->id, (int)vm->qemu_pid);
}

void vm_close(struct vm *vm)
{
        if (!vm)
                return;
        close(vm->dirfd);
        close(vm->exit_fd);
        free(vm->id);
        free(vm->dir);
        free(vm);
}
