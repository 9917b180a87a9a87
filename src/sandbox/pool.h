/* The warm pool: clones of templates that are in demand, restored and warmed before anybody asks (vm_restore_warm()). A create takes one
 * and gives it its identity, in a few milliseconds, where restoring one takes a hundred.
 *
 * A member is a machine in a directory sandboxes/<id> that has no record yet; its id becomes the sandbox's. A process that is killed
 * leaves members as it leaves creates that were cut off: the next start removes them, and their supervisors end them at the latest
 * POOL_MEMBER_SECONDS and a margin after they were made.
 *
 * Demand: of each build as many as were created in the last POOL_WINDOW_SECONDS, at least one for POOL_IDLE_SECONDS after the last
 * create, at most POOL_BUILD_MAX. Builds share the budget in the order of their last create. A thread of its own makes one at a
 * time, while no create is under way (or after POOL_PATIENCE_MS of that), and ends those that are too many or too old.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "sandbox/id.h"
#include "vm/vm.h"

#define POOL_WINDOW_SECONDS 60
#define POOL_IDLE_SECONDS 600
#define POOL_MEMBER_SECONDS 600
#define POOL_BUILD_MAX 64
#define POOL_PATIENCE_MS 2000
#define POOL_GUESS_BYTES (96ULL << 20) /* of a member, until one of its build has been measured */

struct sandbox_manager;
struct pool;

struct pool_member {
        char id[SANDBOX_ID_MAX + 1];
        struct vm *vm; /* stands still; vm_hand_over() */
        char *build_id;
        int64_t made_ns; /* realtime */
};

/* At most `max` members, whose private memory is at most `budget_bytes`. With a `max` of 0 *ret is NULL, and everything below takes that
 * for an empty pool. */
int pool_start(struct sandbox_manager *m, unsigned max, uint64_t budget_bytes, struct pool **ret, struct error *err);
void pool_stop(struct pool *p); /* ends the members */

/* Brackets a create, which the refilling lets pass first. */
void pool_create_begin(struct pool *p);
void pool_create_end(struct pool *p);

/* A living member, the caller's from now on (pool_member_free() when its machine has been taken over); NULL when there is none. Either
 * way the build is wanted more. Any thread. */
struct pool_member *pool_take(struct pool *p, const char *build_id);
void pool_put_back(struct pool *p, struct pool_member *member); /* unused after all */
void pool_member_free(struct pool_member *member);

/* Ends the members of a build that is to be removed, and wants it no more. */
void pool_forget(struct pool *p, const char *build_id);
size_t pool_count(struct pool *p, const char *build_id); /* NULL: all */

/* What a build is entitled to; pure. `created_ns`: the times of its last creates, any order, 0 = none. */
size_t pool_wanted(const int64_t *created_ns, size_t count, int64_t now_ns);
