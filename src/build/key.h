/* Cache keys: a SHA-256 chain over an unambiguous encoding (template-api 12). Pure.
 *
 * Each key hashes a list of fields, every one preceded by its length, so that ["a b"] and ["a","b"] differ. The first
 * field names the kind of layer and the version of this encoding.
 */
#pragma once

#include <stddef.h>

#include "build/build.h"

#define BUILD_KEY_LEN 64 /* lower-case hex digits */

/* The base layer of an image: digest of the manifest, architecture, size of the disk in MiB, hash of the provisioning
 * scripts, hash of the agent binary. `ret` has BUILD_KEY_LEN + 1 bytes, here and below. */
void build_key_image(const char *digest, const char *arch, unsigned disk_mb, const char *scripts_sha256,
                     const char *agent_sha256, char *ret);

/* The base layer of a build from a template: the parent build. */
void build_key_template(const char *parent_build_id, unsigned disk_mb, char *ret);

/* The layer that creates `user` (template-api 10.5). */
void build_key_user(const char *previous, char *ret);

void build_key_step(const char *previous, const struct build_step *step, char *ret);

/* What the finalize log line shows; never a cache entry. */
void build_key_finalize(const char *previous, const char *scripts_sha256, char *ret);

/* SHA-256 of a text as hex. */
void build_sha256(const void *data, size_t len, char *ret);
