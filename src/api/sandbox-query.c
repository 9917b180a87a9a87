/* Reading list queries. Values come from clients in the SDKs' multiply encoded form (sandbox-api 6.2) or typed by hand.
 *
 * The cursor is base64url of "<start in ns>__<id>__asc|desc" of the last element sent: keyset pagination, which survives
 * sandboxes that appear and disappear between pages.
 */
#include "api/sandbox-query.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "http/message.h"
#include "sandbox/id.h"

#define METADATA_PAIRS_MAX 100
#define TEMPLATE_NAME_MAX 256

static int bad_metadata(struct error *err)
{
        return error_set(err, ERROR_INVALID, "Error parsing metadata");
}

/* One "key=value", both still encoded once. */
static int add_pair(json_t *object, const char *pair, size_t len)
{
        const char *equals = memchr(pair, '=', len);
        if (!equals || memchr(equals + 1, '=', pair + len - equals - 1))
                return -1;
        CLEANUP_FREE char *key = url_decode(pair, equals - pair, true);
        CLEANUP_FREE char *value = url_decode(equals + 1, pair + len - equals - 1, true);
        if (!key || !value)
                return -1;
        return json_object_set_new(object, key, json_string(value)); /* fails on invalid UTF-8 */
}

int metadata_decode(const char *value, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *text = url_decode(value, strlen(value), true);
        CLEANUP_JSON json_t *object = json_object();
        if (!text)
                return bad_metadata(err);
        unsigned pairs = 0;
        for (const char *p = text;;) {
                size_t len = strcspn(p, "&");
                if (++pairs > METADATA_PAIRS_MAX || add_pair(object, p, len) < 0)
                        return bad_metadata(err);
                if (p[len] == '\0')
                        break;
                p += len + 1;
        }
        *ret = STEAL(object);
        return 0;
}

bool metadata_matches(const json_t *metadata, const json_t *wanted)
{
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)wanted, key, value)
                if (!json_equal(json_object_get(metadata, key), value))
                        return false;
        return true;
}

static char base64url_char(unsigned v)
{
        static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        return alphabet[v & 63];
}

static void base64url_encode(const char *in, size_t len, char *out)
{
        unsigned bits = 0, held = 0;
        for (size_t i = 0; i < len; i++) {
                held = held << 8 | (unsigned char)in[i];
                for (bits += 8; bits >= 6; bits -= 6)
                        *out++ = base64url_char(held >> (bits - 6));
        }
        if (bits > 0)
                *out++ = base64url_char(held << (6 - bits));
        *out = '\0';
}

static int base64url_value(char c)
{
        if (c >= 'A' && c <= 'Z')
                return c - 'A';
        if (c >= 'a' && c <= 'z')
                return c - 'a' + 26;
        if (c >= '0' && c <= '9')
                return c - '0' + 52;
        return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* Into a string of at most `max` - 1 bytes; false on foreign characters or too much. */
static bool base64url_decode(const char *in, char *out, size_t max)
{
        unsigned bits = 0, held = 0;
        size_t n = 0;
        for (; *in; in++) {
                int v = base64url_value(*in);
                if (v < 0)
                        return false;
                held = held << 6 | (unsigned)v;
                bits += 6;
                if (bits < 8)
                        continue;
                bits -= 8;
                if (n + 1 >= max)
                        return false;
                out[n++] = (char)(held >> bits);
        }
        out[n] = '\0';
        return strlen(out) == n;
}

static const char *order_name(bool ascending)
{
        return ascending ? "asc" : "desc";
}

void cursor_format(int64_t started_ns, const char *id, bool ascending, char *out)
{
        char text[128];
        int n = snprintf(text, sizeof text, "%" PRId64 "__%s__%s", started_ns, id, order_name(ascending));
        base64url_encode(text, n, out);
}

int cursor_parse(const char *cursor, bool ascending, int64_t *ret_started_ns, char *ret_id, struct error *err)
{
        char text[128], id[SANDBOX_ID_MAX + 1];
        uint64_t started;
        if (!base64url_decode(cursor, text, sizeof text))
                goto bad;
        char *first = strstr(text, "__");
        char *second = first ? strstr(first + 2, "__") : NULL;
        if (!second)
                goto bad;
        *first = *second = '\0';
        if (!str_to_u64(text, INT64_MAX, &started) || !streq(second + 2, order_name(ascending)) ||
            sandbox_id_parse(first + 2, id) < 0 || !streq(id, first + 2))
                goto bad;
        *ret_started_ns = (int64_t)started;
        strcpy(ret_id, id);
        return 0;
bad:
        return error_set(err, ERROR_INVALID, "Invalid next token");
}

int sandbox_order(int64_t a_started_ns, const char *a_id, int64_t b_started_ns, const char *b_id, bool ascending)
{
        int c = a_started_ns != b_started_ns ? (a_started_ns > b_started_ns ? -1 : 1) : strcmp(a_id, b_id);
        return ascending ? -c : c;
}

bool sandbox_query_matches(const struct sandbox_query *q, const struct sandbox_info *i)
{
        /* Microseconds: what clients see of a start, and send back. */
        if (q->started_after_ns != INT64_MIN && i->started_ns / 1000 < q->started_after_ns / 1000)
                return false;
        return metadata_matches(i->metadata, q->metadata);
}

bool sandbox_query_is_after(const struct sandbox_query *q, const struct sandbox_info *i)
{
        return !q->after || sandbox_order(i->started_ns, i->id, q->after_started_ns, q->after_id, q->ascending) > 0;
}

/* Query parameters. `malformed` percent-encoding is the client's error. */
static int parameter(const char *query, const char *key, char **ret, struct error *err)
{
        bool malformed = false;
        *ret = query_get(query, key, &malformed);
        if (malformed)
                return error_set(err, ERROR_INVALID, "Error when parsing request: query parameter '%s' is not percent-encoded correctly", key);
        return 0;
}

static int add_states(struct sandbox_query *q, char *csv, struct error *err)
{
        char *save = NULL;
        for (char *s = strtok_r(csv, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
                s = str_trim(s);
                if (streq(s, "running"))
                        q->running = true;
                else if (streq(s, "paused"))
                        q->paused = true;
                else
                        return error_set(err, ERROR_INVALID, "validation error: state must be 'running' or 'paused', not '%s'", s);
        }
        return 0;
}

/* Comma-joined and repeated both (sandbox-api R10), so query_get() with its first value is not enough. */
static int parse_states(const char *query, struct sandbox_query *q, struct error *err)
{
        for (const char *p = query; *p;) {
                size_t len = strcspn(p, "&");
                if (len >= 6 && strncmp(p, "state=", 6) == 0) {
                        CLEANUP_FREE char *value = url_decode(p + 6, len - 6, true);
                        if (!value)
                                return error_set(err, ERROR_INVALID, "Error when parsing request: query parameter 'state' is not percent-encoded correctly");
                        int r = add_states(q, value, err);
                        if (r < 0)
                                return r;
                }
                p += len + (p[len] == '&');
        }
        if (!q->running && !q->paused)
                q->running = q->paused = true;
        return 0;
}

static int parse_template(const char *query, struct sandbox_query *q, struct error *err)
{
        CLEANUP_FREE char *value = NULL;
        int r = parameter(query, "template", &value, err);
        if (r < 0 || !value)
                return r;
        const char *name = str_lower(str_trim(value));
        size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_");
        if (name[len] == '/' && len > 0) {
                size_t alias = strspn(name + len + 1, "abcdefghijklmnopqrstuvwxyz0123456789-_");
                len = alias > 0 ? len + 1 + alias : len;
        }
        if (len == 0 || len > TEMPLATE_NAME_MAX || name[len] != '\0')
                return error_set(err, ERROR_INVALID, "Invalid template: '%.100s' is not a template name or ID (tags are not allowed here)", name);
        q->template_ = xstrdup(name);
        return 0;
}

static int parse_started_after(const char *query, struct sandbox_query *q, struct error *err)
{
        CLEANUP_FREE char *value = NULL;
        int r = parameter(query, "startedAfter", &value, err);
        if (r < 0 || !value)
                return r;
        if (!rfc3339_parse(value, &q->started_after_ns))
                return error_set(err, ERROR_INVALID, "validation error: startedAfter must be a time in RFC 3339 form");
        return 0;
}

static int parse_order(const char *query, struct sandbox_query *q, struct error *err)
{
        CLEANUP_FREE char *value = NULL;
        int r = parameter(query, "order", &value, err);
        if (r < 0 || !value)
                return r;
        q->ascending = streq(value, "asc");
        if (!q->ascending && !streq(value, "desc"))
                return error_set(err, ERROR_INVALID, "validation error: order must be 'asc' or 'desc'");
        return 0;
}

static int parse_limit(const char *query, struct sandbox_query *q, struct error *err)
{
        CLEANUP_FREE char *value = NULL;
        uint64_t limit = LIST_LIMIT_MAX;
        int r = parameter(query, "limit", &value, err);
        if (r < 0)
                return r;
        if (value && (!str_to_u64(value, LIST_LIMIT_MAX, &limit) || limit == 0))
                return error_set(err, ERROR_INVALID, "validation error: limit must be between 1 and %d", LIST_LIMIT_MAX);
        q->limit = (unsigned)limit;
        return 0;
}

static int parse_metadata(const char *query, struct sandbox_query *q, struct error *err)
{
        CLEANUP_FREE char *value = NULL;
        int r = parameter(query, "metadata", &value, err);
        return r < 0 || !value || !*value ? r : metadata_decode(value, &q->metadata, err);
}

static int parse_cursor(const char *query, struct sandbox_query *q, struct error *err)
{
        CLEANUP_FREE char *value = NULL;
        int r = parameter(query, "nextToken", &value, err);
        if (r < 0 || !value || !*value)
                return r;
        q->after = true;
        return cursor_parse(value, q->ascending, &q->after_started_ns, q->after_id, err);
}

int sandbox_query_parse(const char *query, struct sandbox_query *ret, struct error *err)
{
        static int (*const parsers[])(const char *, struct sandbox_query *, struct error *) = {
                parse_metadata, parse_states, parse_template, parse_started_after, parse_order, parse_limit, parse_cursor,
        };
        struct sandbox_query q = { .started_after_ns = INT64_MIN };
        for (size_t i = 0; i < sizeof parsers / sizeof *parsers; i++) {
                int r = parsers[i](query, &q, err);
                if (r < 0) {
                        sandbox_query_free(&q);
                        return r;
                }
        }
        *ret = q;
        return 0;
}

void sandbox_query_free(struct sandbox_query *q)
{
        json_decref(q->metadata);
        free(q->template_);
        *q = (struct sandbox_query){};
}
