/* Random operations on builds and tags against a simple model in arrays; every answer and, at the end, every tag and state
 * must agree. The seed is printed, so that a failure can be run again. */
#include "temporary.h"

#include <stdio.h>
#include <time.h>

#include "base/str.h"

#define STEPS 400
#define ALIASES 3
#define TAGS 3
#define BUILDS_MAX (STEPS + 1)

struct model_build {
        char *id;
        int template; /* index into templates */
        int tag;
        enum build_state state;
};

struct model {
        struct temporary *t;
        struct team *team;
        char *templates[STEPS]; /* IDs */
        bool deleted[STEPS];
        int template_count;
        int of_alias[ALIASES]; /* template or -1 */
        struct model_build builds[BUILDS_MAX];
        int build_count;
        int tags[STEPS][TAGS]; /* build or -1 */
        int latest[STEPS];
};

static const char *const alias_names[] = { "web", "api", "db" };
static const char *const tag_names[] = { "default", "v1", "v2" };

static int active_count(const struct model *m, int except_template, int except_tag)
{
        int n = 0;

        for (int i = 0; i < m->build_count; i++) {
                const struct model_build *b = &m->builds[i];

                n += b->state <= BUILD_BUILDING && !(b->template == except_template && b->tag == except_tag);
        }
        return n;
}

static int add_template(struct model *m, const char *id)
{
        int n = m->template_count++;

        m->templates[n] = xstrdup(id);
        m->latest[n] = -1;
        for (int i = 0; i < TAGS; i++)
                m->tags[n][i] = -1;
        return n;
}

static void step_register(struct model *m)
{
        int alias = rand() % ALIASES, tag = rand() % TAGS, template = m->of_alias[alias];
        bool allowed = active_count(m, template, tag) < (int)m->team->max_concurrent_builds;
        struct registered g = {};
        struct error err;
        int r = temporary_register(m->t, m->team, alias_names[alias], tag_names[tag], &g, &err);

        assert_int_equal(r, allowed ? 0 : -EDQUOT);
        if (!allowed)
                return;
        if (template < 0)
                m->of_alias[alias] = template = add_template(m, g.template->id);
        assert_string_equal(g.template->id, m->templates[template]);
        for (int i = 0; i < m->build_count; i++)
                if (m->builds[i].template == template && m->builds[i].tag == tag && m->builds[i].state == BUILD_WAITING)
                        m->builds[i].state = BUILD_ERROR;
        m->builds[m->build_count++] = (struct model_build){ xstrdup(g.build->id), template, tag, BUILD_WAITING };
        registered_free(&g);
}

static void step_start(struct model *m, struct model_build *b)
{
        struct error err;
        int r = records_build_start(m->t->records, b->id, &err);

        assert_int_equal(r, b->state == BUILD_WAITING ? 0 : -EBUSY);
        if (r == 0)
                b->state = BUILD_BUILDING;
}

static void step_ready(struct model *m, struct model_build *b)
{
        struct build_record result = { .id = b->id };
        struct error err;
        int r = records_build_ready(m->t->records, &result, &err);

        assert_int_equal(r, b->state == BUILD_BUILDING ? 0 : -EBUSY);
        if (r < 0)
                return;
        b->state = BUILD_READY;
        m->tags[b->template][b->tag] = m->latest[b->template] = (int)(b - m->builds);
}

static void step_fail(struct model *m, struct model_build *b)
{
        struct error err;

        assert_int_equal(records_build_fail(m->t->records, b->id, "no", NULL, &err), 0);
        if (b->state <= BUILD_BUILDING)
                b->state = BUILD_ERROR;
}

static void step_assign(struct model *m, struct model_build *b)
{
        int tag = rand() % TAGS;
        char *tags[] = { (char *)tag_names[tag], NULL };
        bool allowed = b->state == BUILD_READY && !m->deleted[b->template];
        struct error err;
        int r = records_tags_assign(m->t->records, m->templates[b->template], b->id, tags, &err);

        assert_int_equal(r, allowed ? 0 : -ENOENT);
        if (r == 0)
                m->tags[b->template][tag] = (int)(b - m->builds);
}

static void step_delete(struct model *m)
{
        int alias = rand() % ALIASES, template = m->of_alias[alias], expected = 0;
        struct error err;
        char **builds;

        if (template < 0)
                return;
        for (int i = 0; i < m->build_count; i++)
                if (m->builds[i].template == template && m->builds[i].state <= BUILD_BUILDING) {
                        m->builds[i].state = BUILD_ERROR;
                        expected++;
                }
        assert_int_equal(records_template_delete(m->t->records, m->templates[template], &builds, &err), 0);
        assert_int_equal(name_list_len(builds), expected);
        name_list_free(builds);
        m->deleted[template] = true;
        m->of_alias[alias] = -1;
}

static void check_reference(struct model *m, int alias, int tag)
{
        int template = m->of_alias[alias], expected = -1;
        char *reference = xasprintf("%s:%s", alias_names[alias], tag_names[tag]);
        struct template_record *t = NULL;
        struct build_record *b = NULL;
        struct error err;
        int r = records_resolve(m->t->records, m->team, reference, &t, &b, &err);

        if (template >= 0)
                expected = m->tags[template][tag] >= 0 || tag > 0 ? m->tags[template][tag] : m->latest[template];
        assert_int_equal(r, expected >= 0 ? 0 : -ENOENT);
        if (r == 0)
                assert_string_equal(b->id, m->builds[expected].id);
        template_record_free(t);
        build_record_free(b);
        free(reference);
}

static void check(struct model *m)
{
        struct error err;

        for (int i = 0; i < m->build_count; i++) {
                struct build_record *b;

                assert_int_equal(records_build_get(m->t->records, m->builds[i].id, &b, &err), 0);
                assert_int_equal(b->state, m->builds[i].state);
                build_record_free(b);
        }
        for (int alias = 0; alias < ALIASES; alias++)
                for (int tag = 0; tag < TAGS; tag++)
                        check_reference(m, alias, tag);
}

static void step(struct model *m)
{
        int what = rand() % 16;
        struct model_build *b = m->build_count > 0 ? &m->builds[rand() % m->build_count] : NULL;

        if (what < 5 || !b)
                step_register(m);
        else if (what < 9)
                step_start(m, b);
        else if (what < 12)
                step_ready(m, b);
        else if (what < 13)
                step_fail(m, b);
        else if (what < 15)
                step_assign(m, b);
        else
                step_delete(m);
}

static void agrees_with_model(void **state)
{
        struct model m = { .t = *state, .of_alias = { -1, -1, -1 } };
        const char *given = getenv("VMON_TEST_SEED");
        unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

        print_message("seed %u (VMON_TEST_SEED)\n", seed);
        srand(seed);
        m.team = temporary_team(m.t, "acme", false);
        m.team->max_concurrent_builds = 5;
        for (int i = 0; i < STEPS; i++) {
                step(&m);
                if (i % 50 == 49) {
                        temporary_reopen(m.t);
                        check(&m);
                }
        }
        for (int i = 0; i < m.build_count; i++)
                free(m.builds[i].id);
        for (int i = 0; i < m.template_count; i++)
                free(m.templates[i]);
        team_free(m.team);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(agrees_with_model, temporary_setup, temporary_teardown) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
