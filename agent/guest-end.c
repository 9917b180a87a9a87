/* Theory of operation: every process of the guest is a descendant of PID 1 and becomes its child before the last one ends, so
 * "no child" is "no process"; kernel threads are children of none.
 */
#include "guest-end.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/wait.h>

#include "base/log.h"
#include "guest.h"
#include "loop.h"

#define GUEST_END_GRACE_MS 10000
#define KILL_GRACE_MS 5000 /* a process in an uninterruptible call does not even end by SIGKILL */
#define FLUSH_MS 100       /* for the last words on the API's connections */

static bool ending;
static struct timer *timer;

static void power_off(void *data)
{
        (void)data;
        timer = timer_free(timer);
        guest_power_off();
}

static void kill_rest(void *data)
{
        (void)data;
        timer = timer_free(timer);
        log_warn("the guest ends: SIGKILL for what still runs %d s after SIGTERM", GUEST_END_GRACE_MS / 1000);
        kill(-1, SIGKILL);
        timer = timer_start(KILL_GRACE_MS, 0, power_off, NULL);
}

void guest_end_reaped(void)
{
        siginfo_t info;

        if (!ending || waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) >= 0 || errno != ECHILD)
                return;
        timer_free(timer);
        timer = timer_start(FLUSH_MS, 0, power_off, NULL);
}

void guest_end(void)
{
        if (ending)
                return;
        ending = true;
        log_info("the guest ends: SIGTERM for everything that runs");
        timer = timer_start(GUEST_END_GRACE_MS, 0, kill_rest, NULL);
        kill(-1, SIGTERM);
        kill(-1, SIGCONT); /* what is stopped would not see it */
        guest_end_reaped();
}
