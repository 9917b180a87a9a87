/* Time: nanoseconds since the epoch as int64_t, and RFC 3339 text in UTC. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define NSEC_PER_SEC 1000000000LL
#define NSEC_PER_MSEC 1000000LL

int64_t clock_realtime_ns(void);
int64_t clock_monotonic_ns(void);

/* Initialises a condition variable whose timed waits go by clock_monotonic_ns(). */
void clock_cond_init(pthread_cond_t *c);

#define RFC3339_MAX 40

/* "2026-08-21T10:00:00.123456Z" with microseconds (sandbox-api R7); `out` has RFC3339_MAX bytes. */
void rfc3339_format(int64_t ns, char *out);

/* Accepts 0 to 9 fraction digits and "Z" or a numeric zone; false on anything else. */
bool rfc3339_parse(const char *s, int64_t *ret_ns);
