/* Names and tags: template-api 15.1 line by line, and every byte in every position. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "store/names.h"

static void good(const char *text, const char *namespace_, const char *alias, const char *tag, bool explicit_default)
{
        struct name_ref n = {};
        struct error err = {};

        assert_int_equal(name_parse(text, &n, &err), 0);
        assert_true(streq(n.namespace_, namespace_));
        assert_string_equal(n.alias, alias);
        assert_true(streq(n.tag, tag));
        assert_int_equal(n.explicit_default, explicit_default);
        name_ref_clear(&n);
}

static void bad(const char *text, const char *message)
{
        struct name_ref n = {};
        struct error err = {};

        assert_int_equal(name_parse(text, &n, &err), -22);
        assert_int_equal(err.kind, ERROR_INVALID);
        assert_string_equal(err.message, message);
        assert_null(n.alias);
}

static void parses(void **state)
{
        (void)state;
        good("My-Template:Prod", NULL, "my-template", "prod", false);
        good("  my-template  :  v1  ", NULL, "my-template", "v1", false);
        good("x:default", NULL, "x", NULL, true);
        good("x:DEFAULT", NULL, "x", NULL, true);
        good("x", NULL, "x", NULL, false);
        good("acme/x:v1", "acme", "x", "v1", false);
        good(" Acme / X : V1.0_x-y ", "acme", "x", "v1.0_x-y", false);
        good("_/-", "_", "-", NULL, false);
        good("x:550e8400-e29b-41d4-a716-446655440000", NULL, "x", "550e8400-e29b-41d4-a716-446655440000", false);
        good("x:a.b", NULL, "x", "a.b", false);
}

static void refuses(void **state)
{
        (void)state;
        bad("", "invalid template ID: ");
        bad("   ", "invalid template ID: ");
        bad("x:", "invalid tag: ");
        bad(":v1", "invalid template ID: ");
        bad("/x", "invalid namespace: ");
        bad("x/", "invalid template ID: ");
        bad("a/b/c", "invalid template ID: b/c");
        bad("x:v1:v2", "invalid tag: v1:v2");
        bad("my template!", "invalid template ID: my template!");
        bad("web.v1", "invalid template ID: web.v1");
        bad("A b/x", "invalid namespace: A b");
        bad("x:v 1", "invalid tag: v 1");
        bad("w\xc3\xa9"
            "b",
            "invalid template ID: w\xc3\xa9"
            "b");
        bad("w\xff", "invalid template ID: w\xef\xbf\xbd");
        bad("a!/b!:c!", "invalid tag: c!");
}

static char *repeat(char c, size_t n)
{
        char *s = xmalloc(n + 1);

        memset(s, c, n);
        s[n] = '\0';
        return s;
}

static void limits_length(void **state)
{
        char *longest = repeat('a', NAME_PART_MAX), *longer = repeat('a', NAME_PART_MAX + 1), *huge = repeat('a', 100000);
        struct name_ref n = {};
        struct error err = {};

        (void)state;
        good(longest, NULL, longest, NULL, false);
        assert_true(name_parse(longer, &n, &err) < 0);
        assert_true(name_parse(huge, &n, &err) < 0);
        assert_true(strlen(err.message) < 400);
        assert_false(name_is_tag(longer));
        assert_true(name_is_tag(longest));
        free(longest);
        free(longer);
        free(huge);
}

/* Every byte as a one-letter part, alone, in front, in the middle and at the end. */
static void every_byte(void **state)
{
        (void)state;
        for (int c = 1; c < 256; c++) {
                bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
                bool upper = c >= 'A' && c <= 'Z';
                char one[2] = { (char)c, 0 }, middle[4] = { 'a', (char)c, 'a', 0 }, tagged[5] = { 'x', ':', 'a', (char)c, 0 };
                struct name_ref n = {};

                assert_int_equal(name_is_alias(one), plain);
                assert_int_equal(name_is_tag(one), plain || c == '.');
                assert_int_equal(name_is_alias(middle), plain);
                assert_int_equal(name_parse(middle, &n, NULL) == 0, plain || upper || c == '/' || c == ':');
                name_ref_clear(&n);
                n = (struct name_ref){};
                assert_int_equal(name_parse(tagged, &n, NULL) == 0, plain || upper || c == '.' || strchr(" \t\n\r\v\f", c) != NULL);
                name_ref_clear(&n);
        }
}

static void template_ids(void **state)
{
        (void)state;
        assert_true(name_is_template_id("k3v9q0m2x7c1b8n4d5f6"));
        assert_false(name_is_template_id("k3v9q0m2x7c1b8n4d5f"));
        assert_false(name_is_template_id("k3v9q0m2x7c1b8n4d5f66"));
        assert_false(name_is_template_id("K3v9q0m2x7c1b8n4d5f6"));
        assert_false(name_is_template_id("k3v9q0m2x7c1b8n4d5-6"));
}

static void collects_tags(void **state)
{
        const char *raw[] = { "stable", "V1", " stable " };
        struct error err = {};
        char **tags;

        (void)state;
        assert_int_equal(name_tags_collect("v1", raw, 3, &tags, &err), 0);
        assert_string_equal(tags[0], "v1");
        assert_string_equal(tags[1], "stable");
        assert_null(tags[2]);
        name_list_free(tags);
        assert_int_equal(name_tags_collect(NULL, NULL, 0, &tags, &err), 0);
        assert_string_equal(tags[0], "default");
        assert_null(tags[1]);
        name_list_free(tags);
}

static void refuses_tags(void **state)
{
        const char *const wrong[] = { "", "a b", "v1!", ":x", "web:" };
        const char *uuid[] = { "550E8400-e29b-41d4-a716-446655440000" };
        const char *many[NAME_TAGS_MAX + 1];
        char text[NAME_TAGS_MAX + 1][8];
        struct error err = {};
        char **tags;

        (void)state;
        for (size_t i = 0; i < 5; i++) {
                assert_true(name_tags_collect(NULL, &wrong[i], 1, &tags, &err) < 0);
                assert_true(str_starts(err.message, "invalid tag: "));
        }
        assert_true(name_tags_collect(NULL, uuid, 1, &tags, &err) < 0);
        assert_string_equal(err.message, "tag cannot be a UUID");
        for (int i = 0; i <= NAME_TAGS_MAX; i++) {
                snprintf(text[i], sizeof(text[i]), "t%d", i);
                many[i] = text[i];
        }
        assert_true(name_tags_collect(NULL, many, NAME_TAGS_MAX + 1, &tags, &err) < 0);
        assert_int_equal(name_tags_collect(NULL, many, NAME_TAGS_MAX, &tags, &err), 0);
        name_list_free(tags);
}

static void overlaps(void **state)
{
        char *a[] = { (char *)"x", (char *)"y", NULL }, *b[] = { (char *)"y", NULL }, *c[] = { (char *)"z", NULL };

        (void)state;
        assert_true(name_lists_overlap(a, b));
        assert_false(name_lists_overlap(a, c));
        assert_false(name_lists_overlap(a, NULL));
}

static void slug(const char *name, const char *expected)
{
        char *s = name_slug(name);

        assert_string_equal(s, expected);
        assert_true(name_is_alias(s));
        free(s);
}

static void slugs(void **state)
{
        (void)state;
        slug("Acme Inc.", "acme-inc");
        slug("  x  y ", "x-y");
        slug("\xc3\xa9", "team");
        slug("", "team");
        slug("a_b-c", "a_b-c");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(parses),        cmocka_unit_test(refuses),      cmocka_unit_test(limits_length),
                cmocka_unit_test(every_byte),    cmocka_unit_test(template_ids), cmocka_unit_test(collects_tags),
                cmocka_unit_test(refuses_tags),  cmocka_unit_test(overlaps),     cmocka_unit_test(slugs),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
