/* Watching a directory, or a tree, by inotify (envd.md 2.3). Loop thread only. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

struct watch;

struct watch_ops {
        /* One FilesystemEvent as an object; borrowed. */
        void (*event)(json_t *event, void *data);
        /* The watch is broken (queue overflow); no more events. */
        void (*broken)(const char *message, void *data);
};

struct watch_options {
        const char *path;
        bool recursive, include_entry, network_mounts, legacy;
};

/* Arms a watch. ERROR_NOT_FOUND and ERROR_INVALID speak of the path; ERROR_INTERNAL "error adding path …" of
 * exhausted inotify watches. */
int watch_start(const struct watch_options *options, const struct watch_ops *ops, void *data, struct watch **ret,
                struct error *err);
void watch_pause(struct watch *w, bool paused);
void watch_free(struct watch *w); /* NULL is fine */
