/* Uploaded build contexts, DATA/files/<slug>/<hash> (product page "Deletion and artifact GC"; docs/configuration.md).
 *
 * A context's mtime is its last use: the upload, a link that found it there, the start of a build of its template's team. Clients ask for
 * a link before every build and upload what is absent, so that one which was removed costs an upload and nothing else.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "store/records.h"

#define CONTEXT_KEEP_SECONDS (7 * 24 * 3600) /* unused for so long: removed */
#define CONTEXT_SAFE_SECONDS (24 * 3600)     /* never removed for room before: a build may be waiting for it */

/* Marks a context as used now; an absent one is nothing. */
void context_touch(const char *file);

/* Bytes of the team's contexts, half-uploaded ones included. With `make_room` > 0 the least recently used ones that are older than
 * CONTEXT_SAFE_SECONDS at `now_s` (Unix time) are removed until that many bytes fit below `quota`. */
uint64_t contexts_make_room(const char *dir, uint64_t quota, uint64_t make_room, int64_t now_s);

/* Calls `found` for each context that nobody has used for CONTEXT_KEEP_SECONDS, and for those of teams that are gone; a team with a
 * build under way keeps all. With `dry_run` nothing is removed. */
int contexts_collect(const char *data_dir, struct records *r, bool dry_run, int64_t now_s,
                     void (*found)(void *data, const char *slug, const char *hash, const char *reason, uint64_t bytes), void *data,
                     struct error *err);
