/* Which reference means which build, for whom (template-api 15.3-15.6). */
#include "temporary.h"

#include "base/str.h"

struct world {
        struct temporary *t;
        struct team *acme, *globex, *sys;
};

static struct world world_new(void **state)
{
        struct temporary *t = *state;

        return (struct world){ t, temporary_team(t, "acme", false), temporary_team(t, "globex", false), temporary_team(t, "sys", true) };
}

static void world_free(struct world *w)
{
        team_free(w->acme);
        team_free(w->globex);
        team_free(w->sys);
}

static void means(struct world *w, const struct team *team, const char *reference, const char *build_id)
{
        struct template_record *template;
        struct build_record *build;
        struct error err = {};

        assert_int_equal(records_resolve(w->t->records, team, reference, &template, &build, &err), 0);
        assert_string_equal(build->id, build_id);
        assert_string_equal(build->template_id, template->id);
        template_record_free(template);
        build_record_free(build);
}

static void fails(struct world *w, const struct team *team, const char *reference, enum error_kind kind, const char *message)
{
        struct template_record *template;
        struct build_record *build;
        struct error err = {};

        assert_true(records_resolve(w->t->records, team, reference, &template, &build, &err) < 0);
        assert_int_equal(err.kind, kind);
        assert_string_equal(err.message, message);
}

static char *template_of(struct world *w, const char *build_id)
{
        struct build_record *b;
        struct error err;
        char *id;

        assert_int_equal(records_build_get(w->t->records, build_id, &b, &err), 0);
        id = xstrdup(b->template_id);
        build_record_free(b);
        return id;
}

static void publish(struct world *w, const char *build_id, bool public_)
{
        char *id = template_of(w, build_id);
        struct error err;

        assert_int_equal(records_template_publish(w->t->records, id, public_, &err), 0);
        free(id);
}

static void own_references(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        char *v1 = temporary_ready(w.t, w.acme, "web", "v1"), *id = template_of(&w, v1);
        char *with_tag = xasprintf("%s:v1", id), *with_build = xasprintf("web:%s", v1), *v2;

        means(&w, w.acme, "web:v1", v1);
        means(&w, w.acme, "Acme/Web:V1", v1);
        means(&w, w.acme, "web", v1); /* no default: the latest ready one */
        means(&w, w.acme, "web:default", v1);
        means(&w, w.acme, id, v1);
        means(&w, w.acme, with_tag, v1);
        means(&w, w.acme, with_build, v1);
        fails(&w, w.acme, "web:nope", ERROR_NOT_FOUND, "tag 'nope' does not exist for template 'web'");
        fails(&w, w.acme, "acme/web:nope", ERROR_NOT_FOUND, "tag 'nope' does not exist for template 'acme/web'");
        fails(&w, w.acme, "nope", ERROR_NOT_FOUND, "template 'nope' not found");
        fails(&w, w.acme, "acme/nope", ERROR_NOT_FOUND, "template 'acme/nope' not found");
        fails(&w, w.acme, "web!", ERROR_INVALID, "Invalid template reference: invalid template ID: web!");
        v2 = temporary_ready(w.t, w.acme, "web", "v2");
        means(&w, w.acme, "web", v2);
        free(v2);
        v2 = temporary_ready(w.t, w.acme, "web", "default");
        free(temporary_ready(w.t, w.acme, "web", "v3"));
        means(&w, w.acme, "web", v2); /* default wins over later ones */
        free(v1);
        free(v2);
        free(id);
        free(with_tag);
        free(with_build);
}

static void explicit_namespace_takes_no_id(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        char *build = temporary_ready(w.t, w.acme, "web", "v1"), *id = template_of(&w, build), *reference = xasprintf("acme/%s", id),
             *message = xasprintf("template '%s' not found", reference);

        fails(&w, w.acme, reference, ERROR_NOT_FOUND, message);
        free(build);
        free(id);
        free(reference);
        free(message);
}

/* Item 178 of template-api 18: an ID wins over an alias that looks like it. IDs are drawn at random, so the template with the ID
 * of the alias is a copy of another's record. */
static void id_wins_over_alias(void **state)
{
        static const char id[] = "k3v9q0m2x7c1b8n4d5f6";
        CLEANUP(world_free) struct world w = world_new(state);
        char *of_alias = temporary_ready(w.t, w.acme, id, "v1"), *of_web = temporary_ready(w.t, w.acme, "web", "v1"), *web = template_of(&w, of_web);
        char *from = xasprintf("template/%s", web), *to = xasprintf("template/%s", id), *tagged = xasprintf("acme/%s:v1", id);
        struct template_record *t = NULL;
        struct store_value v;
        struct name_ref n = {};
        struct error err;
        json_t *j;

        means(&w, w.acme, id, of_alias);
        assert_int_equal(store_get(w.t->store, from, &v, &err), 0);
        j = json_loads(v.data, 0, NULL);
        json_object_set_new(j, "id", json_string(id));
        free(v.data);
        v.data = json_dumps(j, 0);
        assert_int_equal(store_put(w.t->store, to, v.data, strlen(v.data), &err), 0);
        assert_int_equal(name_parse(id, &n, &err), 0);
        assert_int_equal(records_template_find(w.t->records, w.acme, &n, &t, &err), 0);
        assert_string_equal(t->id, id);
        assert_string_equal(t->aliases[0], "web");
        means(&w, w.acme, tagged, of_alias); /* with a namespace it can only be the alias */
        name_ref_clear(&n);
        template_record_free(t);
        json_decref(j);
        store_value_free(&v);
        free(of_alias);
        free(of_web);
        free(web);
        free(from);
        free(to);
        free(tagged);
}

static void foreign_references(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        char *build = temporary_ready(w.t, w.acme, "web", "v1"), *id = template_of(&w, build);
        char *message = xasprintf("you don't have access to template '%s'", id);

        fails(&w, w.globex, "acme/web", ERROR_FORBIDDEN, "you don't have access to template 'acme/web'");
        fails(&w, w.globex, id, ERROR_FORBIDDEN, message);
        fails(&w, w.globex, "web", ERROR_NOT_FOUND, "template 'web' not found");
        publish(&w, build, true);
        means(&w, w.globex, "acme/web", build);
        means(&w, w.globex, id, build);
        fails(&w, w.globex, "web", ERROR_NOT_FOUND, "template 'web' not found"); /* an ordinary team owns no bare alias */
        publish(&w, build, false);
        fails(&w, w.globex, "acme/web", ERROR_FORBIDDEN, "you don't have access to template 'acme/web'");
        free(build);
        free(id);
        free(message);
}

static void bare_aliases(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        char *base = temporary_ready(w.t, w.sys, "base", "default"), *own;
        struct error err;

        fails(&w, w.acme, "base", ERROR_NOT_FOUND, "template 'base' not found");
        publish(&w, base, true);
        means(&w, w.acme, "base", base);
        means(&w, w.acme, "sys/base", base);
        own = temporary_ready(w.t, w.acme, "base", "default");
        means(&w, w.acme, "base", own); /* one's own shadows it */
        means(&w, w.globex, "base", base);
        publish(&w, base, false);
        fails(&w, w.globex, "base", ERROR_NOT_FOUND, "template 'base' not found");
        fails(&w, w.globex, "sys/base", ERROR_FORBIDDEN, "you don't have access to template 'sys/base'");
        publish(&w, base, true);
        w.sys->system = false;
        assert_int_equal(records_team_update(w.t->records, w.sys, &err), 0);
        fails(&w, w.globex, "base", ERROR_NOT_FOUND, "template 'base' not found");
        w.sys->system = true;
        assert_int_equal(records_team_update(w.t->records, w.sys, &err), 0);
        means(&w, w.globex, "base", base);
        free(base);
        free(own);
}

static void bare_alias_stays_with_its_holder(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        struct team *second = temporary_team(w.t, "second", true);
        char *first_base = temporary_ready(w.t, w.sys, "base", "default"), *second_base = temporary_ready(w.t, second, "base", "default");
        char *id = template_of(&w, first_base), **builds;
        struct error err;

        publish(&w, first_base, true);
        publish(&w, second_base, true);
        means(&w, w.acme, "base", first_base);
        publish(&w, second_base, false);
        means(&w, w.acme, "base", first_base);
        assert_int_equal(records_template_delete(w.t->records, id, &builds, &err), 0);
        name_list_free(builds);
        fails(&w, w.acme, "base", ERROR_NOT_FOUND, "template 'base' not found");
        publish(&w, second_base, true);
        means(&w, w.acme, "base", second_base);
        free(first_base);
        free(second_base);
        free(id);
        team_free(second);
}

static void tags_move_when_ready(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        char *first = temporary_ready(w.t, w.acme, "web", "v1");
        struct registered g = {}, failing = {};
        struct error err;

        assert_int_equal(temporary_register(w.t, w.acme, "web", "v1", &g, &err), 0);
        means(&w, w.acme, "web:v1", first);
        temporary_finish(w.t, g.build->id);
        means(&w, w.acme, "web:v1", g.build->id);
        assert_int_equal(temporary_register(w.t, w.acme, "web", "v1", &failing, &err), 0);
        assert_int_equal(records_build_start(w.t->records, failing.build->id, &err), 0);
        assert_int_equal(records_build_fail(w.t->records, failing.build->id, "no", "1", &err), 0);
        means(&w, w.acme, "web:v1", g.build->id);
        registered_free(&g);
        registered_free(&failing);
        free(first);
}

static void without_ready_build(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        struct registered g = {};
        char *by_build;
        struct error err;

        assert_int_equal(temporary_register(w.t, w.acme, "web", "v1", &g, &err), 0);
        by_build = xasprintf("web:%s", g.build->id);
        fails(&w, w.acme, "web", ERROR_NOT_FOUND, "tag 'default' does not exist for template 'web'");
        fails(&w, w.acme, "web:v1", ERROR_NOT_FOUND, "tag 'v1' does not exist for template 'web'");
        assert_true(records_resolve(w.t->records, w.acme, by_build, &(struct template_record *){ NULL }, &(struct build_record *){ NULL },
                                    &err) < 0);
        free(by_build);
        registered_free(&g);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(own_references), TEST(explicit_namespace_takes_no_id), TEST(id_wins_over_alias), TEST(foreign_references), TEST(bare_aliases),
                TEST(bare_alias_stays_with_its_holder), TEST(tags_move_when_ready), TEST(without_ready_build),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
