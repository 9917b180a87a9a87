/* Small string predicates and conversions, locale-free. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool streq(const char *a, const char *b); /* NULL equals only NULL */
/* A copy on one line, for a message: blanks at both ends are dropped, each run of line breaks (with the blanks around it)
 * becomes " | ", other control characters become blanks. free() it. */
char *str_one_line(const char *s);

bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);

/* Lower-cases ASCII in place and returns its argument. */
char *str_lower(char *s);

/* Cuts ASCII blanks off both ends in place; returns a pointer into `s`. */
char *str_trim(char *s);

/* Is `s` of length `len` exactly, of lower-case hex digits only? */
bool str_is_hex(const char *s, size_t len);

/* Whole-string decimal; false on empty, sign, blank, junk or a value above `max`. */
bool str_to_u64(const char *s, uint64_t max, uint64_t *ret);

/* Lower-case hex; `out` has 2 * len + 1 bytes. */
void hex_encode(const void *data, size_t len, char *out);

/* Decodes exactly `len` bytes from 2 * len hex digits of either case; false on anything else. */
bool hex_decode(const char *hex, void *out, size_t len);

/* Equality in time that depends on the lengths alone. */
bool str_equal_constant_time(const char *a, const char *b);

/* Replaces every invalid UTF-8 sequence and NUL by U+FFFD; returns a new string (free()). */
char *utf8_scrub(const char *data, size_t len);
bool utf8_valid(const char *data, size_t len);
