/* Why a machine has ended: what its shim left in exit.json before it went, in words.
 *
 * A full host disk shows in two ways: QEMU's block layer reports it, upon which the shim ends a build VM ("disk-full"); a
 * write to a page of a memory file that cannot be allocated is SIGBUS in QEMU.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/vm_internal.h"

#define EXIT_MAX 65536
#define NO_ROOM_BYTES (1ULL << 20)

static json_t *read_exit(const struct vm *vm)
{
        CLEANUP_FREE char *path = path_join(vm->dir, "exit.json");
        CLEANUP_BUF struct buf text = {};
        json_t *j = NULL;

        if (file_read(path, EXIT_MAX, &text, NULL) < 0 || json_parse(buf_str(&text), text.len, &j, NULL) < 0)
                return json_object();
        return j;
}

static char *describe(const json_t *j, bool *ret_full)
{
        const char *reason = json_str(j, "reason") ?: "";
        CLEANUP_FREE char *errors = str_one_line(json_str(j, "qemu_errors") ?: "");
        int number = (int)json_int(j, "signal", 0);

        *ret_full = streq(reason, "disk-full") || number == SIGBUS;
        if (streq(reason, "disk-full"))
                return xstrdup("there was no room for what it wrote to its disk");
        if (number == SIGBUS)
                return xstrdup("there was no room for its memory file");
        if (streq(reason, "guest-exit"))
                return xstrdup("its kernel panicked, or the guest powered off");
        if (!streq(reason, "crash") && *reason)
                return xasprintf("it was ended (%s)", reason);
        if (number == SIGKILL)
                return xstrdup("it was killed from outside, most likely for exceeding its memory limit (the host's kernel log tells); give "
                               "it more memory");
        if (number > 0)
                return xasprintf("QEMU crashed with signal %d%s%s", number, *errors ? ": " : "", errors);
        return xasprintf("QEMU ended with status %lld%s%s", (long long)json_int(j, "status", -1), *errors ? ": " : "", errors);
}

/* The shim could not leave its record: it needs a block, QEMU's user none of those that are kept for root. */
static bool no_room(const struct vm *vm)
{
        struct statvfs s;

        return fstatvfs(vm->dirfd, &s) == 0 && (uint64_t)s.f_bavail * s.f_frsize < NO_ROOM_BYTES;
}

static char *reason_of(const struct vm *vm, bool *ret_full)
{
        CLEANUP_JSON json_t *j = read_exit(vm);

        if (json_object_size(j))
                return describe(j, ret_full);
        *ret_full = no_room(vm);
        return xstrdup(*ret_full ? "there was no room for what it wrote to its disk" : "its supervisor was killed");
}

int vm_end_reason(struct vm *vm, int timeout_ms, char **ret, bool *ret_full)
{
        if (!vm_wait_end(vm, timeout_ms))
                return 0;
        *ret = reason_of(vm, ret_full);
        return 1;
}

int vm_death(const struct vm *vm, struct error *err)
{
        bool full = false;
        CLEANUP_FREE char *why = reason_of(vm, &full);
        int r = error_set(err, ERROR_UNAVAILABLE, "VM %s has ended: %s", vm->id, why);

        if (full && err)
                err->number = ENOSPC;
        return r;
}
