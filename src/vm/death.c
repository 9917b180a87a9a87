/* Why a VM ended: the shim writes exit.json before it goes. */
#include <signal.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "vm/vm_internal.h"

#define EXIT_MAX 65536

int vm_death(const struct vm *vm, struct error *err)
{
        CLEANUP_FREE char *path = path_join(vm->dir, "exit.json");
        CLEANUP_BUF struct buf b = {};
        CLEANUP_JSON json_t *j = NULL;
        const char *reason, *errors;
        json_int_t sig;

        if (file_read(path, EXIT_MAX, &b, NULL) < 0 || json_parse(buf_str(&b), b.len, &j, NULL) < 0)
                return error_set(err, ERROR_UNAVAILABLE, "VM %s has ended and its supervisor with it", vm->id);
        reason = json_str(j, "reason");
        errors = json_str(j, "qemu_errors");
        sig = json_int(j, "signal", 0);
        if (sig == SIGKILL && streq(reason, "crash"))
                return error_set(err, ERROR_UNAVAILABLE,
                                 "VM %s was killed from outside, most likely for exceeding its memory limit (the host's "
                                 "kernel log tells); give it more memory", vm->id);
        if (sig && streq(reason, "crash"))
                return error_set(err, ERROR_UNAVAILABLE, "VM %s crashed: QEMU got signal %d: %.1000s", vm->id, (int)sig,
                                 errors ? errors : "");
        return error_set(err, ERROR_UNAVAILABLE, "VM %s has ended (%s)%s%.1000s", vm->id, reason ? reason : "unknown reason",
                         errors && *errors ? ": " : "", errors ? errors : "");
}
