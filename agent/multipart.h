/* A streaming parser of multipart/form-data (RFC 2046, 7578), fed in pieces of any size. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

#define MULTIPART_BOUNDARY_MAX 200
#define MULTIPART_HEAD_MAX (32 * 1024) /* bytes of one part's headers */
#define MULTIPART_BLANKS_MAX 256 /* between a boundary and its line end */
#define MULTIPART_PARTS_MAX 100000

struct multipart_ops {
        /* A part begins: its form name and file name, NULL where absent. A negative return stops the parser. */
        int (*part)(const char *name, const char *filename, void *data);
        int (*content)(const void *bytes, size_t len, void *data);
        int (*part_end)(void *data);
};

struct multipart {
        const struct multipart_ops *ops;
        void *data;
        char delimiter[MULTIPART_BOUNDARY_MAX + 8]; /* "\r\n--boundary" */
        size_t delimiter_len;
        int state;
        unsigned parts;
        bool in_part; /* at a delimiter: it may end a part */
        size_t skip; /* bytes of the head that still stand in front of the body */
        struct buf pending;
};

/* Takes the boundary out of a Content-Type; ERROR_INVALID when there is none or it is overlong. */
int multipart_init(struct multipart *m, const char *content_type, const struct multipart_ops *ops, void *data,
                   struct error *err);
/* 0, a negative return of an op, or ERROR_INVALID for malformed input. */
int multipart_feed(struct multipart *m, const void *bytes, size_t len, struct error *err);
/* The input is over: an error when the closing delimiter was not seen. */
int multipart_finish(struct multipart *m, struct error *err);
void multipart_free(struct multipart *m);

/* The value of a parameter ("boundary", "filename", …) of a structured header; RFC 2231 `name*=` is decoded and
 * preferred. The caller frees; NULL when absent. */
char *header_parameter(const char *header, const char *name);
