/* The schedule of second tries. Registries rate-limit by the minute, so a 429 without advice waits 1, 2, 4, 8 and 16 s;
 * a fault is usually a restarting or overloaded server: 0.25, 0.5, 1 and 2 s.
 */
#include "oci/retry.h"

#include <stdint.h>

#include "base/str.h"

static int delay_429(const char *retry_after, unsigned attempt)
{
        uint64_t seconds;

        if (attempt >= RETRY_429_ATTEMPTS)
                return -1;
        if (!retry_after)
                return 1000 << (attempt - 1);
        if (!str_to_u64(retry_after, RETRY_AFTER_MAX_SECONDS, &seconds))
                return -1;
        return (int)seconds * 1000;
}

int retry_delay_ms(long status, const char *retry_after, unsigned attempt)
{
        if (status == 429)
                return delay_429(retry_after, attempt);
        if (status != 0 && (status < 500 || status > 599 || status == 501 || status == 505))
                return -1;
        return attempt >= RETRY_FAULT_ATTEMPTS ? -1 : 250 << (attempt - 1);
}
