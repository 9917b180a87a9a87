/* EntryInfo: what the filesystem service and watches tell of an object (envd.md 2.2). Thread-safe. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/buf.h"

#define METADATA_PREFIX "user.e2b."

/* A new EntryInfo of `path`, or NULL with errno. `legacy` leaves only name, type and path (envd.md 2.4). */
json_t *entry_info(const char *path, bool legacy);

/* Go's text for a mode, "drwxr-xr-x", "Lrwxrwxrwx". `out` has ENTRY_MODE_MAX bytes. */
#define ENTRY_MODE_MAX 16
void entry_mode_text(mode_t mode, char *out);

/* The metadata attributes of a file (links followed); a new object, perhaps empty. */
json_t *entry_metadata(const char *path);

/* A string for JSON: invalid UTF-8 becomes U+FFFD. */
json_t *entry_string(const char *s);
