/* Running helper programs (qemu-img, mke2fs, dpkg-deb, …) by posix_spawn: a fork() of a large process
 * costs milliseconds (design 6). No shell is involved; no secret may be in argv.
 */
#pragma once

#include "base/buf.h"
#include "base/error.h"

/* Runs argv[0] (looked up in PATH) to its end with stdin from /dev/null. Standard output is appended to
 * `out` when not NULL, else discarded. A missing program is ERROR_UNAVAILABLE naming it; a non-zero exit
 * or a signal is ERROR_INTERNAL with the last lines of its standard error. */
int subprocess_run(const char *const argv[], struct buf *out, struct error *err);

/* The same with `input` fed to its standard input. */
int subprocess_feed(const char *const argv[], const void *input, size_t len, struct buf *out, struct error *err);

/* The path of a program that is installed in the same directory as this one; free() it. */
char *program_beside(const char *name);
