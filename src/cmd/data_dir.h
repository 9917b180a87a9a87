/* The data directory (docs/configuration.md): made and locked at start, secrets made at the first one. */
#pragma once

#include "base/error.h"
#include "store/records.h"
#include "store/secret.h"

/* Makes the directory and its parts and takes the lock that keeps a second server out. The lock lasts as long as the
 * descriptor is open, and is not inherited by the machines' supervisors. */
int data_dir_open(const char *path, int *ret_lock_fd, struct error *err);

/* The cluster token: 64 hex digits, made (0600) when the file is missing. The caller frees. */
int cluster_token_load(const char *path, char **ret, struct error *err);

/* On an empty store creates team "default" and its key, writes the key to DATA/default-key (0600), and returns it for the
 * one time that it is printed; else `*ret_key` is NULL. A first start that was cut off is completed by the next. */
int default_team_ensure(struct records *records, const char *data_dir, char **ret_key, struct error *err);
