#include "protojson.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "base64.h"

#define NAME_MAX_LEN 64

int proto_parse(const char *data, size_t len, json_t **ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        int r;

        if (len == 0)
                return error_set(err, ERROR_INVALID,
                                 "unmarshal message: zero-length payload is not a valid JSON object");
        r = json_parse(data, len, &j, err);
        if (r < 0)
                return error_wrap(err, r, "unmarshal message");
        if (!json_is_object(j))
                return error_set(err, ERROR_INVALID, "unmarshal message: not a JSON object");
        *ret = STEAL(j);
        return 0;
}

json_t *proto_get(const json_t *message, const char *name)
{
        json_t *v = json_object_get(message, name);
        char snake[NAME_MAX_LEN];
        size_t n = 0;

        if (!v) {
                for (const char *p = name; *p && n + 2 < sizeof(snake); p++) {
                        if (isupper((unsigned char)*p))
                                snake[n++] = '_';
                        snake[n++] = (char)tolower((unsigned char)*p);
                }
                snake[n] = 0;
                v = json_object_get(message, snake);
        }
        return json_is_null(v) ? NULL : v;
}

static int wrong(struct error *err, const char *name, const char *wanted)
{
        return error_set(err, ERROR_INVALID, "unmarshal message: field %s: expected %s", name, wanted);
}

int proto_string(const json_t *message, const char *name, const char **ret, struct error *err)
{
        json_t *v = proto_get(message, name);

        if (!v)
                return 0;
        if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
                return wrong(err, name, "a string without NUL");
        *ret = json_string_value(v);
        return 1;
}

int proto_bool(const json_t *message, const char *name, bool *ret, struct error *err)
{
        json_t *v = proto_get(message, name);

        if (!v)
                return 0;
        if (!json_is_boolean(v))
                return wrong(err, name, "a boolean");
        *ret = json_is_true(v);
        return 1;
}

int proto_uint32(const json_t *message, const char *name, uint32_t *ret, struct error *err)
{
        json_t *v = proto_get(message, name);
        uint64_t n;

        if (!v)
                return 0;
        if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= UINT32_MAX)
                n = (uint64_t)json_integer_value(v);
        else if (json_is_real(v) && json_real_value(v) >= 0 && json_real_value(v) <= UINT32_MAX &&
                 json_real_value(v) == (double)(uint32_t)json_real_value(v))
                n = (uint64_t)json_real_value(v);
        else if (!json_is_string(v) || !str_to_u64(json_string_value(v), UINT32_MAX, &n))
                return wrong(err, name, "an unsigned 32-bit number");
        *ret = (uint32_t)n;
        return 1;
}

int proto_message(const json_t *message, const char *name, json_t **ret, struct error *err)
{
        json_t *v = proto_get(message, name);

        if (!v)
                return 0;
        if (!json_is_object(v))
                return wrong(err, name, "an object");
        *ret = v;
        return 1;
}

int proto_bytes(const json_t *message, const char *name, struct buf *ret, struct error *err)
{
        json_t *v = proto_get(message, name);

        if (!v)
                return 0;
        if (!json_is_string(v) || !base64_decode(json_string_value(v), json_string_length(v), ret))
                return wrong(err, name, "base64");
        return 1;
}

int proto_strings(const json_t *message, const char *name, json_t **ret, struct error *err)
{
        json_t *v = proto_get(message, name), *item;
        size_t i;

        if (!v)
                return 0;
        if (!json_is_array(v))
                return wrong(err, name, "an array");
        json_array_foreach(v, i, item)
                if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
                        return wrong(err, name, "an array of strings without NUL");
        *ret = v;
        return 1;
}

int proto_map(const json_t *message, const char *name, json_t **ret, struct error *err)
{
        json_t *v = proto_get(message, name), *item;
        const char *key;

        if (!v)
                return 0;
        if (!json_is_object(v))
                return wrong(err, name, "an object");
        json_object_foreach(v, key, item)
                if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
                        return wrong(err, name, "an object of strings without NUL");
        *ret = v;
        return 1;
}
