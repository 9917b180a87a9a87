/* When a request is tried again (product page "Pull"). Pure. */
#pragma once

#include <stdbool.h>

#define RETRY_429_ATTEMPTS 6
#define RETRY_AFTER_MAX_SECONDS 60
#define RETRY_FAULT_ATTEMPTS 5

/* Milliseconds to wait after attempt number `attempt` (1 is the first) that was answered with `status`, 0 standing for
 * a broken connection; -1: do not try again. 429 up to 6 attempts, when Retry-After is absent or a number of at most
 * 60; 5xx and broken connections up to 5 with growing pauses; nothing else. */
int retry_delay_ms(long status, const char *retry_after, unsigned attempt);
