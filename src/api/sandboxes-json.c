/* Sandboxes as the JSON objects of the contract. Required members are always there, arrays are never null (sandbox-api R5). */
#include "api/sandboxes-internal.h"
#include "base/clock.h"
#include "sandbox/id.h"

static json_t *copy_or_null(const json_t *j)
{
        return j ? json_deep_copy(j) : json_null();
}

/* The members that all forms have. */
static json_t *common(const struct sandbox_info *i)
{
        json_t *j = json_pack("{s:s, s:s, s:s, s:s}", "templateID", i->template_id, "sandboxID", i->id, "clientID", SANDBOX_CLIENT_ID,
                              "envdVersion", i->envd_version);
        if (i->alias)
                json_object_set_new(j, "alias", json_string(i->alias));
        return j;
}

json_t *sandbox_json(const struct sandbox_info *i)
{
        json_t *j = common(i);
        if (i->envd_token)
                json_object_set_new(j, "envdAccessToken", json_string(i->envd_token));
        json_object_set_new(j, "trafficAccessToken", i->traffic_token ? json_string(i->traffic_token) : json_null());
        json_object_set_new(j, "domain", json_null());
        return j;
}

json_t *sandbox_listed_json(const struct sandbox_info *i)
{
        char started[RFC3339_MAX], ends[RFC3339_MAX];
        rfc3339_format(i->started_ns, started);
        rfc3339_format(i->ends_ns, ends);
        json_t *j = common(i);
        json_object_set_new(j, "startedAt", json_string(started));
        json_object_set_new(j, "endAt", json_string(ends));
        json_object_set_new(j, "cpuCount", json_integer(i->vcpus));
        json_object_set_new(j, "memoryMB", json_integer(i->memory_mb));
        json_object_set_new(j, "diskSizeMB", json_integer((json_int_t)i->disk_mb));
        json_object_set_new(j, "state", json_string(i->paused ? "paused" : "running"));
        if (i->metadata)
                json_object_set_new(j, "metadata", json_deep_copy(i->metadata));
        json_object_set_new(j, "volumeMounts", json_array());
        return j;
}

json_t *sandbox_detail_json(const struct sandbox_info *i)
{
        json_t *j = sandbox_listed_json(i);
        if (i->envd_token)
                json_object_set_new(j, "envdAccessToken", json_string(i->envd_token));
        json_object_set_new(j, "allowInternetAccess", copy_or_null(i->allow_internet_access));
        json_object_set_new(j, "domain", json_null());
        if (i->network)
                json_object_set_new(j, "network", json_deep_copy(i->network));
        json_object_set_new(j, "lifecycle", json_pack("{s:b, s:s}", "autoResume", i->auto_resume, "onTimeout", i->auto_pause ? "pause" : "kill"));
        return j;
}
