/* Dispatches `vmon COMMAND …`. */
#include <stdio.h>
#include <string.h>

#include "cmd/commands.h"

static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
} commands[] = {
        {"admin", cmd_admin},
        {"doctor", cmd_doctor},
        {"image", cmd_image},
        {"kit", cmd_kit},
        {"serve", cmd_serve},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int usage(FILE *f)
{
        fputs("usage: vmon", f);
        for (size_t i = 0; i < N_COMMANDS; i++)
                fprintf(f, "%s %s", i ? " |" : "", commands[i].name);
        fputs("\n       vmon COMMAND --help   tells its options\n", f);
        return f == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
        if (argc > 1 && strcmp(argv[1], "--version") == 0) {
                puts("vmon " VMON_VERSION);
                return 0;
        }
        if (argc > 1 && strcmp(argv[1], "--help") == 0)
                return usage(stdout);
        for (size_t i = 0; argc > 1 && i < N_COMMANDS; i++)
                if (strcmp(argv[1], commands[i].name) == 0)
                        return commands[i].run(argc - 1, argv + 1);
        return usage(stderr);
}
