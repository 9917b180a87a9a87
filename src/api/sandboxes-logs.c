/* GET /sandboxes/{id}/logs and GET /v2/sandboxes/{id}/logs (sandbox-api 17). Logs outlive their sandbox; an unknown one has none. */
#include <stdlib.h>
#include <string.h>

#include "api/sandboxes-internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "http/message.h"
#include "sandbox/history.h"
#include "sandbox/id.h"

#define LIMIT_DEFAULT 1000
#define LIMIT_MAX 1000
#define SEARCH_MAX 256

/* The contract's fields are texts. */
static json_t *texts(const json_t *fields)
{
        json_t *out = json_object(), *value;
        const char *key;
        json_object_foreach((json_t *)fields, key, value) {
                CLEANUP_FREE char *other = json_is_string(value) ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
                json_object_set_new(out, key, json_string(other ?: json_string_value(value)));
        }
        return out;
}

static void put_time(json_t *j, const json_t *entry)
{
        char when[RFC3339_MAX];
        rfc3339_format(json_int(entry, "time_ns", 0), when);
        json_object_set_new(j, "timestamp", json_string(when));
}

static json_t *entry_json(const json_t *entry)
{
        json_t *j = json_pack("{s:s, s:s}", "level", json_str(entry, "level"), "message", json_str(entry, "message"));
        json_t *fields = texts(json_object_get(entry, "fields"));
        json_put_str(fields, "logger", json_str(entry, "logger"));
        json_object_set_new(j, "fields", fields);
        put_time(j, entry);
        return j;
}

/* The older form: a line that is JSON itself, the fields beside level and message. */
static json_t *line_json(const json_t *entry)
{
        CLEANUP_JSON json_t *inner = json_deep_copy(json_object_get(entry, "fields"));
        json_t *j = json_object();
        if (!inner)
                inner = json_object();
        for (const char *const *key = (const char *const[]){ "level", "message", "logger", NULL }; *key; key++)
                json_object_set(inner, *key, json_object_get(entry, *key));
        CLEANUP_FREE char *line = json_text(inner);
        json_object_set_new(j, "line", json_string(line));
        put_time(j, entry);
        return j;
}

static int read_limit(const char *query, size_t *ret, struct error *err)
{
        bool malformed = false;
        CLEANUP_FREE char *text = query_get(query, "limit", &malformed);
        uint64_t v = LIMIT_DEFAULT;
        if (malformed || (text && (!str_to_u64(text, LIMIT_MAX, &v) || v == 0)))
                return error_set(err, ERROR_INVALID, "validation error: 'limit' must be between 1 and %d", LIMIT_MAX);
        *ret = (size_t)v;
        return 0;
}

/* In ms; *ret_ns keeps its default when absent. */
static int read_time(const char *query, const char *key, int64_t *ret_ns, struct error *err)
{
        int64_t ms = -1;
        int r = sandboxes_time_bound(query, key, "milliseconds", &ms, err);
        if (r == 0 && ms >= 0)
                *ret_ns = ms * NSEC_PER_MSEC;
        return r;
}

int sandboxes_logs(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        struct history_query query = { .to_ns = INT64_MAX, .level = HISTORY_DEBUG };
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = read_time(q->http->query, "start", &query.from_ns, err);
        if (r == 0)
                r = read_limit(q->http->query, &query.limit, err);
        if (r < 0)
                return r;
        CLEANUP_JSON json_t *found = sandbox_logs(s->manager, q->team, id, &query);
        json_t *lines = json_array(), *entries = json_array();
        const json_t *entry;
        size_t i;
        json_array_foreach(found, i, entry) {
                json_array_append_new(lines, line_json(entry));
                json_array_append_new(entries, entry_json(entry));
        }
        p->status = 200;
        p->json = json_pack("{s:o, s:o}", "logs", lines, "logEntries", entries);
        return 0;
}

static int read_direction(const char *query, bool *ret_backward, struct error *err)
{
        CLEANUP_FREE char *text = query_get(query, "direction", NULL);
        *ret_backward = !text || streq(text, "backward");
        if (*ret_backward || streq(text, "forward"))
                return 0;
        return error_set(err, ERROR_INVALID, "validation error: 'direction' must be forward or backward");
}

static int read_filter(const char *query, struct history_query *ret, char **ret_search, struct error *err)
{
        bool malformed = false;
        CLEANUP_FREE char *level = query_get(query, "level", &malformed);
        int n = level ? history_level_parse(level) : HISTORY_DEBUG;
        *ret_search = query_get(query, "search", &malformed);
        if (malformed || (*ret_search && strlen(*ret_search) > SEARCH_MAX))
                return error_set(err, ERROR_INVALID, "validation error: 'search' must be a text of at most %d bytes", SEARCH_MAX);
        if (n < 0)
                return error_set(err, ERROR_INVALID, "validation error: 'level' must be debug, info, warn or error");
        ret->level = (enum history_level)n;
        ret->search = *ret_search && **ret_search ? *ret_search : NULL;
        return 0;
}

int sandboxes_logs_v2(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        struct history_query query = { .to_ns = INT64_MAX };
        CLEANUP_FREE char *search = NULL;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = read_direction(q->http->query, &query.backward, err);
        if (r == 0)
                r = read_time(q->http->query, "cursor", query.backward ? &query.to_ns : &query.from_ns, err);
        if (r == 0)
                r = read_limit(q->http->query, &query.limit, err);
        if (r == 0)
                r = read_filter(q->http->query, &query, &search, err);
        if (r < 0)
                return r;
        if (query.backward && query.to_ns != INT64_MAX)
                query.to_ns += NSEC_PER_MSEC - 1; /* all of that millisecond */
        CLEANUP_JSON json_t *found = sandbox_logs(s->manager, q->team, id, &query);
        json_t *entries = json_array();
        const json_t *entry;
        size_t i;
        json_array_foreach(found, i, entry)
                json_array_append_new(entries, entry_json(entry));
        p->status = 200;
        p->json = json_pack("{s:o}", "logs", entries);
        return 0;
}
