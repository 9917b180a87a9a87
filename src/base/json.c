#include "base/json.h"

#include <stdlib.h>

int json_parse(const char *data, size_t len, json_t **ret, struct error *err)
{
        json_error_t e;
        json_t *j = json_loadb(data, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);

        if (!j)
                return error_set(err, ERROR_INVALID, "invalid JSON at line %d column %d: %s", e.line, e.column,
                                 e.text);
        *ret = j;
        return 0;
}

char *json_text(const json_t *j)
{
        char *s = json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY);

        if (!s)
                abort();
        return s;
}

const char *json_str(const json_t *object, const char *key)
{
        return json_string_value(json_object_get(object, key));
}

json_int_t json_int(const json_t *object, const char *key, json_int_t otherwise)
{
        const json_t *v = json_object_get(object, key);

        return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

bool json_bool(const json_t *object, const char *key, bool otherwise)
{
        const json_t *v = json_object_get(object, key);

        return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

void json_put_str(json_t *object, const char *key, const char *value)
{
        if (value)
                json_object_set_new(object, key, json_string(value));
}
