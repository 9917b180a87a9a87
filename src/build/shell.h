/* Text for the guest's shell. Pure. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#define SHELL_LITERAL "VMON_LITERAL_" /* and a number: names of the variables that shell_word() makes */
#define SHELL_NESTING_MAX 16          /* references within references; what is deeper is literal */

/* 'x' with every single quote as '\'' : one word, nothing expands. The caller frees. */
char *shell_quote(const char *s);

/* A double-quoted word in which only $NAME, ${NAME} and ${NAME<operator>…} of a proper name expand (the operators - + = ? with and
 * without colon, # and %): backslash, double
 * quote, backtick, $( and every other dollar are literal (template-api 11.2). The caller frees. */
char *shell_expandable(const char *s);

/* The same, for values up to BUILD_ARG_MAX, which quoting would make too long for one argument: what is literal is added to the
 * object `literals` as a variable of its own, and the word refers to it. */
char *shell_word(const char *s, json_t *literals);

/* Does shell_expandable() leave anything to expand? */
bool shell_expands(const char *s);

/* May any text be assigned to `name` in any shell: an identifier that is neither read-only nor evaluated? */
bool shell_assignable(const char *name);
