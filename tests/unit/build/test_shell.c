#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/subprocess.h"
#include "build/shell.h"

/* What /bin/sh makes of the word, with A=1 and nothing else set. */
static char *in_shell(const char *word)
{
        CLEANUP_FREE char *script = xasprintf("unset NONE; A=1; printf %%s %s", word);
        const char *argv[] = {"/bin/sh", "-c", script, NULL};
        struct buf out = {};
        struct error err = {};

        if (subprocess_run(argv, &out, &err) < 0)
                fail_msg("%s: %s", word, err.message);
        return buf_steal(&out);
}

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
                {"-----BEGIN KEY-----\nabc\n-----END KEY-----\n", "-----BEGIN KEY-----\nabc\n-----END KEY-----\n"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                CLEANUP_FREE char *word = shell_expandable(cases[i].value), *got = in_shell(word);

                if (strcmp(got, cases[i].expected))
                        fail_msg("'%s' became '%s'", cases[i].value, got);
        }
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
                cmocka_unit_test(knows_what_expands), cmocka_unit_test(knows_what_can_be_assigned),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
