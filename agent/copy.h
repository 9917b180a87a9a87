/* A COPY step (template-api 11.5, known-failures D1): an uploaded archive into the guest's root. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct copy_request {
        const char *archive; /* tar, plain or gzip or zstd by its magic */
        const char *source;  /* first argument of the step */
        const char *target;  /* absolute; a trailing slash counts */
        const char *owner;   /* "user:group", names of the guest or numbers */
        const char *mode;    /* octal, or "" for the archive's */
};

struct copy_result {
        uint64_t entries, bytes;
        bool elsewhere; /* the target, or a part of it, is not on the root's file system: /run, /dev/shm … */
};

/* Either everything was copied or an error says what was not. Entries that are absolute, hold "..", or are devices, pipes
 * or sockets are ERROR_INVALID before anything reaches the target. */
int copy_from_archive(const struct copy_request *c, struct copy_result *ret, struct error *err);

/* The path inside the archive that a source argument stands for ("src/" -> "src", "src/x*.py" -> "src", "*" -> "").
 * Pure. `out` has PATH_MAX bytes. -EINVAL when it leaves the context. */
int copy_map_source(const char *source, char *out);
