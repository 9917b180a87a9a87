/* The version of the records' form, kept beside them under the key "schema"; private to src/store. */
#pragma once

#include "base/error.h"
#include "store/store.h"

#define SCHEMA_KEY "schema"

/* Takes records from version i to i + 1, where i is its place in the list. It may have been cut off by a crash and runs again
 * then: it must be able to begin on what it has done in part. */
typedef int (*schema_migration)(struct store *s, struct error *err);

/* Brings a store to version `count`. One without a version is of version 0 (an empty one too: there is nothing to migrate).
 * After each migration its version is made durable. ERROR_CONFLICT, and nothing is touched, when the store is newer. */
int schema_open(struct store *s, const schema_migration *migrations, int count, struct error *err);
