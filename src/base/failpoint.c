#include "base/failpoint.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

static struct {
        pthread_once_t once;
        bool used;
        char *place;   /* NULL: all */
        char *pattern;
        long at;       /* 0: never */
        int log;       /* or -1 */
        pthread_mutex_t lock;
        long passed;
} state = {.once = PTHREAD_ONCE_INIT, .log = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

static void read_environment(void)
{
        const char *spec = getenv("VMON_FAILPOINT"), *log = getenv("VMON_FAILPOINT_LOG");
        const char *at = spec ? strrchr(spec, '@') : NULL, *colon = spec ? strchr(spec, ':') : NULL;

        if (at)
                state.at = strtol(at + 1, NULL, 10);
        if (at && colon && colon < at) {
                state.place = xstrndup(spec, (size_t)(colon - spec));
                state.pattern = xstrndup(colon + 1, (size_t)(at - colon - 1));
        }
        if (log)
                state.log = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        state.used = state.at > 0 || state.log >= 0;
}

static bool counts(const char *place, const char *detail)
{
        return !state.place || (strcmp(state.place, place) == 0 && fnmatch(state.pattern, detail, FNM_PATHNAME) == 0);
}

void failpoint(const char *place, const char *detail)
{
        pthread_once(&state.once, read_environment);
        if (!state.used || !counts(place, detail))
                return;
        pthread_mutex_lock(&state.lock);
        if (state.log >= 0)
                dprintf(state.log, "%s %s\n", place, detail);
        if (++state.passed == state.at)
                kill(getpid(), SIGKILL);
        pthread_mutex_unlock(&state.lock);
}
