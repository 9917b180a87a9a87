/* Paths as clients give them (envd.md 3.1). Pure. */
#pragma once

#include "base/error.h"

/* Resolves `path` for a user with that home: empty = `workdir` (may be NULL), "~" and relative ones below home,
 * absolute ones verbatim. ERROR_INVALID for "~other". The caller frees `ret`. */
int path_resolve(const char *path, const char *home, const char *workdir, char **ret, struct error *err);

/* Lexical cleaning as Go's path.Clean: "a//b/../c" -> "a/c", "" -> ".". The caller frees. */
char *path_clean(const char *path);
