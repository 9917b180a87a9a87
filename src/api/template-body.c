/* Reading what clients send to the template API. The order of the checks is that of template-api 4.1: schema, a name at
 * all, its form, its namespace, the tags; resources come later, with the team's limits.
 */
#include "api/template-body.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "http/message.h"

#define NAME_CHARACTERS_MAX 128
#define TOKEN_MAX 256
#define DEFAULT_VCPUS 2
#define DEFAULT_MEMORY_MB 1024

static size_t characters(const char *utf8)
{
        size_t n = 0;

        for (; *utf8; utf8++)
                n += ((unsigned char)*utf8 & 0xc0) != 0x80;
        return n;
}

/* A nullable int32; `*ret` keeps its value when absent. */
static int body_int32(const json_t *body, const char *key, int64_t min, int64_t *ret, struct error *err)
{
        const json_t *v = json_object_get(body, key);

        if (!v || json_is_null(v))
                return 0;
        if (!json_is_integer(v))
                return error_set(err, ERROR_INVALID, "validation error: %s must be an integer", key);
        if (json_integer_value(v) < min || json_integer_value(v) > INT32_MAX)
                return error_set(err, ERROR_INVALID, "validation error: %s must be at least %lld and at most %d", key, (long long)min,
                                 INT32_MAX);
        *ret = json_integer_value(v);
        return 0;
}

/* json_string_length() against strlen(): a NUL inside must not cut a name short. */
static bool whole_string(const json_t *v)
{
        return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

static int body_name(const json_t *body, const char *key, const char **ret, struct error *err)
{
        const json_t *v = json_object_get(body, key);

        if (!v || json_is_null(v))
                return 0;
        if (!whole_string(v))
                return error_set(err, ERROR_INVALID, "validation error: %s must be a string", key);
        if (characters(json_string_value(v)) > NAME_CHARACTERS_MAX)
                return error_set(err, ERROR_INVALID, "validation error: %s has more than %d characters", key, NAME_CHARACTERS_MAX);
        *ret = json_string_value(v);
        return 0;
}

int body_string(const json_t *body, const char *key, const char **ret, struct error *err)
{
        const json_t *v = json_object_get(body, key);

        if (!whole_string(v))
                return error_set(err, ERROR_INVALID, "validation error: %s must be a string", key);
        *ret = json_string_value(v);
        return 0;
}

int body_strings(const json_t *body, const char *key, const char ***ret, size_t *ret_count, struct error *err)
{
        const json_t *array = json_object_get(body, key), *v;
        CLEANUP_FREE const char **list = NULL;
        size_t i;

        if (!json_is_array(array))
                return error_set(err, ERROR_INVALID, "validation error: %s must be an array of strings", key);
        list = xcalloc(json_array_size(array) + 1, sizeof(*list));
        json_array_foreach(array, i, v) {
                if (!whole_string(v))
                        return error_set(err, ERROR_INVALID, "validation error: %s must be an array of strings", key);
                list[i] = json_string_value(v);
        }
        *ret_count = json_array_size(array);
        *ret = STEAL(list);
        return 0;
}

static int take_name(const json_t *body, bool v2, const char **ret, struct error *err)
{
        const char *name = NULL, *alias = NULL;
        int r = body_name(body, "alias", &alias, err);

        if (r == 0 && !v2)
                r = body_name(body, "name", &name, err);
        if (r < 0)
                return r;
        if (!name && !alias)
                return error_set(err, ERROR_INVALID, v2 ? "validation error: alias is required" : "Name is required");
        *ret = name ? name : alias;
        return 0;
}

static int take_sizes(const json_t *body, struct create_body *b, struct error *err)
{
        int64_t vcpus = DEFAULT_VCPUS, memory = DEFAULT_MEMORY_MB, free_disk = 0;
        int r = body_int32(body, "cpuCount", 1, &vcpus, err);

        if (r == 0)
                r = body_int32(body, "memoryMB", 128, &memory, err);
        if (r == 0)
                r = body_int32(body, "minFreeDiskMb", 0, &free_disk, err);
        b->vcpus = (unsigned)vcpus;
        b->memory_mb = (unsigned)memory;
        return r;
}

static int take_reference(const char *text, const char *slug, struct name_ref *ret, struct error *err)
{
        int r = name_parse(text, ret, err);

        if (r < 0)
                return error_wrap(err, r, "Invalid name");
        if (ret->namespace_ && !streq(ret->namespace_, slug))
                return error_set(err, ERROR_INVALID, "namespace '%s' must match your team '%s'", ret->namespace_, slug);
        return 0;
}

/* "x:default" asks for the tag default (template-api item 27), also beside others. */
static int take_tags(const struct name_ref *name, const char *const *tags, size_t count, char ***ret, struct error *err)
{
        const char *first = name->explicit_default ? NAME_TAG_DEFAULT : name->tag;
        int r = name_tags_collect(first, tags, count, ret, err);

        return r < 0 ? error_wrap(err, r, "Invalid tag") : 0;
}

int create_body_parse(const json_t *body, bool v2, const char *slug, struct create_body *ret, struct error *err)
{
        CLEANUP(create_body_clear) struct create_body b = {};
        const json_t *given = v2 ? NULL : json_object_get(body, "tags");
        CLEANUP_FREE const char **tags = NULL;
        const char *name = NULL;
        size_t count = 0;
        int r = take_sizes(body, &b, err);

        if (r == 0 && given && !json_is_null(given))
                r = body_strings(body, "tags", &tags, &count, err);
        if (r == 0)
                r = take_name(body, v2, &name, err);
        if (r == 0)
                r = take_reference(name, slug, &b.name, err);
        if (r == 0)
                r = take_tags(&b.name, tags, count, &b.tags, err);
        if (r < 0)
                return r;
        *ret = b;
        b = (struct create_body){};
        return 0;
}

void create_body_clear(struct create_body *b)
{
        name_ref_clear(&b->name);
        name_list_free(b->tags);
        *b = (struct create_body){};
}

static int query_text(const char *query, const char *key, char **ret, struct error *err)
{
        bool malformed = false;

        *ret = query_get(query, key, &malformed);
        return malformed ? error_set(err, ERROR_INVALID, "validation error: query parameter %s is malformed", key) : 0;
}

int query_integer(const char *query, const char *key, int64_t min, int64_t max, int64_t *ret, struct error *err)
{
        CLEANUP_FREE char *text = NULL;
        uint64_t value;
        int r = query_text(query, key, &text, err);

        if (r < 0 || !text)
                return r;
        if (!str_to_u64(text, (uint64_t)max, &value) || (int64_t)value < min)
                return error_set(err, ERROR_INVALID, "validation error: query parameter %s must be an integer from %lld to %lld", key,
                                 (long long)min, (long long)max);
        *ret = (int64_t)value;
        return 0;
}

int query_choice(const char *query, const char *key, const char *const *values, int *ret, struct error *err)
{
        CLEANUP_FREE char *text = NULL;
        int r = query_text(query, key, &text, err);

        if (r < 0 || !text)
                return r;
        for (int i = 0; values[i]; i++)
                if (streq(text, values[i])) {
                        *ret = i;
                        return 0;
                }
        return error_set(err, ERROR_INVALID, "validation error: query parameter %s has an unknown value", key);
}

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static char *base64url_encode(const char *in, size_t len)
{
        char *out = xcalloc(1, len * 4 / 3 + 4), *p = out;
        unsigned held = 0, bits = 0;

        for (size_t i = 0; i < len; i++) {
                held = held << 8 | (unsigned char)in[i];
                for (bits += 8; bits >= 6; bits -= 6)
                        *p++ = digits[held >> (bits - 6) & 63];
        }
        if (bits > 0)
                *p = digits[held << (6 - bits) & 63];
        return out;
}

/* NULL on foreign characters; padding is accepted. */
static char *base64url_decode(const char *in)
{
        char *out = xcalloc(1, strlen(in) + 1), *p = out;
        unsigned held = 0, bits = 0;

        for (; *in && *in != '='; in++) {
                const char *at = strchr(digits, *in);

                if (!at) {
                        free(out);
                        return NULL;
                }
                held = held << 6 | (unsigned)(at - digits);
                bits += 6;
                if (bits >= 8)
                        *p++ = (char)(held >> (bits -= 8));
        }
        return out;
}

char *page_token(int64_t time_ns, const char *id)
{
        char time[RFC3339_MAX];
        CLEANUP_FREE char *text = NULL;

        rfc3339_format(time_ns, time);
        text = xasprintf("%s__%s", time, id);
        return base64url_encode(text, strlen(text));
}

int page_token_parse(const char *token, int64_t *ret_time_ns, char **ret_id, struct error *err)
{
        CLEANUP_FREE char *text = strlen(token) <= TOKEN_MAX ? base64url_decode(token) : NULL;
        char *id = text ? strstr(text, "__") : NULL;
        size_t n;

        if (id) {
                *id = '\0';
                id += 2;
                n = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-");
                if (n > 0 && id[n] == '\0' && rfc3339_parse(text, ret_time_ns)) {
                        *ret_id = xstrdup(id);
                        return 0;
                }
        }
        return error_set(err, ERROR_INVALID, "Invalid next token");
}
