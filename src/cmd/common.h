/* What the subcommands share: options from the environment, default places. */
#pragma once

#include <argp.h>
#include <stdbool.h>

/* argp_parse() in which every option of `argp` is first read from the environment as VMON_<OPTION> (design 4):
 * --data-dir from VMON_DATA_DIR. An option without argument is set by the value "1"; the command line wins, as it
 * comes later. Prints usage errors to stderr; returns 0 or an errno, then exit with status 2. */
int cmd_parse(const struct argp *argp, int argc, char **argv, void *input);

/* /var/lib/vmon as root, else $XDG_DATA_HOME/vmon, else ~/.local/share/vmon. The caller frees. */
char *cmd_default_data_dir(void);

/* The path of a program beside this one, such as "vmon-agent"; NULL when it is not there. The caller frees. */
char *cmd_sibling(const char *name);
