/* JSON texts that were parsed before, by their content: most requests read records that did not change since the last one. What is returned is
 * shared and must not be changed. Thread-safe.
 */
#pragma once

#include <jansson.h>

#include "base/error.h"

#define PARSED_TEXT_MAX 4096 /* longer ones are parsed each time */
#define PARSED_SLOTS 256     /* at most about 5 MiB of them, a few kB each as a rule: records that change leave one for each state */

struct parsed;
struct parsed *parsed_new(void);
void parsed_free(struct parsed *p); /* NULL is fine */
/* A reference to the value of `text`; errors are those of json_parse(). */
int parsed_get(struct parsed *p, const char *text, size_t len, json_t **ret, struct error *err);
