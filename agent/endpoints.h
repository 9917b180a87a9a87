/* The plain HTTP endpoints (envd.md 3, 4); the table ends with a NULL path. */
#pragma once

#include "http/server.h"

struct endpoint {
        const char *method, *path;
        void (*handle)(struct http_exchange *x);
};

extern const struct endpoint endpoints[];

/* In files-get.c, files-post.c and compose.c. */
void handle_download(struct http_exchange *x);
void handle_upload(struct http_exchange *x);
void handle_compose(struct http_exchange *x);
