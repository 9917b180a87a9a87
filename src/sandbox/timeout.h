/* When a sandbox ends (sandbox-api 5.1, 11, 12). Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* For create and connect: more than 0 (at least 0 with `zero_ok`) and at most the team's `max_hours` (0 = no limit);
 * ERROR_INVALID with the texts of sandbox-api 5.1. */
int sandbox_timeout_check(int64_t timeout_s, unsigned max_hours, bool zero_ok, struct error *err);

/* The new end of a sandbox that started at `started_ns` and would end at `ends_ns`: now + timeout, never past
 * started + max_hours (0 = no limit), and with `extend_only` never before `ends_ns`. ERROR_INVALID for a negative timeout
 * and, "Max instance length exceeded", for a sandbox that is past its longest life. */
int sandbox_timeout_end(int64_t started_ns, int64_t ends_ns, int64_t now_ns, int64_t timeout_s, unsigned max_hours, bool extend_only,
                        int64_t *ret_ends_ns, struct error *err);
