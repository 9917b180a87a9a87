/* Which kernel modules to load, in which order: pure functions over depmod's text files. */
#pragma once

#include "base/error.h"

#define MODULES_TEXT_MAX (8u << 20) /* of modules.dep and modules.builtin each */
#define MODULES_MAX 256             /* modules in one load order */
#define MODULE_NAME_MAX 64

/* The module name of a path: directory, ".ko" and a compression suffix dropped, '-' as '_'. `out` has
 * MODULE_NAME_MAX bytes; -EINVAL when there is no ".ko" or the name is too long. */
int module_name(const char *path, char *out);

/* Resolves `wanted` (NULL-terminated names) into paths relative to the modules directory, dependencies first, each
 * once. `dep` and `builtin` are the texts of modules.dep and modules.builtin. What is built in is left out; a
 * wanted module that is neither is ERROR_UNAVAILABLE naming it; a dependency cycle, a missing dependency or more
 * than MODULES_MAX is ERROR_INVALID. `ret` is NULL-terminated; free with modules_free(). */
int modules_resolve(const char *dep, const char *builtin, const char *const *wanted, char ***ret, struct error *err);
void modules_free(char **paths); /* NULL is fine */
