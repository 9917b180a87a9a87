/* Connections to guest ports that a complete exchange has left usable, for the next request to the same port of the same life of a
 * sandbox. A request through one needs no thread, no supervisor and no handshake in the guest. Not thread-safe: the loop's thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sandbox/proxy-target.h"

/* Below the 5 s after which common servers (Node's) close an idle connection themselves. */
#define POOL_KEEP_MS 4000
/* All together; beyond it the oldest goes. Each is a descriptor here and one in a guest. */
#define POOL_MAX 256

struct proxy_pool;
struct proxy_pool *proxy_pool_new(void);
void proxy_pool_free(struct proxy_pool *p); /* closes all; NULL is fine */

/* Takes `fd` over: non-blocking, connected, nothing to be read. `life` is sandbox_route.life when it was dialled. */
void proxy_pool_add(struct proxy_pool *p, const struct proxy_target *target, uint64_t life, int fd, uint64_t now_ms);
/* The newest that its guest has not closed, which is the caller's then; -1 when there is none. */
int proxy_pool_take(struct proxy_pool *p, const struct proxy_target *target, uint64_t life, uint64_t now_ms);
/* Closes what is too old, closed by its guest, or of a sandbox for which `current` says no. Returns whether any is left. */
bool proxy_pool_sweep(struct proxy_pool *p, uint64_t now_ms, bool (*current)(void *userdata, const char *id, uint64_t life), void *userdata);
