/* Strings that must not stay in memory after their use. */
#pragma once

#include <stdlib.h>
#include <string.h>

/* Overwrites and frees the string at `s` (may be NULL), leaving NULL. */
static inline void secret_free(char **s)
{
        if (*s)
                explicit_bzero(*s, strlen(*s));
        free(*s);
        *s = NULL;
}

#define CLEANUP_SECRET __attribute__((cleanup(secret_free)))
