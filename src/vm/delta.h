/* The memory that a fork has changed since its template: saved when it is paused, put back when it is resumed (design 6).
 *
 * A fork maps its template's memory copy-on-write; what it changed are the anonymous pages of that mapping. File, all
 * integers little-endian:
 *
 *     0                  header: struct memory_delta_header, padded with zeros to a page
 *     page               the changed pages that are not all zero, in order
 *     header.table       header.runs records of struct memory_delta_run, ascending, not overlapping
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define MEMORY_DELTA_MAGIC 0x31544c444e4f4d56ull /* "VMONDLT1" */

struct memory_delta_header {
        uint64_t magic;
        uint64_t page_size, memory; /* bytes; of the whole guest */
        uint64_t pages;             /* that follow the header */
        uint64_t table, runs;       /* offset and count */
};

struct memory_delta_run {
        uint64_t first; /* page number in the guest's memory */
        uint32_t count;
        uint32_t zero;  /* 1: all of them are zero and not in the file */
};

/* Writes the pages that process `pid`, a stopped QEMU with a private mapping of `memory` bytes, has changed into the empty
 * file `fd`. *ret_pages (may be NULL) gets their number. ERROR_UNAVAILABLE where this process may not read that one's memory. */
int memory_delta_save(pid_t pid, uint64_t memory, int fd, uint64_t *ret_pages, struct error *err);

/* Writes the pages in `fd` into the same places of process `pid`. The file is foreign bytes: ERROR_INVALID unless it is whole,
 * well-formed and for this size of memory; nothing was written then. */
int memory_delta_load(int fd, uint64_t memory, pid_t pid, struct error *err);

/* The same into a file that holds the template's memory. */
int memory_delta_apply(int fd, uint64_t memory, int to, struct error *err);

/* What memory_delta_load() checks: the table, allocated, the caller frees. */
int memory_delta_read_table(int fd, uint64_t memory, struct memory_delta_header *ret, struct memory_delta_run **ret_runs,
                            struct error *err);
