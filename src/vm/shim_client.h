/* The driver's end of the shim protocol (shim/shim.h): spawn one, ask it things.
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "base/error.h"

/* A descriptor handed to the shim under `number`. */
struct shim_fd {
        int fd, number;
};

/* Starts vmon-shim (found beside this program, or $VMON_SHIM) in its own session with `config` sent over a socket and `fds`
 * inherited. Waits until QEMU's monitor has answered. *ret_control: a connection that ends with the shim;
 * *ret_status: its first answer (caller decrefs). */
int shim_spawn(const json_t *config, const struct shim_fd *fds, size_t count, int *ret_control, json_t **ret_status,
               struct error *err);

/* One request on a fresh connection to <dirfd>/shim.sock. `fd` (or -1) goes with it; *ret_fd (may be NULL) is what came
 * back, or -1. A refused operation becomes `err` with its kind and errno. `ret` may be NULL. */
int shim_request(int dirfd, const json_t *request, int fd, int timeout_ms, json_t **ret, int *ret_fd, struct error *err);
