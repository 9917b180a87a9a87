/* How templates, builds and log lines look on the wire (template-api 4): every key that the Python client's models demand,
 * arrays never null, timestamps RFC 3339.
 */
#include <stdlib.h>

#include "api/templates-internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

json_t *json_time(int64_t ns)
{
        char text[RFC3339_MAX];

        if (ns == 0)
                return json_null();
        rfc3339_format(ns, text);
        return json_string(text);
}

static json_t *json_list(char *const *list)
{
        json_t *array = json_array();

        for (; list && *list; list++)
                json_array_append_new(array, json_string(*list));
        return array;
}

json_t *json_log_entry(const struct log_entry *e)
{
        json_t *j = json_pack("{s:o, s:s, s:s}", "timestamp", json_time(e->time_ns ? e->time_ns : 1), "message", e->message, "level",
                              log_level_name((enum log_level)e->level));

        if (e->step)
                json_object_set_new(j, "step", json_string(e->step));
        return j;
}

/* The alias that the build was asked for; all when the template was named by its ID. */
static json_t *aliases_json(const struct template_record *t, const char *alias)
{
        return name_list_has(t->aliases, alias) ? json_pack("[s]", alias) : json_list(t->aliases);
}

json_t *template_create_json(const struct team *team, const struct template_record *t, const struct build_record *b, const char *alias)
{
        json_t *aliases = aliases_json(t, alias), *names = json_array(), *v;
        size_t i;

        json_array_foreach(aliases, i, v)
                json_array_append_new(names, json_sprintf("%s/%s", team->slug, json_string_value(v)));
        return json_pack("{s:s, s:s, s:b, s:o, s:o, s:o}", "templateID", t->id, "buildID", b->id, "public", t->public_, "names", names,
                         "aliases", aliases, "tags", json_list(b->tags));
}

json_t *template_legacy_json(const struct template_record *t, const struct build_record *b, const char *alias)
{
        return json_pack("{s:s, s:s, s:b, s:o, s:i, s:i, s:i, s:o, s:o, s:n, s:o, s:I, s:i, s:s}", "templateID", t->id, "buildID", b->id,
                         "public", t->public_, "aliases", aliases_json(t, alias), "cpuCount", (int)b->vcpus, "memoryMB", (int)b->memory_mb,
                         "diskSizeMB", (int)b->disk_mb, "createdAt", json_time(t->created_ns), "updatedAt", json_time(t->updated_ns),
                         "createdBy", "lastSpawnedAt", json_time(t->last_spawned_ns), "spawnCount", (json_int_t)t->spawn_count,
                         "buildCount", t->build_count, "envdVersion", b->envd_version);
}

json_t *build_detail_json(const struct build_record *b)
{
        int64_t updated = b->finished_ns ? b->finished_ns : b->started_ns ? b->started_ns : b->created_ns;
        json_t *j = json_pack("{s:s, s:s, s:o, s:o, s:i, s:i}", "buildID", b->id, "status", build_state_name(b->state), "createdAt",
                              json_time(b->created_ns), "updatedAt", json_time(updated), "cpuCount", (int)b->vcpus, "memoryMB",
                              (int)b->memory_mb);

        if (b->finished_ns)
                json_object_set_new(j, "finishedAt", json_time(b->finished_ns));
        if (b->state == BUILD_READY) {
                json_object_set_new(j, "diskSizeMB", json_integer(b->disk_mb));
                json_object_set_new(j, "envdVersion", json_string(b->envd_version));
        }
        return j;
}

/* The status of the newest build of the tag "default". */
static int default_status(struct template_service *s, const struct template_record *t, enum build_state *ret, struct error *err)
{
        struct build_record *b;
        int r;

        *ret = BUILD_WAITING;
        if (!t->latest_default)
                return 0;
        r = records_build_get(s->records, t->latest_default, &b, err);
        if (r < 0)
                return r;
        *ret = b->state;
        build_record_free(b);
        return 0;
}

int template_list_json(struct template_service *s, const struct template_record *t, json_t **ret, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        enum build_state status = BUILD_WAITING;
        char **names;
        int r = records_build_of_tag(s->records, t, NAME_TAG_DEFAULT, &b, err);

        if (r >= 0)
                r = default_status(s, t, &status, err);
        if (r >= 0)
                r = records_template_names(s->records, t, &names, err);
        if (r < 0)
                return r;
        *ret = json_pack("{s:s, s:s, s:i, s:i, s:i, s:b, s:o, s:o, s:o, s:o, s:n, s:o, s:I, s:i, s:s, s:s}", "templateID", t->id, "buildID",
                         b ? b->id : NIL_UUID, "cpuCount", b ? (int)b->vcpus : 0, "memoryMB", b ? (int)b->memory_mb : 0, "diskSizeMB",
                         b ? (int)b->disk_mb : 0, "public", t->public_, "aliases", json_list(t->aliases), "names", json_list(names),
                         "createdAt", json_time(t->created_ns), "updatedAt", json_time(t->updated_ns), "createdBy", "lastSpawnedAt",
                         json_time(t->last_spawned_ns), "spawnCount", (json_int_t)t->spawn_count, "buildCount", t->build_count,
                         "envdVersion", b ? b->envd_version : "", "buildStatus", build_state_name(status));
        name_list_free(names);
        return 0;
}

int template_detail_json(struct template_service *s, const struct template_record *t, struct build_record *const *builds, size_t count,
                         json_t **ret, struct error *err)
{
        json_t *array;
        char **names;
        int r = records_template_names(s->records, t, &names, err);

        if (r < 0)
                return r;
        array = json_array();
        for (size_t i = 0; i < count; i++)
                json_array_append_new(array, build_detail_json(builds[i]));
        *ret = json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:I, s:o}", "templateID", t->id, "public", t->public_, "aliases",
                         json_list(t->aliases), "names", json_list(names), "createdAt", json_time(t->created_ns), "updatedAt",
                         json_time(t->updated_ns), "lastSpawnedAt", json_time(t->last_spawned_ns), "spawnCount",
                         (json_int_t)t->spawn_count, "builds", array);
        name_list_free(names);
        return 0;
}
