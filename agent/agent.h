/* What the parts of the agent share: its role, the loop, and the state that `init` and `wake` set.
 *
 * Threads. The main thread runs the libuv loop: HTTP, processes, watches, forwarding. One thread reads the
 * serial channel, a second one does its requests in turn (serial.h). `agent_state` is guarded by its own lock
 * because both sides read and write it; everything else that is loop-owned says so in its header.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"

#define ENVD_VERSION "0.6.13"
#define ENVD_PORT 49983
#define AGENT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define AGENT_BINARY "/usr/bin/envd"
#define GUEST_ADDRESS "169.254.0.21"
#define GUEST_NETMASK "255.255.255.252"
#define GUEST_GATEWAY "169.254.0.22"
#define GUEST_MTU 1400
#define GUEST_HOSTNAME "vibemon"

enum agent_mode {
        MODE_INITRAMFS,
        MODE_INIT,
        MODE_SERVICE,
};

struct agent_options {
        enum agent_mode mode;
        int port;
        const char *listen;  /* numeric address */
        const char *serial;  /* path of the serial channel, or NULL to look for the virtio port */
        const char *share;   /* where the host's share is or will be mounted */
        bool confined;       /* -root-safe: touch neither cgroups, clock, hostname nor kernel state */
};

extern struct agent_options agent_options;

/* "initramfs", "init" or "service". */
const char *agent_mode_name(enum agent_mode mode);

/* Runs the envd service and the serial channel until the process is told to end. Returns an exit status. */
int agent_serve(void);
