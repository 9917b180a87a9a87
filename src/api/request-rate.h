/* The request rate of each team: a token bucket that holds one second's worth, in memory. Thread-safe. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct request_rate;

struct request_rate *request_rate_new(void);
struct request_rate *request_rate_free(struct request_rate *r); /* returns NULL; NULL is fine */
/* One request of `team_id` at `now_ns` (monotonic): false when it is over `per_second` (0: no limit). */
bool request_rate_take(struct request_rate *r, const char *team_id, unsigned per_second, int64_t now_ns);
