/* Talking to whoever asked for the pull; both callbacks of struct oci_progress are optional, and so is the struct. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "oci/oci.h"

#define PROGRESS_LINE_MAX 1024

__attribute__((format(printf, 3, 4))) static inline void progress_log(const struct oci_progress *p, int level,
                                                                      const char *format, ...)
{
        char line[PROGRESS_LINE_MAX];
        va_list ap;

        if (!p || !p->log)
                return;
        va_start(ap, format);
        vsnprintf(line, sizeof(line), format, ap);
        va_end(ap);
        p->log(p->data, level, line);
}

static inline bool progress_cancelled(const struct oci_progress *p)
{
        return p && p->cancelled && p->cancelled(p->data);
}
