/* The watching methods of the filesystem service. */
#pragma once

#include "rpc.h"

void handle_watch_dir(struct rpc *c, json_t *request);
void handle_create_watcher(struct rpc *c, json_t *request);
void handle_get_watcher_events(struct rpc *c, json_t *request);
void handle_remove_watcher(struct rpc *c, json_t *request);

/* In rpc-filesystem.c: the resolved path of a request's member; answers and returns -EINVAL when it has none. */
int filesystem_path(struct rpc *c, const json_t *request, const char *name, char **ret);
