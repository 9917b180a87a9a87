/* Sandbox identifiers (sandbox-api 3). Pure. */
#pragma once

#define SANDBOX_ID_LEN 21      /* what we mint: "i" and 20 of [a-z0-9] */
#define SANDBOX_ID_MAX 64      /* what we look up */
#define SANDBOX_CLIENT_ID "6532622b" /* deprecated, but a required member of every sandbox object */

/* Mints an identifier; `out` has SANDBOX_ID_LEN + 1 bytes. */
void sandbox_id_new(char *out);

/* Takes the identifier out of "<id>" or the composite "<id>-<clientID>" of old SDKs. 0, or -EINVAL for more than two parts,
 * an empty or overlong part, or anything but [a-z0-9] in one. `ret` has SANDBOX_ID_MAX + 1 bytes. */
int sandbox_id_parse(const char *s, char *ret);
