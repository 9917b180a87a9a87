/* The subcommands of vmon. Each gets argv from its own name on and returns the exit status: 0 success,
 * 1 failure (one clear line on stderr that names the mend), 2 wrong usage. */
#pragma once

int cmd_serve(int argc, char **argv);
int cmd_admin(int argc, char **argv);
int cmd_kit(int argc, char **argv);
int cmd_image(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
