/* The rules of a sandbox's end, as values: the manager applies them, the API checks requests with them. */
#include "sandbox/timeout.h"

#include "base/clock.h"

#define SECONDS_MAX INT32_MAX /* the contract's type; keeps the sums below far from overflow */

int sandbox_timeout_check(int64_t timeout_s, unsigned max_hours, bool zero_ok, struct error *err)
{
        if (timeout_s < 0 || (timeout_s == 0 && !zero_ok))
                return error_set(err, ERROR_INVALID, zero_ok ? "Timeout must not be negative" : "Timeout must be greater than 0");
        if (timeout_s > SECONDS_MAX || (max_hours > 0 && timeout_s > (int64_t)max_hours * 3600))
                return error_set(err, ERROR_INVALID, "Timeout cannot be greater than %u hours", max_hours > 0 ? max_hours : SECONDS_MAX / 3600);
        return 0;
}

int sandbox_timeout_end(int64_t started_ns, int64_t ends_ns, int64_t now_ns, int64_t timeout_s, unsigned max_hours, bool extend_only,
                        int64_t *ret_ends_ns, struct error *err)
{
        if (timeout_s < 0)
                return error_set(err, ERROR_INVALID, "Timeout must not be negative");
        if (timeout_s > SECONDS_MAX)
                timeout_s = SECONDS_MAX;
        int64_t end = now_ns + timeout_s * NSEC_PER_SEC;
        if (max_hours > 0) {
                int64_t last = started_ns + (int64_t)max_hours * 3600 * NSEC_PER_SEC;
                if (last <= now_ns)
                        return error_set(err, ERROR_INVALID, "Max instance length exceeded");
                if (end > last)
                        end = last;
        }
        if (extend_only && end < ends_ns)
                end = ends_ns;
        *ret_ends_ns = end;
        return 0;
}
