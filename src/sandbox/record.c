/* The sandbox as a value: copies for callers, and the JSON object that stands for it in the store. The object holds neither
 * tokens (they are derived, token.h) nor environment values (they are secrets and live in the guest only).
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "sandbox/manager.h"

#define RECORD_VERSION 1

void sandbox_info_free(struct sandbox_info *i)
{
        if (!i)
                return;
        free(i->id);
        free(i->team_id);
        free(i->template_id);
        free(i->build_id);
        free(i->alias);
        free(i->envd_version);
        free(i->envd_token);
        free(i->traffic_token);
        json_decref(i->metadata);
        json_decref(i->allow_internet_access);
        json_decref(i->network);
        free(i);
}

/* Deep, because jansson's reference counts are shared between threads only when it was built with atomics. */
static json_t *copy_json(const json_t *j)
{
        return j ? json_deep_copy(j) : NULL;
}

struct sandbox_info *sandbox_info_copy(const struct sandbox_info *i)
{
        struct sandbox_info *c = xmemdup(i, sizeof *i);
        c->id = xstrdup_or_null(i->id);
        c->team_id = xstrdup_or_null(i->team_id);
        c->template_id = xstrdup_or_null(i->template_id);
        c->build_id = xstrdup_or_null(i->build_id);
        c->alias = xstrdup_or_null(i->alias);
        c->envd_version = xstrdup_or_null(i->envd_version);
        c->envd_token = xstrdup_or_null(i->envd_token);
        c->traffic_token = xstrdup_or_null(i->traffic_token);
        c->metadata = copy_json(i->metadata);
        c->allow_internet_access = copy_json(i->allow_internet_access);
        c->network = copy_json(i->network);
        return c;
}

json_t *sandbox_record_write(const struct sandbox_info *i, bool secure, bool public_traffic)
{
        return json_pack("{s:i, s:s, s:s, s:s, s:s?, s:s, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:O?, s:O?, s:O?}",
                         "version", RECORD_VERSION, "team", i->team_id, "template", i->template_id, "build", i->build_id,
                         "alias", i->alias, "envd_version", i->envd_version, "secure", secure, "public", public_traffic,
                         "auto_pause", i->auto_pause, "auto_pause_disk", i->auto_pause_disk, "auto_resume", i->auto_resume, "paused", i->paused,
                         "paused_disk", i->paused_disk, "nothing_started", i->nothing_started,
                         "timeout_s", (json_int_t)i->timeout_s, "started_ns", (json_int_t)i->started_ns, "ends_ns", (json_int_t)i->ends_ns,
                         "vcpus", (json_int_t)i->vcpus, "memory_mb", (json_int_t)i->memory_mb, "disk_mb", (json_int_t)i->disk_mb,
                         "metadata", i->metadata, "allow_internet_access", i->allow_internet_access, "network", i->network);
}

static int read_string(const json_t *j, const char *key, char **ret, struct error *err)
{
        const char *s = json_str(j, key);
        if (!s)
                return error_set(err, ERROR_INVALID, "record without \"%s\"", key);
        *ret = xstrdup(s);
        return 0;
}

/* Non-negative integers; what is missing is damage, not a default. */
static int read_integer(const json_t *j, const char *key, int64_t *ret, struct error *err)
{
        json_int_t v = json_int(j, key, -1);
        if (v < 0)
                return error_set(err, ERROR_INVALID, "record without \"%s\"", key);
        *ret = v;
        return 0;
}

static json_t *read_value(const json_t *j, const char *key)
{
        const json_t *v = json_object_get(j, key);
        return v && !json_is_null(v) ? json_deep_copy(v) : NULL;
}

static int read_numbers(const json_t *j, struct sandbox_info *i, struct error *err)
{
        int64_t vcpus = 0, memory = 0, disk = 0;
        int r = read_integer(j, "started_ns", &i->started_ns, err);
        if (r == 0)
                r = read_integer(j, "ends_ns", &i->ends_ns, err);
        if (r == 0)
                r = read_integer(j, "vcpus", &vcpus, err);
        if (r == 0)
                r = read_integer(j, "memory_mb", &memory, err);
        if (r == 0)
                r = read_integer(j, "disk_mb", &disk, err);
        if (r < 0)
                return r;
        i->vcpus = vcpus;
        i->memory_mb = memory;
        i->disk_mb = disk;
        return 0;
}

int sandbox_record_read(const char *id, const json_t *j, struct sandbox_info **ret, bool *ret_secure, bool *ret_public, struct error *err)
{
        if (json_int(j, "version", 0) != RECORD_VERSION)
                return error_set(err, ERROR_INVALID, "record of another version");
        struct sandbox_info *i = xcalloc(1, sizeof *i);
        i->id = xstrdup(id);
        int r = read_string(j, "team", &i->team_id, err);
        if (r == 0)
                r = read_string(j, "template", &i->template_id, err);
        if (r == 0)
                r = read_string(j, "build", &i->build_id, err);
        if (r == 0)
                r = read_string(j, "envd_version", &i->envd_version, err);
        if (r == 0)
                r = read_numbers(j, i, err);
        if (r < 0) {
                sandbox_info_free(i);
                return r;
        }
        i->alias = xstrdup_or_null(json_str(j, "alias"));
        i->auto_pause = json_bool(j, "auto_pause", false);
        i->auto_pause_disk = json_bool(j, "auto_pause_disk", false);
        /* Records of older servers do not say: */
        i->nothing_started = json_bool(j, "nothing_started", false);
        i->auto_resume = json_bool(j, "auto_resume", false);
        i->paused_disk = json_bool(j, "paused_disk", false);
        i->paused = json_bool(j, "paused", false);
        i->timeout_s = json_int(j, "timeout_s", 0);
        i->metadata = read_value(j, "metadata");
        i->allow_internet_access = read_value(j, "allow_internet_access");
        i->network = read_value(j, "network");
        *ret_secure = json_bool(j, "secure", true);
        *ret_public = json_bool(j, "public", false);
        *ret = i;
        return 0;
}
