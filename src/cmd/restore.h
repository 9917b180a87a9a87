/* `vmon admin restore`: a backup becomes the store of a data directory that has none. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct restore_summary {
        size_t teams, templates;
};

/* Copies the backup `file` into `data_dir`, checks it there whole (damage, versions, root secret), and gives it the name of the store
 * last, so that a restore that was cut off leaves no store. With `drill` the copy is only checked and removed again; a server may
 * then be using the directory. ERROR_CONFLICT when the directory has a store already or is in use; ERROR_INVALID for a file that is
 * no whole backup. */
int restore_store(const char *data_dir, const char *file, bool drill, struct restore_summary *ret, struct error *err);
