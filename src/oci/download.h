/* Download of one blob into the cache, resuming what is there. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "oci/session.h"

/* Makes the blob present: waits for another download of it (by thread or process), else asks the session's endpoints in
 * turn. `done` counts the bytes held, for progress; `note` gets a line when an endpoint is given up for the next.
 * Errors: ERROR_CANCELLED, FORBIDDEN, NOT_FOUND, INVALID (digest or size wrong), UNAVAILABLE (registry, disk full). */
int blob_download(struct session *s, struct transfer *t, const char *digest, uint64_t size, _Atomic uint64_t *done,
                  void (*note)(void *data, const char *line), void *note_data, struct error *err);

/* Parses "bytes <from>-<to>/<total or *>"; false when malformed. *ret_total is UINT64_MAX for "*". Pure. */
bool content_range_parse(const char *s, uint64_t *ret_from, uint64_t *ret_to, uint64_t *ret_total);

/* Removes partial downloads that nobody holds and nobody touched for a day. */
void download_sweep(const char *cache_dir);
