/* Watches of a store whose commits all happen in this process (store.h has the contract). Thread-safe. */
#pragma once

#include "store/backend.h"

/* What a watch holds for a reader that is slower than the writers; beyond it its reader is told to read again. */
#define WATCH_EVENTS_MAX 4096
#define WATCH_BYTES_MAX (8 << 20)

struct watch_hub;
struct watch_hub *watch_hub_new(void);
void watch_hub_free(struct watch_hub *h); /* without watches; NULL is fine */
struct store_watch *watch_hub_add(struct watch_hub *h, const char *prefix);
/* Called in the order of the commits. */
void watch_hub_publish(struct watch_hub *h, const struct store_txn *t, int64_t revision);
