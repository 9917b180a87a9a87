/* File operations on behalf of a user, with the agent's own rights. Thread-safe. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "user.h"

/* mkdir -p: what is created is 0755 and the user's. 0, or -errno with `err` (a parent that is a file is -ENOTDIR,
 * "path is a file: <p>"). Concurrent creators are fine. */
int fileops_make_directories(const char *path, const struct user *user, struct error *err);

/* The same for all parents of `path`. */
int fileops_make_parents(const char *path, const struct user *user, struct error *err);

/* rm -rf of a path, a link itself, a mount point's content not spared; missing is success. -errno. */
int fileops_remove(const char *path);
