/* What provisioning and configuration make in an image that has no shell to run their scripts (`FROM scratch` and one
 * static binary): the accounts root and user, a home, /tmp and, for a template, /.e2b, /code and an open /usr/local.
 * template-api 10.4 (D17), 10.5, 13.1.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

struct bare_ids {
        const char *template_id, *build_id; /* both NULL: accounts only */
};

/* Below `root` ("" for the running system). What is there stays; doing it again changes nothing. ERROR_LIMIT when a file
 * of accounts is larger than 1 MiB. */
int bare_set_up(const char *root, const struct bare_ids *ids, struct error *err);

/* Is there a /bin/sh to run scripts and commands with? */
bool bare_has_shell(const char *root);
