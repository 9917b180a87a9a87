#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/subprocess.h"
#include "build/shell.h"

/* What a shell makes of the word, with A=1 and nothing else set. "busybox sh" is the shell of small images. */
static char *in_shell_named(const char *shell, const char *word)
{
        CLEANUP_FREE char *script = xasprintf("unset NONE; A=1; printf %%s %s", word);
        const char *plain[] = {shell, "-c", script, NULL}, *applet[] = {shell, "sh", "-c", script, NULL};
        const char **argv = strstr(shell, "busybox") ? applet : plain;
        struct buf out = {};
        struct error err = {};

        if (subprocess_run(argv, &out, &err) < 0)
                fail_msg("%s: %s", word, err.message);
        return buf_steal(&out);
}

static char *in_shell(const char *word)
{
        return in_shell_named("/bin/sh", word);
}

static const char *const shells[] = {"/bin/sh", "/bin/bash", "/bin/busybox"};

static void quoting_is_literal(void **state)
{
        static const char *const values[] = {"", "a b", "it's", "$A `id` $(id) \\ \"", "a\nb\n", "''", "-n", "*"};

        (void)state;
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
                CLEANUP_FREE char *word = shell_quote(values[i]), *got = in_shell(word);

                assert_string_equal(got, values[i]);
        }
}

static void only_names_expand(void **state)
{
        static const struct {
                const char *value, *expected;
        } cases[] = {
                {"", ""},
                {"$A", "1"},
                {"x${A}y", "x1y"},
                {"${A}:/my/path", "1:/my/path"},
                {"$NONE|", "|"},
                {"${NONE:-d}", "d"},
                {"a\"b", "a\"b"},
                {"it's", "it's"},
                {"\\n", "\\n"},
                {"\\$A", "\\1"},
                {"`id`", "`id`"},
                {"$(id)", "$(id)"},
                {"$((1+1))", "$((1+1))"},
                {"${A[$(id)]}", "${A[$(id)]}"},
                {"cost $5", "cost $5"},
                {"$", "$"},
                {"$$", "$$"},
                {"${", "${"},
                {"${A", "${A"},
                {"${}", "${}"},
                {"${!A}", "${!A}"},
                {"${NONE-${A}}", "1"},
                {"${NONE:-a\"b`c$(d)}", "a\"b`c$(d)"},
                {"${A:-${A}", "${A:-1"},
                {"${A:0}", "${A:0}"},
                {"${A:HOLE}", "${A:HOLE}"},
                {"${A/x/y}", "${A/x/y}"},
                {"${A@P}", "${A@P}"},
                {"${#A}", "${#A}"},
                {"a ${A} \xc3\xa9 $A\\$NONE'", "a 1 \xc3\xa9 1\\'"},
                {"-----BEGIN KEY-----\nabc\n-----END KEY-----\n", "-----BEGIN KEY-----\nabc\n-----END KEY-----\n"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                CLEANUP_FREE char *word = shell_expandable(cases[i].value);

                for (size_t n = 0; n < sizeof(shells) / sizeof(shells[0]); n++) {
                        CLEANUP_FREE char *got = access(shells[n], X_OK) == 0 ? in_shell_named(shells[n], word) : NULL;

                        if (got && strcmp(got, cases[i].expected) != 0)
                                fail_msg("%s: '%s' became '%s'", shells[n], cases[i].value, got);
                }
        }
}

/* The same by way of variables. */
static void words_with_literals_expand_alike(void **state)
{
        static const char *const values[] = {"",        "$A",         "x${A}y$NONE", "a\"b'`id`$(id)\\$A\n", "${A:-$", "$$A$",
                                             "é$A$A é", "${NONE:-é$A}z"};

        (void)state;
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
                CLEANUP_JSON json_t *literals = json_object();
                CLEANUP_FREE char *word = shell_word(values[i], literals), *plain = shell_expandable(values[i]);
                CLEANUP_FREE char *expected = in_shell(plain), *got = NULL;
                const char *name;
                json_t *v;

                json_object_foreach(literals, name, v)
                        setenv(name, json_string_value(v), 1);
                got = in_shell(word);
                assert_string_equal(got, expected);
        }
}

/* bash evaluates an offset as arithmetic, and there an array's subscript in a variable's value: a command could hide in it. */
static void no_value_runs_a_command(void **state)
{
        static const char *const values[] = {"${A:HOLE}", "${A:0:HOLE}", "${A[HOLE]}", "$((HOLE))", "$[HOLE]", "${HOLE@P}", "${!HOLE}"};

        (void)state;
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
                CLEANUP_FREE char *word = shell_expandable(values[i]), *quoted = shell_quote(word);
                CLEANUP_FREE char *full = xasprintf("HOLE='B[$(echo ran >&2)]' A=abc; export HOLE A; bash -c \"printf %%s \"%s 2>&1", quoted);
                const char *argv[] = {"/bin/sh", "-c", full, NULL};
                CLEANUP_BUF struct buf out = {};
                struct error err = {};

                assert_int_equal(subprocess_run(argv, &out, &err), 0);
                assert_string_equal(buf_str(&out), values[i]);
        }
}

/* What bash keeps as integers evaluates what is assigned. */
static void no_assignment_runs_a_command(void **state)
{
        const char *const list[] = {"/bin/bash", "-c", "compgen -v", NULL};
        CLEANUP_BUF struct buf names = {};
        char *save = NULL;

        (void)state;
        assert_int_equal(subprocess_run(list, &names, NULL), 0);
        for (char *name = strtok_r(names.data, "\n", &save); name; name = strtok_r(NULL, "\n", &save)) {
                /* Warnings (that there is no such locale) may quote the value, but not what it comes to. */
                CLEANUP_FREE char *script = xasprintf("V='B[$(expr 6 \\* 7 >&2)]'; { export %s=\"$V\"; } 2>&1", name);
                const char *argv[] = {"/bin/bash", "-c", script, NULL};
                CLEANUP_BUF struct buf out = {};

                if (!shell_assignable(name))
                        continue;
                if (subprocess_run(argv, &out, NULL) < 0 || strstr(buf_str(&out), "42"))
                        fail_msg("%s: %s", name, buf_str(&out));
        }
}

/* Each start is looked at once: no quadratic or exponential search for its end. */
static void nesting_is_bounded(void **state)
{
        struct buf b = {};
        CLEANUP_FREE char *word = NULL, *value = NULL;

        (void)state;
        for (int i = 0; i < 20000; i++)
                buf_adds(&b, "${A:-");
        buf_addc(&b, '}');
        value = buf_steal(&b);
        word = shell_expandable(value);
        assert_true(strlen(word) > strlen(value));
}

static void knows_what_expands(void **state)
{
        (void)state;
        assert_true(shell_expands("a$B"));
        assert_true(shell_expands("$5 ${B}"));
        assert_false(shell_expands("plain"));
        assert_false(shell_expands("$(id) `x` $5 $"));
}

static void knows_what_can_be_assigned(void **state)
{
        (void)state;
        assert_true(shell_assignable("PATH"));
        assert_true(shell_assignable("_x9"));
        assert_false(shell_assignable("UID"));
        assert_false(shell_assignable("a.b"));
        assert_false(shell_assignable("9a"));
        assert_false(shell_assignable(""));
        assert_false(shell_assignable("a;id"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(quoting_is_literal), cmocka_unit_test(only_names_expand),
                cmocka_unit_test(words_with_literals_expand_alike), cmocka_unit_test(no_value_runs_a_command),
                cmocka_unit_test(no_assignment_runs_a_command), cmocka_unit_test(nesting_is_bounded),
                cmocka_unit_test(knows_what_expands), cmocka_unit_test(knows_what_can_be_assigned),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
