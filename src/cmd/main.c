/* Dispatches `vmon COMMAND …`. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
        if (argc > 1 && strcmp(argv[1], "--version") == 0) {
                puts("vmon " VMON_VERSION);
                return 0;
        }
        fputs("usage: vmon serve | admin | kit | image | doctor\n", stderr);
        return 2;
}
