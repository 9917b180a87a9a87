#include "build/layer_record.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"

#define RECORD_FORMAT 3
#define RECORD_BYTES_MAX (64UL << 20) /* a build environment is bounded by the request that made it */

void layer_record_free(struct layer_record *r)
{
        free(r->parent_key);
        free(r->parent_instance);
        free(r->disk);
        free(r->disk_digest);
        json_decref(r->merged);
        build_context_free(&r->context);
        json_decref(r->image_env);
        free(r->init);
        *r = (struct layer_record){};
}

static bool digest_matches(const json_t *layer, const char *digest)
{
        CLEANUP_FREE char *text = json_text(layer);
        char sum[BUILD_KEY_LEN + 1];

        build_sha256(text, strlen(text), sum);
        return streq(sum, digest);
}

/* "layer.img", "layer-<random>.qcow2" and the like. */
static bool disk_name_valid(const char *name)
{
        return str_starts(name, "layer") && !strchr(name, '/') && (str_ends(name, ".img") || str_ends(name, ".qcow2"));
}

static bool well_formed(const json_t *j)
{
        const char *instance = json_str(j, "instance"), *disk = json_str(j, "disk");

        return json_int(j, "format", 0) == RECORD_FORMAT && instance && strlen(instance) == BUILD_INSTANCE_LEN && json_str(j, "init") &&
               (!disk || (disk_name_valid(disk) && json_str(j, "diskDigest")));
}

static bool from_json(const json_t *j, struct layer_record *ret)
{
        json_t *env = json_object_get(j, "imageEnv"), *merged = json_object_get(j, "merged");

        if (!well_formed(j) || !build_context_from_json(j, &ret->context))
                return false;
        strcpy(ret->instance, json_str(j, "instance"));
        ret->parent_key = xstrdup_or_null(json_str(j, "parentKey"));
        ret->parent_instance = xstrdup_or_null(json_str(j, "parentInstance"));
        ret->disk = xstrdup_or_null(json_str(j, "disk"));
        ret->disk_digest = ret->disk ? xstrdup(json_str(j, "diskDigest")) : NULL;
        ret->merged = json_is_array(merged) ? json_deep_copy(merged) : NULL;
        ret->image_env = json_is_object(env) ? json_deep_copy(env) : json_object();
        ret->init = xstrdup(json_str(j, "init"));
        return true;
}

int layer_record_read(const char *dir, struct layer_record *ret, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "context.json");
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        struct layer_record record = {};
        int r = file_read(path, RECORD_BYTES_MAX, &text, err);

        if (r >= 0)
                r = json_parse(text.data, text.len, &j, err);
        if (r < 0)
                return error_wrap(err, r, "%s", path);
        if (!json_is_object(json_object_get(j, "layer")) || !digest_matches(json_object_get(j, "layer"), json_str(j, "sha256")))
                return error_set(err, ERROR_INTERNAL, "%s is damaged, or of another version", path);
        if (!from_json(json_object_get(j, "layer"), &record))
                return error_set(err, ERROR_INTERNAL, "%s has another format", path);
        *ret = record;
        return 0;
}

static json_t *to_json(const struct layer_record *r)
{
        json_t *j = build_context_to_json(&r->context);

        json_object_set_new(j, "format", json_integer(RECORD_FORMAT));
        json_put_str(j, "instance", r->instance);
        json_put_str(j, "init", r->init);
        json_put_str(j, "parentKey", r->parent_key);
        json_put_str(j, "parentInstance", r->parent_instance);
        json_put_str(j, "disk", r->disk);
        json_put_str(j, "diskDigest", r->disk_digest);
        json_object_set_new(j, "imageEnv", r->image_env ? json_deep_copy(r->image_env) : json_object());
        if (r->merged)
                json_object_set_new(j, "merged", json_deep_copy(r->merged));
        return j;
}

int layer_record_write(const char *dir, const struct layer_record *r, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "context.json"), *text = NULL, *whole = NULL;
        CLEANUP_JSON json_t *j = to_json(r), *outer = json_object();
        char sum[BUILD_KEY_LEN + 1];

        text = json_text(j);
        build_sha256(text, strlen(text), sum);
        json_object_set(outer, "layer", j);
        json_object_set_new(outer, "sha256", json_string(sum));
        whole = json_text(outer);
        return file_write_atomic(path, whole, strlen(whole), 0600, err);
}
