/* `vmon kit`: prepares the guest kit. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/file.h"
#include "cmd/commands.h"
#include "cmd/common.h"
#include "vm/kit.h"

struct options {
        const char *arch, *kit_dir, *data_dir, *agent;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
        struct options *o = state->input;

        switch (key) {
        case 'a':
                o->arch = arg;
                return 0;
        case 'k':
                o->kit_dir = arg;
                return 0;
        case 'd':
                o->data_dir = arg;
                return 0;
        case 'g':
                o->agent = arg;
                return 0;
        case ARGP_KEY_ARG:
                argp_error(state, "unexpected argument \"%s\"", arg);
                return EINVAL;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static const struct argp_option options[] = {
        {"arch", 'a', "ARCH", 0, "Guest architecture: x86_64 or aarch64 (default: this machine's)", 0},
        {"kit-dir", 'k', "DIR", 0, "Where kits are kept (default: DATA-DIR/kit)", 0},
        {"data-dir", 'd', "DIR", 0, "Data directory (default: /var/lib/vmon as root)", 0},
        {"agent", 'g', "FILE", 0, "The vmon-agent to put into the guest (default: the one beside this program)", 0},
        {},
};
static const struct argp argp = {
        options, parse, NULL,
        "Prepare the guest kit: Debian's cloud kernel, an initramfs with the agent, the modules disk and a closed copy "
        "of QEMU. Does nothing when the current kit has the same inputs.",
        NULL, NULL, NULL};

static void print_line(const char *line)
{
        fprintf(stderr, "vmon kit: %s\n", line);
}

/* The versions before. A failure leaves them: nothing that was asked for failed. */
static void collect(const char *kit_dir, const char *data_dir, const char *arch)
{
        CLEANUP_FREE char *secret = path_join(data_dir, "root-secret");
        struct error err = {};
        int r = path_exists(secret) ? kit_add_user(kit_dir, data_dir, &err) : 0;

        if (r >= 0)
                r = kit_collect(kit_dir, arch, true, print_line, &err);
        if (r < 0)
                fprintf(stderr, "vmon kit: older versions stay: %s\n", err.message);
}

int cmd_kit(int argc, char **argv)
{
        struct options o = {};
        CLEANUP_FREE char *data_dir = NULL, *kit_dir = NULL, *agent = NULL;
        struct error err = {};

        if (cmd_parse(&argp, argc, argv, &o) != 0)
                return 2;
        data_dir = cmd_default_data_dir();
        kit_dir = path_join(o.data_dir ? o.data_dir : data_dir, "kit");
        agent = o.agent ? NULL : cmd_sibling("vmon-agent");
        if (!o.agent && !agent) {
                fprintf(stderr, "vmon kit: there is no vmon-agent beside this program; build it or give --agent FILE\n");
                return 1;
        }
        if (kit_build(o.kit_dir ? o.kit_dir : kit_dir, o.arch, o.agent ? o.agent : agent, print_line, &err) < 0) {
                fprintf(stderr, "vmon kit: %s\n", err.message);
                return 1;
        }
        collect(o.kit_dir ? o.kit_dir : kit_dir, o.data_dir ? o.data_dir : data_dir, o.arch);
        return 0;
}
