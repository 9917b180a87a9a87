/* Opened template snapshots, one a build, shared by all forks (vm.h: opening loads the memory image once). Thread-safe;
 * blocking.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "vm/vm.h"

/* How many snapshots that no fork is using right now stay open: each holds the memory image of a template in memory. */
#define TEMPLATE_CACHE_IDLE_MAX 4

struct template_cache;

/* `kit_root` and `backend` are copied. A backend that is not known yet (NULL) is set before the first acquire. */
struct template_cache *template_cache_new(const char *kit_root, const char *backend, size_t idle_max);
bool template_cache_has_backend(struct template_cache *c);
void template_cache_set_backend(struct template_cache *c, const char *backend); /* only the first one counts */
/* No snapshot may be in use. NULL is fine. */
void template_cache_free(struct template_cache *c);

/* The snapshot of `build_id` in `build_dir`; given back with template_cache_release(). Several callers that need the same
 * closed snapshot open it once. Errors are those of vm_template_open() and are not remembered. */
int template_cache_acquire(struct template_cache *c, const char *build_id, const char *build_dir, struct vm_template **ret, struct error *err);
void template_cache_release(struct template_cache *c, struct vm_template *t);
/* Closes the snapshot of a build that is to be removed: now, or when its last user gives it back. */
void template_cache_forget(struct template_cache *c, const char *build_id);
/* Is it in use, or being opened? */
bool template_cache_uses(struct template_cache *c, const char *build_id);
