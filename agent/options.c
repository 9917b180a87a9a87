/* What the command line and the role decide, for every part to read. */
#include "agent.h"
#include "guest.h"

struct agent_options agent_options = {
        .mode = MODE_SERVICE, .port = ENVD_PORT, .listen = "0.0.0.0", .share = SHARE_DIR,
};

const char *agent_mode_name(enum agent_mode mode)
{
        static const char *const names[] = { "initramfs", "init", "service" };

        return names[mode];
}
