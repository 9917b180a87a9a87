/* Random identifiers, from getrandom(2). */
#pragma once

#include <stddef.h>

void random_bytes(void *out, size_t len);

/* `len` characters of [a-z0-9], unbiased, plus NUL. */
void random_id(char *out, size_t len);

#define UUID_LEN 36

/* Version 4, lower-case; `out` has UUID_LEN + 1 bytes. */
void random_uuid(char *out);

/* Any UUID in the 8-4-4-4-12 form, either case. */
int uuid_valid(const char *s);
