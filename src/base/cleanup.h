/* Scope-bound release of memory, descriptors and streams, in the manner of nbdkit's cleanups.
 * Declare `CLEANUP_FREE char *p = NULL;` and the value is released when the scope is left; STEAL()
 * hands the value on instead.
 */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
        free(*(void **)p);
}

static inline void cleanup_close(int *fd)
{
        if (*fd >= 0)
                close(*fd);
}

static inline void cleanup_fclose(FILE **f)
{
        if (*f)
                fclose(*f);
}

static inline void cleanup_closedir(DIR **d)
{
        if (*d)
                closedir(*d);
}

/* The cleanup is a use, but clang says otherwise. */
#define CLEANUP(fn) __attribute__((cleanup(fn), unused))
#define CLEANUP_FREE CLEANUP(cleanup_free)
#define CLEANUP_CLOSE CLEANUP(cleanup_close)
#define CLEANUP_FCLOSE CLEANUP(cleanup_fclose)
#define CLEANUP_CLOSEDIR CLEANUP(cleanup_closedir)

/* Takes the pointer out of a cleanup variable, which is left NULL. */
#define STEAL(p)                              \
        ({                                    \
                __typeof__(p) steal_ = (p);   \
                (p) = NULL;                   \
                steal_;                       \
        })

/* Takes the descriptor out of a cleanup variable, which is left at -1. */
#define STEAL_FD(fd)                 \
        ({                           \
                int steal_ = (fd);   \
                (fd) = -1;           \
                steal_;              \
        })
