/* A step cache in a directory of the test's own, and layers for it. A failure is the test's. */
#pragma once

#include "build/cache.h"

extern char *dir, *scratch; /* the cache's directory; one for other files on the same file system */
extern struct build_cache *cache;
extern int serial;          /* for names that are used once */

/* cmocka's setup and teardown; open_cache() is the test's to call. */
int start(void **state);
int stop(void **state);
void open_cache(unsigned layers, uint64_t bytes);

/* A layer `name` (one hex digit) with a disk of `bytes` that is no image. */
struct build_layer layer(char name, size_t bytes);
/* One with a real image: 8 clusters of `pattern` at cluster `at`. */
struct build_layer image_layer(char name, unsigned pattern, unsigned at);
/* A qcow2 image of `size` virtual bytes after these commands of qemu-io (at most 28). */
void make_image(const char *path, uint64_t size, const char *const *commands);

bool put(struct build_layer *l, const struct build_layer *parent, bool replace);
/* Released and freed. */
void done(struct build_layer *l);

/* What the disks of a chain say together, bottom first. */
char *content(const char *const *disks);
/* The same for the last of the layers whose digits `names` lists, which must be there, and how many layers it has. */
char *content_of(const char *names, size_t *ret_layers);
