/* Starting one child by the recipe of envd.md 5.1, with every preparation done before the fork. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"
#include "cgroup.h"
#include "user.h"

struct spawn {
        const char *command;
        const json_t *args;      /* array of strings, may be NULL */
        const json_t *env;       /* the request's variables, may be NULL */
        const char *cwd;         /* absolute */
        const struct user *user;
        enum cgroup_kind group;
        bool stdin_pipe;         /* else /dev/null; not for a pty */
        bool pty;
        bool ordered;            /* output pipes that hold one write each: see process.c; not for a pty */
        unsigned short cols, rows;
};

struct spawned {
        pid_t pid;
        int in, out, err;        /* our ends, non-blocking; -1 where there is none. A pty: in and out */
};

/* Starts the child. What fails before exec (fork, uid switch, chdir, E2BIG) is the error, with the bare reason as
 * message; a command that is missing or not executable is no error: the child prints it and exits 127 or 126.
 * Where /bin/bash does not exist, it is run by /bin/sh (docs/agent-protocol.md). */
int spawn_child(const struct spawn *s, struct spawned *ret, struct error *err);

/* Appends the command and its arguments with blanks between them, for people to read. */
void spawn_command_line(const struct spawn *s, struct buf *out);
