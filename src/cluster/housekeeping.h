/* Housekeeping of one node: artifacts in DATA/builds that nobody can use any more (product page, "Deletion and artifact GC").
 *
 * Removed are the directories of finished builds of deleted templates, of failed builds, of builds that no record knows, and
 * half-written ones that are not being written; never one that a sandbox or a build on this node uses, nor anything that has
 * not the name of a build.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/rand.h"
#include "store/records.h"

#define HOUSEKEEPING_SECONDS 60

struct housekeeping_settings {
        const char *data_dir;
        struct records *records;
        /* Called on the housekeeping's thread and on those that call housekeeping_run(). */
        bool (*in_use)(void *data, const char *build_id);
        void (*forget)(void *data, const char *build_id); /* its files are about to go; may be NULL */
        uint64_t image_cache_bytes;  /* budget of DATA/cache/oci; 0: none */
        int64_t image_safe_seconds;  /* images that were resolved so lately may be in use by a build */
        void *data;
};

#define GARBAGE_NAME_MAX 256
struct garbage {
        const char *kind;            /* "build", "context" or "image" */
        char name[GARBAGE_NAME_MAX]; /* build ID, slug/hash, reference or digest (cut) */
        const char *reason; /* static text */
        uint64_t bytes;     /* allocated */
};

struct housekeeping;

/* Copies the settings and starts the thread: a first run at once, then one every HOUSEKEEPING_SECONDS. */
int housekeeping_new(const struct housekeeping_settings *s, struct housekeeping **ret, struct error *err);
/* Ends the thread (after a run that is under way). NULL is fine. */
void housekeeping_free(struct housekeeping *h);

/* One run now; with `dry_run` nothing is removed. What was (or would be) removed before an error is in *ret too (`count`
 * items, free() it). Thread-safe; runs take turns. */
int housekeeping_run(struct housekeeping *h, bool dry_run, struct garbage **ret, size_t *count, struct error *err);

/* The same without a thread behind it. */
int housekeeping_collect(const struct housekeeping_settings *s, bool dry_run, struct garbage **ret, size_t *count, struct error *err);
