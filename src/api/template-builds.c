/* Starting a build and following it: trigger, status, logs (template-api 4.5-4.7).
 *
 * The trigger differs from upstream's order in one point: overlapping builds are cancelled after this one was found to be
 * startable, so that a refused trigger changes nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/templates-internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define LOG_PAGE 100

/* Trigger */

static int find_build(struct template_service *s, const struct team *team, const char *template_id, const char *build_id,
                      struct template_record **ret_template, struct build_record **ret_build, struct error *err)
{
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        int r = template_by_id(s, template_id, "Template '%s' not found", &t, err);

        if (r >= 0)
                r = records_build_get(s->records, build_id, &b, err);
        if (r < 0)
                return r;
        if (!streq(b->template_id, t->id))
                return error_set(err, ERROR_NOT_FOUND, "Build '%s' not found", build_id);
        if (!streq(t->team_id, team->id))
                return error_set(err, ERROR_FORBIDDEN, "User does not have access to the template");
        *ret_template = STEAL(t);
        *ret_build = STEAL(b);
        return 0;
}

static json_t *object_or_empty(json_t *j)
{
        return json_is_object(j) ? json_incref(j) : json_object();
}

static struct build_parent *parent_of(const struct template_service *s, const struct build_record *b)
{
        struct build_parent *p = xcalloc(1, sizeof(*p));
        const json_t *start = b->start_context;

        p->build_id = xstrdup(b->id);
        p->dir = xasprintf("%s/builds/%s", s->data_dir, b->id);
        p->context = (struct build_context){ xstrdup(b->context_user ? b->context_user : "user"), xstrdup_or_null(b->context_workdir),
                                             object_or_empty(b->env) };
        p->image_env = object_or_empty(b->image_env);
        p->start_cmd = xstrdup_or_null(b->start_cmd);
        p->ready_cmd = xstrdup_or_null(b->ready_cmd);
        p->start_context = (struct build_context){ xstrdup(json_str(start, "user") ? json_str(start, "user") : "user"),
                                                   xstrdup_or_null(json_str(start, "workdir")),
                                                   object_or_empty(json_object_get(start, "env")) };
        return p;
}

/* The parent is held as soon as it is known, and resolved again: had its template been deleted in between, housekeeping could have
 * found it unused. A reference that still resolves after the hold is safe. */
static int resolve_parent(struct template_service *s, const struct team *team, struct build_job *job, struct error *err)
{
        CLEANUP_FREE char *held = NULL;

        while (job->plan.from_template && !job->parent) {
                CLEANUP(cleanup_template) struct template_record *t = NULL;
                CLEANUP(cleanup_build) struct build_record *b = NULL;
                int r = records_resolve(s->records, team, job->plan.from_template, &t, &b, err);

                if (r != 0)
                        return r;
                if (held && streq(held, b->id)) {
                        job->parent = parent_of(s, b);
                        break;
                }
                keeper_hold(s, job->build_id, b->id);
                free(held);
                held = xstrdup(b->id);
        }
        return 0;
}

static void cleanup_job(struct build_job **j)
{
        build_job_free(*j);
}

static int cancel_overlapping(struct template_service *s, const char *build_id, struct error *err)
{
        char **ids;
        int r = records_build_overlapping(s->records, build_id, &ids, err);

        if (r < 0)
                return r;
        for (char **id = ids; r == 0 && *id; id++)
                r = keeper_cancel(s, *id, err);
        name_list_free(ids);
        return r;
}

/* From here on the client has its 202: what goes wrong is the build's own failure. */
static int launch(struct template_service *s, const struct team *team, struct build_job **job, struct error *err)
{
        struct error e = {};
        int r = cancel_overlapping(s, (*job)->build_id, &e);

        if (r == 0)
                r = resolve_parent(s, team, *job, &e);
        if (r != 0)
                return keeper_fail(s, (*job)->build_id, e.message, "base", err);
        return keeper_submit(s, STEAL(*job), err);
}

static struct build_job *new_job(const struct team *team, const struct build_record *b, int version)
{
        struct build_job *job = xcalloc(1, sizeof(*job));

        job->build_id = xstrdup(b->id);
        job->template_id = xstrdup(b->template_id);
        job->team_slug = xstrdup(team->slug);
        job->template_version = version;
        job->vcpus = b->vcpus;
        job->memory_mb = b->memory_mb;
        job->disk_mb = b->disk_mb;
        return job;
}

/* CONFLICT would be a 409; here it is the client's mistake (template-api 4.5). */
static int start(struct template_service *s, const char *build_id, struct error *err)
{
        int r = records_build_start(s->records, build_id, err);

        return r < 0 && err->kind == ERROR_CONFLICT ? error_set(err, ERROR_INVALID, "build is not in waiting state") : r;
}

/* A build that cannot begin is refused before it leaves its waiting state, so that it can be triggered after the mend. */
static int builder_there(struct template_service *s, struct error *err)
{
        const char *backend;
        int r = records_node_admits(s->records, s->node, err);

        if (r < 0)
                return r;
        if (!s->queue)
                return error_set(err, ERROR_UNAVAILABLE, "this node cannot build; 'vmon doctor' tells why");
        return s->need_backend ? s->need_backend(s->need_backend_data, &backend, err) : 0;
}

/* A step whose files were never uploaded ends the build at once, with the step's number (checklist 95), before a machine or
 * another build is touched. */
static int begin(struct template_service *s, const struct team *team, struct build_job **job, struct error *err)
{
        CLEANUP_FREE char *files = xasprintf("%s/files/%s", s->data_dir, team->slug), *step = NULL;
        struct error missing = {};
        size_t number;
        int r;

        if (build_plan_check_uploads(&(*job)->plan, files, &number, &missing) < 0) {
                step = xasprintf("%zu", number);
                r = start(s, (*job)->build_id, err);
                return r < 0 ? r : keeper_fail(s, (*job)->build_id, missing.message, step, err);
        }
        r = builder_there(s, err);
        if (r < 0)
                return error_wrap(err, r, "no builder is available");
        r = start(s, (*job)->build_id, err);
        return r < 0 ? r : launch(s, team, job, err);
}

HANDLER(templates_trigger)
{
        struct template_service *s = data;
        const struct team *team = request->team;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        CLEANUP(cleanup_job) struct build_job *job = NULL;
        CLEANUP(build_plan_free) struct build_plan plan = {};
        int version, r = build_plan_parse(request->json, &plan, err);

        if (r < 0)
                return r;
        if (!uuid_valid(request->params[1]))
                return error_set(err, ERROR_INVALID, "Invalid build ID: %s", request->params[1]);
        r = find_build(s, team, request->params[0], request->params[1], &t, &b, err);
        if (r < 0)
                return r;
        if (b->state != BUILD_WAITING)
                return error_set(err, ERROR_INVALID, "build is not in waiting state");
        r = build_template_version(http_headers_get(&request->http->headers, "User-Agent"), &version, err);
        if (r < 0)
                return r;
        job = new_job(team, b, version);
        job->plan = plan;
        plan = (struct build_plan){};
        r = begin(s, team, &job, err);
        response->status = 202;
        return r;
}

/* Status and logs */

static const char *const level_names[] = { "debug", "info", "warn", "error", NULL };

/* The build of a status request. Unknown ones are 400 here, not 404 (template-api 4.6). */
static int followed_build(struct template_service *s, const struct api_request *request, struct build_record **ret, struct error *err)
{
        const char *template_id = request->params[0], *build_id = request->params[1];
        const struct team *team = request->team;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        int r;

        if (!uuid_valid(build_id))
                return error_set(err, ERROR_INVALID, "Invalid build id");
        r = records_build_peek(s->records, build_id, &b, err);
        if (r >= 0)
                r = records_template_get(s->records, b->template_id, &t, err);
        if (r == -ENOENT || (r >= 0 && !streq(t->id, template_id)))
                return error_set(err, ERROR_INVALID, "Build '%s' not found", build_id);
        if (r < 0)
                return r;
        if (!streq(t->team_id, team->id))
                return error_set(err, ERROR_FORBIDDEN, "You don't have access to this sandbox template (%s)", t->id);
        *ret = STEAL(b);
        return 0;
}

static json_t *entries_json(const struct log_entry *entries, size_t count)
{
        json_t *array = json_array();

        for (size_t i = 0; i < count; i++)
                json_array_append_new(array, json_log_entry(&entries[i]));
        return array;
}

static json_t *reason_json(const struct build_record *b, const struct log_entry *entries, size_t count)
{
        json_t *array = json_array(), *j;

        for (size_t i = 0; i < count; i++)
                if (b->reason_step && streq(entries[i].step, b->reason_step) && entries[i].level >= LOG_LEVEL_WARN)
                        json_array_append_new(array, json_log_entry(&entries[i]));
        j = json_pack("{s:s, s:o}", "message", b->reason ? b->reason : "", "logEntries", array);
        if (b->reason_step)
                json_object_set_new(j, "step", json_string(b->reason_step));
        return j;
}

HANDLER(templates_status)
{
        struct template_service *s = data;
        const char *query = request->http->query;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        int64_t offset = 0, limit = LOG_PAGE;
        struct log_entry *entries;
        int level = 0, r = query_integer(query, "logsOffset", 0, INT32_MAX, &offset, err);
        size_t count;

        if (r >= 0)
                r = query_integer(query, "limit", 0, LOG_PAGE, &limit, err);
        if (r >= 0)
                r = query_choice(query, "level", level_names, &level, err);
        /* The status before the log: a terminal one must not hide lines (template-api 4.6). */
        if (r >= 0)
                r = followed_build(s, request, &b, err);
        if (r >= 0)
                r = records_log_read(s->records, b->id, level, (size_t)offset, (size_t)limit, &entries, &count, err);
        if (r < 0)
                return r;
        response->status = 200;
        response->json = json_pack("{s:s, s:s, s:s, s:[], s:o}", "templateID", b->template_id, "buildID", b->id, "status",
                                   build_state_name(b->state), "logs", "logEntries", entries_json(entries, count));
        if (b->state == BUILD_ERROR)
                json_object_set_new(response->json, "reason", reason_json(b, entries, count));
        log_entries_free(entries, count);
        return 0;
}

struct logs_query {
        int64_t cursor_ms, limit;
        bool backward;
        int level;
};

static int logs_query_parse(const char *query, struct logs_query *q, struct error *err)
{
        static const char *const directions[] = { "forward", "backward", NULL }, *const sources[] = { "temporary", "persistent", NULL };
        int direction = 0, source = 0, r = query_choice(query, "direction", directions, &direction, err);

        *q = (struct logs_query){ .limit = LOG_PAGE, .backward = direction == 1 };
        if (q->backward)
                q->cursor_ms = INT64_MAX / NSEC_PER_MSEC - 1;
        if (r == 0)
                r = query_integer(query, "cursor", 0, INT64_MAX / NSEC_PER_MSEC - 1, &q->cursor_ms, err);
        if (r == 0)
                r = query_integer(query, "limit", 0, LOG_PAGE, &q->limit, err);
        if (r == 0)
                r = query_choice(query, "level", level_names, &q->level, err);
        return r == 0 ? query_choice(query, "source", sources, &source, err) : r;
}

/* Backward: up to and with the cursor's millisecond. */
static int logs_window(struct template_service *s, const char *build_id, const struct logs_query *q, size_t *ret_offset,
                       size_t *ret_limit, struct error *err)
{
        size_t end;
        int r = records_log_seek(s->records, build_id, q->level, (q->cursor_ms + q->backward) * NSEC_PER_MSEC, &end, err);

        *ret_offset = end;
        *ret_limit = (size_t)q->limit;
        if (q->backward) {
                *ret_limit = end < (size_t)q->limit ? end : (size_t)q->limit;
                *ret_offset = end - *ret_limit;
        }
        return r;
}

HANDLER(templates_logs)
{
        struct template_service *s = data;
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        struct log_entry *entries;
        struct logs_query q;
        size_t offset, limit, count;
        json_t *array;
        int r = logs_query_parse(request->http->query, &q, err);

        if (r >= 0)
                r = followed_build(s, request, &b, err);
        if (r >= 0)
                r = logs_window(s, b->id, &q, &offset, &limit, err);
        if (r >= 0)
                r = records_log_read(s->records, b->id, q.level, offset, limit, &entries, &count, err);
        if (r < 0)
                return r;
        array = json_array();
        for (size_t i = 0; i < count; i++)
                json_array_append_new(array, json_log_entry(&entries[q.backward ? count - 1 - i : i]));
        log_entries_free(entries, count);
        response->status = 200;
        response->json = json_pack("{s:o}", "logs", array);
        return 0;
}
