/* What builds report, as the records show it: log lines before the end, results, cancelled builds that go on talking. The
 * queue is played here: its functions take down what they are called with. */
#include "../store/temporary.h"

#include <unistd.h>

#include "api/templates-internal.h"
#include "base/str.h"

static char *submitted, *cancelled;
static int submit_result;
static void (*on_submit)(const struct build_job *job);

void build_job_free(struct build_job *job)
{
        if (!job)
                return;
        if (job->parent) {
                free(job->parent->build_id);
                free(job->parent->dir);
                free(job->parent->context.user);
                json_decref(job->parent->context.env);
                json_decref(job->parent->image_env);
                free(job->parent->start_context.user);
                json_decref(job->parent->start_context.env);
                free(job->parent);
        }
        build_plan_free(&job->plan);
        free(job->build_id);
        free(job->template_id);
        free(job->team_slug);
        free(job);
}

int build_queue_submit(struct build_queue *q, struct build_job *job, struct error *err)
{
        (void)q;
        if (on_submit)
                on_submit(job);
        free(submitted);
        submitted = xstrdup(job->build_id);
        build_job_free(job);
        return submit_result < 0 ? error_set(err, ERROR_UNAVAILABLE, "no room") : 0;
}

void build_queue_cancel(struct build_queue *q, const char *build_id)
{
        (void)q;
        free(cancelled);
        cancelled = xstrdup(build_id);
}

/* A plan is its parent here. */
int build_plan_parse(const json_t *body, struct build_plan *ret, struct error *err)
{
        (void)err;
        *ret = (struct build_plan){ .from_template = xstrdup(json_str(body, "fromTemplate")) };
        return 0;
}

void build_plan_free(struct build_plan *p)
{
        free(p->from_template);
}

int build_plan_check_uploads(const struct build_plan *p, const char *dir, size_t *ret_step, struct error *err)
{
        (void)p;
        (void)dir;
        (void)ret_step;
        (void)err;
        return 0;
}

int build_template_version(const char *user_agent, int *ret, struct error *err)
{
        (void)user_agent;
        (void)err;
        *ret = 21;
        return 0;
}

struct world {
        struct temporary *t;
        struct team *team;
        struct template_service *service;
        struct build_events events;
        struct registered g;
};

static struct world world_new(void **state)
{
        struct temporary *t = *state;
        unsigned char secret[SECRET_LEN] = { 1 };
        struct template_settings settings = { .records = t->records, .data_dir = t->dir, .public_url = "http://h/", .root_secret = secret,
                                              .node = "n1" };
        struct world w = { .t = t, .team = temporary_team(t, "acme", false) };
        struct error err;

        assert_int_equal(template_service_new(&settings, &w.service, &err), 0);
        template_service_set_queue(w.service, (struct build_queue *)w.service);
        w.events = template_service_events(w.service);
        assert_int_equal(temporary_register(t, w.team, "web", "v1", &w.g, &err), 0);
        assert_int_equal(records_build_start(t->records, w.g.build->id, &err), 0);
        return w;
}

static void world_free(struct world *w)
{
        template_service_free(w->service);
        registered_free(&w->g);
        team_free(w->team);
}

/* All lines joined by "|". */
static void log_is(struct world *w, const char *expected)
{
        struct log_entry *entries;
        CLEANUP_BUF struct buf b = {};
        struct error err;
        size_t count;

        assert_int_equal(records_log_read(w->t->records, w->g.build->id, 0, 0, 100, &entries, &count, &err), 0);
        for (size_t i = 0; i < count; i++)
                buf_addf(&b, "%s%s", i ? "|" : "", entries[i].message);
        assert_string_equal(buf_str(&b), expected);
        log_entries_free(entries, count);
}

static struct build_record *build_of(struct world *w)
{
        struct build_record *b;
        struct error err;

        assert_int_equal(records_build_get(w->t->records, w->g.build->id, &b, &err), 0);
        return b;
}

static void ready(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        struct build_job job = { .build_id = w.g.build->id, .template_version = 21 };
        struct build_outcome outcome = { .context = { (char *)"bob", (char *)"/app", json_pack("{s:s}", "A", "1") },
                                         .start_context = { (char *)"user", NULL, json_object() },
                                         .start_cmd = (char *)"run", .envd_version = (char *)"0.5.20", .disk_bytes = 5 };
        struct build_record *b;
        struct error err;

        w.events.log(w.events.data, w.g.build->id, 1, "base", "one");
        w.events.log(w.events.data, w.g.build->id, 1, NULL, "Build finished");
        assert_int_equal(w.events.ready(w.events.data, &job, &outcome, &err), 0);
        log_is(&w, "one|Build finished");
        b = build_of(&w);
        assert_int_equal(b->state, BUILD_READY);
        assert_string_equal(b->default_user, "bob");
        assert_string_equal(b->workdir, "/app");
        assert_string_equal(b->node, "n1");
        assert_string_equal(json_str(b->start_context, "user"), "user");
        build_record_free(b);
        json_decref(outcome.context.env);
        json_decref(outcome.start_context.env);
}

/* Sandboxes of version 2.0 run as `user` at home; children still get the context. */
static void ready_old_version(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        struct build_job job = { .build_id = w.g.build->id, .template_version = 20 };
        struct build_outcome outcome = { .context = { (char *)"root", (char *)"/app", NULL } };
        struct build_record *b;
        struct error err;

        assert_int_equal(w.events.ready(w.events.data, &job, &outcome, &err), 0);
        b = build_of(&w);
        assert_string_equal(b->default_user, "user");
        assert_null(b->workdir);
        assert_string_equal(b->context_workdir, "/app");
        build_record_free(b);
}

static void failed(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        struct build_record *b;

        w.events.log(w.events.data, w.g.build->id, 3, NULL, "Build failed: x");
        w.events.failed(w.events.data, w.g.build->id, "x", "2");
        log_is(&w, "Build failed: x");
        b = build_of(&w);
        assert_int_equal(b->state, BUILD_ERROR);
        assert_string_equal(b->reason, "x");
        assert_string_equal(b->reason_step, "2");
        build_record_free(b);
}

static void cancels(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        struct build_job *job = xcalloc(1, sizeof(*job)), late = { .build_id = w.g.build->id, .template_version = 21 };
        struct build_outcome outcome = {};
        struct build_record *b;
        struct error err;

        job->build_id = xstrdup(w.g.build->id);
        assert_int_equal(keeper_submit(w.service, job, &err), 0);
        assert_string_equal(submitted, w.g.build->id);
        w.events.log(w.events.data, w.g.build->id, 1, "1", "working");
        assert_int_equal(keeper_cancel(w.service, w.g.build->id, &err), 0);
        assert_string_equal(cancelled, w.g.build->id);
        b = build_of(&w);
        assert_int_equal(b->state, BUILD_ERROR);
        assert_string_equal(b->reason, BUILD_REASON_CANCELLED);
        assert_null(b->reason_step);
        build_record_free(b);
        /* The worker notices later; nothing of that shows, and it cannot become ready any more. */
        w.events.log(w.events.data, w.g.build->id, 3, NULL, "Build failed: build was cancelled");
        assert_true(w.events.ready(w.events.data, &late, &outcome, &err) < 0);
        w.events.failed(w.events.data, w.g.build->id, "other", "1");
        log_is(&w, "working|Build failed: build was cancelled");
}

/* Cancelled, or its template deleted, after the trigger and before the queue has it: it never gets there. */
static void cancelled_before_the_queue(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);

        for (int held = 0; held < 2; held++) {
                struct build_job *job = xcalloc(1, sizeof(*job));
                struct build_record *b;
                struct error err;

                if (held)
                        keeper_hold(w.service, w.g.build->id, "parent");
                assert_int_equal(keeper_cancel(w.service, w.g.build->id, &err), 0);
                free(submitted);
                submitted = NULL;
                job->build_id = xstrdup(w.g.build->id);
                assert_int_equal(keeper_submit(w.service, job, &err), 0);
                assert_null(submitted);
                assert_false(template_service_builds_on(w.service, "parent"));
                b = build_of(&w);
                assert_string_equal(b->reason, BUILD_REASON_CANCELLED);
                build_record_free(b);
        }
}

static struct world *parent_world;
static bool held_at_submit;

/* The parent's template is deleted in the last moment in which the queue does not know the child yet. */
static void delete_parent(const struct build_job *job)
{
        struct build_record *b;
        struct error err;
        char **builds;

        assert_int_equal(records_build_get(parent_world->t->records, job->parent->build_id, &b, &err), 0);
        assert_int_equal(records_template_delete(parent_world->t->records, b->template_id, &builds, &err), 0);
        name_list_free(builds);
        build_record_free(b);
        held_at_submit = template_service_builds_on(parent_world->service, job->parent->build_id);
}

/* The answer's status is checked; the build's ID, which the caller frees. */
static char *trigger_child(struct world *w, const char *alias, const char *parent)
{
        CLEANUP_JSON json_t *body = json_pack("{s:s}", "fromTemplate", parent);
        struct http_request http = {};
        struct api_request request = { .http = &http, .json = body, .team = w->team };
        struct api_response response = {};
        struct registered g = {};
        struct error err;
        char *id;

        assert_int_equal(temporary_register(w->t, w->team, alias, "v1", &g, &err), 0);
        request.params[0] = g.template->id;
        request.params[1] = g.build->id;
        assert_int_equal(templates_trigger(w->service, &request, &response, &err), 0);
        assert_int_equal(response.status, 202);
        id = xstrdup(g.build->id);
        registered_free(&g);
        return id;
}

/* Housekeeping never finds the parent of a build unused: not between its resolution and the queue, nor until the build has ended. */
static void parent_is_held(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        CLEANUP_FREE char *parent = temporary_ready(w.t, w.team, "parent", "v1"), *child = NULL, *late = NULL;
        struct build_record *b;
        struct error err;

        parent_world = &w;
        on_submit = delete_parent;
        child = trigger_child(&w, "child", "parent");
        on_submit = NULL;
        assert_string_equal(submitted, child);
        assert_true(held_at_submit);
        assert_int_equal(keeper_cancel(w.service, child, &err), 0);
        assert_true(template_service_builds_on(w.service, parent)); /* its VM still runs */
        w.events.failed(w.events.data, child, "build was cancelled", NULL);
        assert_false(template_service_builds_on(w.service, parent));

        late = trigger_child(&w, "late", "parent");
        assert_int_equal(records_build_get(w.t->records, late, &b, &err), 0);
        assert_string_equal(b->reason, "template 'parent' not found");
        assert_string_equal(b->reason_step, "base");
        build_record_free(b);
}

static void submit_fails(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        struct build_job *job = xcalloc(1, sizeof(*job));
        struct build_record *b;
        struct error err;

        job->build_id = xstrdup(w.g.build->id);
        submit_result = -1;
        assert_int_equal(keeper_submit(w.service, job, &err), 0);
        submit_result = 0;
        b = build_of(&w);
        assert_int_equal(b->state, BUILD_ERROR);
        assert_string_equal(b->reason, "no room");
        build_record_free(b);
        log_is(&w, "Build failed: no room");
}

/* Without any end the thread brings the lines to the store. */
static void flushes_by_itself(void **state)
{
        CLEANUP(world_free) struct world w = world_new(state);
        size_t count = 0;

        w.events.log(w.events.data, w.g.build->id, 1, NULL, "hello");
        for (int i = 0; count == 0 && i < 1000; i++) { /* a hang guard, not a limit */
                struct log_entry *entries;
                struct error err;

                usleep(20000);
                assert_int_equal(records_log_read(w.t->records, w.g.build->id, 0, 0, 10, &entries, &count, &err), 0);
                log_entries_free(entries, count);
        }
        log_is(&w, "hello");
}

static void cleans_uploads(void **state)
{
        struct temporary *t = *state;
        CLEANUP_FREE char *dir = xasprintf("%s/files/acme", t->dir), *partial = xasprintf("%s/.upload-x", dir),
                          *whole = xasprintf("%s/abc", dir);
        struct error err;

        assert_int_equal(dir_make(dir, 0700, &err), 0);
        assert_int_equal(file_write_atomic(partial, "x", 1, 0600, &err), 0);
        assert_int_equal(file_write_atomic(whole, "x", 1, 0600, &err), 0);
        CLEANUP(world_free) struct world w = world_new(state);
        assert_false(path_exists(partial));
        assert_true(path_exists(whole));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(ready), TEST(ready_old_version), TEST(failed), TEST(cancels), TEST(cancelled_before_the_queue), TEST(parent_is_held), TEST(submit_fails), TEST(flushes_by_itself),
                TEST(cleans_uploads),
        };
        int r = cmocka_run_group_tests(tests, NULL, NULL);

        free(submitted);
        free(cancelled);
        return r;
}
