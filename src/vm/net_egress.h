/* Starting vmon-egress, which lets a guest out by domain (egress/egress.h). */
#pragma once

#include <sys/types.h>

#include "base/error.h"

#define EGRESS_FD_CONTROL 3
#define EGRESS_FD_LISTENER 4

struct net_egress_start {
        int listener;               /* of net_take_listener(); stays the caller's */
        uid_t uid;                  /* what it runs as; not 0, and nobody else's */
        const char *const *domains; /* NULL-terminated */
        void (*in_child)(void *data); /* between fork and exec; or NULL */
        void *data;
};

/* Starts the program beside this one, as a child. *ret_control: closing it (or its end: the program's) ends the accepting; the program itself ends with
 * its last connection, or with this process. One thread only. ERROR_UNAVAILABLE when it cannot be started. */
int net_egress_spawn(const struct net_egress_start *s, pid_t *ret_pid, int *ret_control, struct error *err);
