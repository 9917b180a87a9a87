#include "store/build_state.h"

#include "base/str.h"

#define NO_MOVE (-1)

static const char *const names[BUILD_STATES] = { "waiting", "building", "ready", "error" };

static const int moves[BUILD_STATES][BUILD_EVENTS] = {
        [BUILD_WAITING] = { BUILD_BUILDING, NO_MOVE, BUILD_ERROR, BUILD_ERROR, NO_MOVE, BUILD_ERROR },
        [BUILD_BUILDING] = { NO_MOVE, BUILD_READY, BUILD_ERROR, NO_MOVE, BUILD_ERROR, NO_MOVE },
        [BUILD_READY] = { NO_MOVE, NO_MOVE, NO_MOVE, NO_MOVE, NO_MOVE, NO_MOVE },
        [BUILD_ERROR] = { NO_MOVE, NO_MOVE, NO_MOVE, NO_MOVE, NO_MOVE, NO_MOVE },
};

const char *build_state_name(enum build_state s)
{
        return names[s];
}

enum build_state build_state_from(const char *name)
{
        for (int i = BUILD_WAITING; i < BUILD_ERROR; i++)
                if (streq(names[i], name))
                        return (enum build_state)i;
        return BUILD_ERROR;
}

bool build_state_next(enum build_state from, enum build_event event, enum build_state *ret)
{
        int to = moves[from][event];

        if (to == NO_MOVE)
                return false;
        *ret = (enum build_state)to;
        return true;
}

bool build_state_is_final(enum build_state s)
{
        enum build_state to;

        for (int event = 0; event < BUILD_EVENTS; event++)
                if (build_state_next(s, (enum build_event)event, &to))
                        return false;
        return true;
}
