/* Text for the guest's shell. Pure. */
#pragma once

#include <stdbool.h>

/* 'x' with every single quote as '\'' : one word, nothing expands. The caller frees. */
char *shell_quote(const char *s);

/* A double-quoted word in which only $NAME, ${NAME} and ${NAME<operator>…} of a proper name expand: backslash, double
 * quote, backtick, $( and every other dollar are literal (template-api 11.2). The caller frees. */
char *shell_expandable(const char *s);

/* Does shell_expandable() leave anything to expand? */
bool shell_expands(const char *s);

/* May `name` be assigned in any shell: an identifier that no shell keeps read-only? */
bool shell_assignable(const char *name);
