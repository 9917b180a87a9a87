/* Boots, captures and forks a real guest; driven by test_vm.sh. usage: vm_lifecycle KIT_DIR WORK_DIR
 * WORK_DIR holds rootfs.img (busybox) and share/layer.tar (the same tree); left there: layer0.img, flat.img. Prints one line a check; exit status 0 when all held.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "vm/agent.h"
#include "vm/disk.h"
#include "vm/manifest.h"
#include "vm/vm.h"

#define MEMORY_MIB 256
#define FORKS 2

static int failures;
/* Ended when a check gives up. */
static struct vm *alive[FORKS + 1];
static size_t alive_count;

static void check(bool ok, const char *what)
{
        printf("%s %s\n", ok ? "ok  " : "FAIL", what);
        fflush(stdout);
        if (!ok)
                failures++;
}

static void must(int r, const char *what, const struct error *err)
{
        if (r >= 0)
                return;
        printf("FAIL %s: %s\n", what, err->message);
        for (size_t i = 0; i < alive_count; i++)
                vm_kill(alive[i], NULL);
        exit(1);
}

static char *make_dir(const char *work, const char *name)
{
        char *dir = path_join(work, name);

        if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
                perror(dir);
                exit(1);
        }
        return dir;
}

static void collect(int stream, const char *data, size_t len, void *to)
{
        if (stream == 1)
                buf_add(to, data, len);
}

/* What a shell command prints; the caller frees. */
static char *shell(struct vm *vm, const char *command, const char *token)
{
        const char *const argv[] = {"/bin/sh", "-c", command, NULL};
        struct buf out = {};
        struct agent_exit end;
        struct error err = {};
        struct agent_process p = {.argv = argv, .on_output = collect, .data = &out, .access_token = token};

        must(agent_run(vm, &p, &end, &err), command, &err);
        if (end.code != 0)
                printf("note %s: %s\n", command, end.status);
        return buf_steal(&out);
}

static void capture(const struct kit *kit, const char *work, const char *build)
{
        CLEANUP_FREE char *dir = make_dir(work, "finalize"), *disk = path_join(build, "rootfs.img"), *memory = path_join(build, "memory");
        const char *const disks[] = {disk, NULL};
        struct vm_config c = {.id = "finalize", .dir = dir, .kit = kit, .backend = "tcg", .vcpus = 1, .memory_mib = MEMORY_MIB,
                              .network = VM_NETWORK_NAT, .disks = disks, .memory_file = memory, .mode = "root", .init = "agent"};
        const char *const counter[] = {"/bin/sh", "-c", "n=0; while :; do n=$((n+1)); echo $n >/tmp/counter.new; mv /tmp/counter.new /tmp/counter; sleep 0.1; done", NULL};
        struct agent_process p = {.argv = counter};
        struct agent_stream *stream;
        struct vm_manifest m;
        struct agent_exit end;
        struct error err = {};
        struct agent *a;
        struct vm *vm;
        int64_t began = clock_monotonic_ns();

        must(vm_boot(&c, &vm, &err), "boot", &err);
        alive[alive_count++] = vm;
        must(agent_connect(vm, "init", 120, NULL, NULL, &a, &err), "agent", &err);
        printf("note cold boot to the agent: %.1f s\n", (double)(clock_monotonic_ns() - began) / 1e9);
        agent_close(a);
        CLEANUP_FREE char *hello = shell(vm, "echo hello; echo oops >&2", NULL);
        check(streq(hello, "hello\n"), "a process's standard output comes back");
        const char *const fails[] = {"/bin/sh", "-c", "exit 3", NULL};
        struct agent_process failing = {.argv = fails};
        must(agent_run(vm, &failing, &end, &err), "run exit 3", &err);
        check(end.code == 3 && streq(end.status, "exit status 3"), "an exit status comes back");
        failing.cwd = "/nowhere";
        check(agent_run(vm, &failing, &end, &err) < 0 && err.kind == ERROR_INVALID, "a missing working directory is an error");
        int fd;
        check(vm_connect(vm, 9, &fd, &err) == -ECONNREFUSED, "a closed port refuses");
        must(agent_spawn(vm, &p, &stream, &err), "start the counter", &err);
        agent_stream_close(stream);
        must(vm_capture(vm, build, &err), "capture", &err);
        alive_count--;
        vm_close(vm);
        vm_manifest_describe(&m, kit, "tcg", NULL, 1, MEMORY_MIB);
        must(vm_manifest_write(build, &m, &err), "manifest", &err);
        vm_manifest_free(&m);
}

/* A build VM: a layer over virtio-fs unpacked into an empty disk, one step, the disk frozen into a layer, another step. */
static void build_stage(const struct kit *kit, const char *work)
{
        CLEANUP_FREE char *dir = make_dir(work, "unpack"), *disk = path_join(work, "layer0.img"), *share = path_join(work, "share");
        CLEANUP_FREE char *next = path_join(work, "layer1.qcow2"), *flat = path_join(work, "flat.img");
        CLEANUP_JSON json_t *layers = json_pack("{s:[{s:s, s:s}]}", "layers", "file", "layer.tar", "name", "sha256:0"), *result = NULL;
        const char *const disks[] = {disk, NULL}, *const chain[] = {disk, next, NULL};
        struct vm_config c = {.id = "unpack", .dir = dir, .kit = kit, .backend = "tcg", .vcpus = 1, .memory_mib = MEMORY_MIB,
                              .network = VM_NETWORK_NAT, .disks = disks, .share_dir = share, .mode = "unpack"};
        struct error err = {};
        struct agent *a;
        struct vm *vm;
        uint64_t size;

        must(disk_create_ext4(disk, 1024, &err), "empty disk", &err);
        must(disk_size(disk, &size, &err), "disk size", &err);
        must(disk_overlay_create(next, size, &err), "overlay", &err);
        must(vm_boot(&c, &vm, &err), "boot for unpacking", &err);
        alive[alive_count++] = vm;
        must(agent_connect(vm, "initramfs", 120, NULL, NULL, &a, &err), "agent of the initramfs", &err);
        must(agent_request(a, "unpack", layers, 120, NULL, NULL, &result, &err), "unpack", &err);
        check(json_int(result, "entries", 0) > 10, "a layer is unpacked from the share");
        must(agent_request(a, "switch-root", NULL, 60, NULL, NULL, NULL, &err), "switch-root", &err);
        agent_close(a);
        must(agent_connect(vm, "init", 120, NULL, NULL, &a, &err), "agent after switch-root", &err);
        agent_close(a);
        free(shell(vm, "echo 1 >/step1", NULL));
        must(vm_disk_layer(vm, next, &err), "disk layer", &err);
        free(shell(vm, "echo 2 >/step2; sync", NULL));
        CLEANUP_FREE char *both = shell(vm, "cat /step1 /step2", NULL);
        check(streq(both, "1\n2\n"), "the guest goes on over the new layer");
        must(vm_kill(vm, &err), "kill", &err);
        alive_count--;
        vm_close(vm);
        must(disk_flatten(chain, flat, &err), "flatten", &err);
}

static struct vm *fork_one(const struct vm_template *t, const char *dir, const char *id, int64_t expires_at_ns)
{
        CLEANUP_JSON json_t *wake = json_pack("{s:s, s:s}", "sandbox_id", id, "access_token", "secret-of-this-clone");
        struct vm_fork f = {.id = id, .dir = dir, .template_ = t, .network = VM_NETWORK_NAT, .wake = wake, .expires_at_ns = expires_at_ns};
        struct error err = {};
        struct vm *vm;
        int64_t began = clock_monotonic_ns();

        must(vm_restore(&f, &vm, &err), "fork", &err);
        alive[alive_count++] = vm;
        printf("note fork: %.1f ms\n", (double)(clock_monotonic_ns() - began) / 1e6);
        return vm;
}

static bool ends_within(const struct vm *vm, int ms)
{
        struct pollfd p = {.fd = vm_exit_fd(vm), .events = POLLIN};

        return poll(&p, 1, ms) == 1;
}

static void check_forks(const struct vm_template *t, const char *work)
{
        struct vm *vm[FORKS], *again, *gone;
        char *uuid[FORKS], *dir[FORKS];
        struct error err = {};

        for (int i = 0; i < FORKS; i++) {
                CLEANUP_FREE char *id = xasprintf("fork-%d", i), *marker = xasprintf("echo %d >/marker; sync", i);

                dir[i] = make_dir(work, id);
                vm[i] = fork_one(t, dir[i], id, 0);
                uuid[i] = shell(vm[i], "cat /proc/sys/kernel/random/uuid", "secret-of-this-clone");
                CLEANUP_FREE char *uptime = shell(vm[i], "cut -d. -f1 /proc/uptime", "secret-of-this-clone");
                check(atoi(uptime) >= 2, "the uptime goes on");
                CLEANUP_FREE char *running = shell(vm[i], "a=$(cat /tmp/counter); sleep 1; b=$(cat /tmp/counter); [ $b -gt $a ] && echo yes",
                                                 "secret-of-this-clone");
                check(streq(running, "yes\n"), "the captured process runs on");
                free(shell(vm[i], marker, "secret-of-this-clone"));
        }
        check(!streq(uuid[0], uuid[1]), "two forks draw different random numbers");
        CLEANUP_FREE char *first = shell(vm[0], "cat /marker", "secret-of-this-clone");
        check(streq(first, "0\n"), "no fork sees another's file");
        must(vm_adopt(dir[0], &again, &err), "adopt", &err);
        check(vm_pid(again) == vm_pid(vm[0]), "a VM is found again by its directory");
        must(vm_kill(vm[0], &err), "kill", &err);
        alive[0] = vm[1];
        alive_count = 1;
        check(ends_within(again, 10000), "its end is seen through the other handle");
        check(kill(vm_pid(again), 0) < 0, "QEMU is gone");
        check(vm_adopt(dir[0], &gone, &err) < 0 && err.kind == ERROR_NOT_FOUND, "a killed VM is not found");
        vm_close(again);
        vm_close(vm[0]);
        alive_count = 0;
        must(vm_set_expiry(vm[1], clock_realtime_ns() + NSEC_PER_SEC / 2, &err), "set expiry", &err);
        check(ends_within(vm[1], 10000), "an expired VM ends by itself");
        CLEANUP_FREE char *exit_path = path_join(dir[1], "exit.json");
        CLEANUP_BUF struct buf text = {};
        must(file_read(exit_path, 65536, &text, &err), "exit.json", &err);
        check(strstr(buf_str(&text), "\"expired\"") != NULL, "exit.json names the reason");
        vm_close(vm[1]);
        for (int i = 0; i < FORKS; i++) {
                free(uuid[i]);
                free(dir[i]);
        }
}

int main(int argc, char **argv)
{
        struct vm_template *t;
        struct error err = {};
        struct kit *kit;

        if (argc != 3) {
                fprintf(stderr, "usage: vm_lifecycle KIT_DIR WORK_DIR\n");
                return 2;
        }
        CLEANUP_FREE char *build = make_dir(argv[2], "build"), *from = path_join(argv[2], "rootfs.img"), *to = path_join(build, "rootfs.img");
        must(rename(from, to) < 0 ? error_errno(&err, errno, "rename") : 0, "root disk", &err);
        must(kit_open(argv[1], NULL, NULL, &kit, &err), "kit", &err);
        build_stage(kit, argv[2]);
        capture(kit, argv[2], build);
        must(vm_template_open(build, argv[1], "tcg", &t, &err), "open the template", &err);
        check_forks(t, argv[2]);
        vm_template_close(t);
        kit_free(kit);
        return failures ? 1 : 0;
}
