/* Reading the bodies of sandbox requests; see the header. */
#include "api/sandbox-body.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "sandbox/sandbox.h"
#include "vm/net.h"
#include "vm/net_domain.h"

static int invalid(struct error *err, const char *key, const char *what)
{
        return error_set(err, ERROR_INVALID, "validation error: '%s' must be %s", key, what);
}

/* A member that is there and not null, or NULL. */
static const json_t *member(const json_t *j, const char *key)
{
        const json_t *v = json_object_get(j, key);
        return json_is_null(v) ? NULL : v;
}

int body_int32(const json_t *j, const char *key, bool required, int64_t *ret, struct error *err)
{
        const json_t *v = member(j, key);
        if (!v)
                return required ? error_set(err, ERROR_INVALID, "validation error: '%s' is required", key) : 0;
        if (!json_is_integer(v) || json_integer_value(v) > INT32_MAX || json_integer_value(v) < INT32_MIN)
                return invalid(err, key, "a 32-bit integer");
        *ret = json_integer_value(v);
        return 0;
}

int body_bool(const json_t *j, const char *key, bool *ret, struct error *err)
{
        const json_t *v = member(j, key);
        if (v && !json_is_boolean(v))
                return invalid(err, key, "a boolean");
        if (v)
                *ret = json_is_true(v);
        return 0;
}

static int body_object(const json_t *j, const char *key, const json_t **ret, struct error *err)
{
        const json_t *v = member(j, key);
        if (v && !json_is_object(v))
                return invalid(err, key, "an object");
        *ret = v;
        return 0;
}

/* An object of strings whose keys and values have at most `max` bytes together. */
static int body_strings(const json_t *j, const char *key, size_t max, const json_t **ret, struct error *err)
{
        const json_t *object = NULL;
        int r = body_object(j, key, &object, err);
        if (r < 0)
                return r;
        const char *name;
        json_t *value;
        size_t total = 0;
        json_object_foreach((json_t *)object, name, value) {
                if (!json_is_string(value))
                        return invalid(err, key, "an object whose values are strings");
                total += strlen(name) + json_string_length(value);
        }
        if (total > max)
                return error_set(err, ERROR_INVALID, "validation error: '%s' has %zu bytes, more than the %zu allowed", key, total, max);
        *ret = object;
        return 0;
}

static int parse_env(const json_t *j, struct sandbox_body *b, struct error *err)
{
        int r = body_strings(j, "envVars", SANDBOX_ENV_MAX, &b->env, err);
        if (r < 0)
                return r;
        const char *name;
        json_t *value;
        json_object_foreach((json_t *)b->env, name, value)
                if (*name == '\0' || strchr(name, '='))
                        return error_set(err, ERROR_INVALID, "validation error: 'envVars' has a name that is empty or contains '='");
        return 0;
}

static int parse_auto_resume(const json_t *j, struct sandbox_body *b, struct error *err)
{
        const json_t *v = NULL;
        int r = body_object(j, "autoResume", &v, err);
        if (r < 0 || !v)
                return r;
        if (!json_is_boolean(json_object_get(v, "enabled")))
                return invalid(err, "autoResume.enabled", "a boolean");
        b->auto_resume = json_is_true(json_object_get(v, "enabled"));
        return 0;
}

static int strings_validate(const json_t *j, const char *key, struct error *err)
{
        const json_t *list = member(j, key);
        size_t n;
        json_t *v;
        if (list && !json_is_array(list))
                return invalid(err, key, "an array of strings");
        json_array_foreach((json_t *)list, n, v)
                if (!json_is_string(v))
                        return invalid(err, key, "an array of strings");
        return 0;
}

int network_rules_validate(const json_t *network, struct error *err)
{
        const json_t *ignored;
        bool flag;
        int r = strings_validate(network, "allowOut", err);
        if (r == 0)
                r = strings_validate(network, "denyOut", err);
        if (r == 0)
                r = body_object(network, "egressProxy", &ignored, err);
        if (r == 0)
                r = body_object(network, "rules", &ignored, err);
        if (r == 0)
                r = body_bool(network, "allow_internet_access", &flag, err);
        return r;
}

/* An address, or with `range` also a range, of either family. */
static bool is_address(const char *text, bool *ret_unspecified)
{
        char address[INET6_ADDRSTRLEN + 1];
        const char *slash = strchr(text, '/');
        size_t len = slash ? (size_t)(slash - text) : strlen(text);
        bool six = memchr(text, ':', len) != NULL;
        unsigned char bytes[sizeof(struct in6_addr)] = {};
        static const unsigned char zeros[sizeof(bytes)];
        uint64_t bits;
        if (len >= sizeof(address) || (slash && !str_to_u64(slash + 1, six ? 128 : 32, &bits)))
                return false;
        memcpy(address, text, len);
        address[len] = '\0';
        if (inet_pton(six ? AF_INET6 : AF_INET, address, bytes) != 1)
                return false;
        *ret_unspecified = !slash && memcmp(bytes, zeros, six ? 16 : 4) == 0;
        return true;
}

/* Is there "0.0.0.0/0" (the SDK's ALL_TRAFFIC), whatever address it is written with? */
static bool denies_all(const json_t *deny)
{
        char cidr[NET_CIDR_MAX];
        size_t n;
        json_t *v;
        json_array_foreach((json_t *)deny, n, v)
                if (net_parse_cidr(json_string_value(v), cidr) && streq(cidr, "0.0.0.0/0"))
                        return true;
        return false;
}

/* The entries of both lists (sandbox-api 13.2). */
static int check_entries(const json_t *network, bool no_internet, struct error *err)
{
        char domain[NET_DOMAIN_MAX];
        bool by_domain = false;
        const json_t *allow = member(network, "allowOut"), *deny = member(network, "denyOut");
        bool unspecified;
        size_t n;
        json_t *v;
        if (json_array_size(allow) + json_array_size(deny) > SANDBOX_EGRESS_MAX)
                return error_set(err, ERROR_INVALID, "allowOut and denyOut hold more than %d entries", SANDBOX_EGRESS_MAX);
        json_array_foreach((json_t *)deny, n, v)
                if (!is_address(json_string_value(v), &unspecified) || unspecified)
                        return error_set(err, ERROR_INVALID, "invalid denied CIDR %.64s", json_string_value(v));
        json_array_foreach((json_t *)allow, n, v) {
                bool address = is_address(json_string_value(v), &unspecified);
                if (!address && !net_parse_domain(json_string_value(v), domain))
                        return error_set(err, ERROR_INVALID, "invalid allowed address or domain %.128s (name, *.name or *, without scheme, port and "
                                                             "path; international names in their xn-- form)", json_string_value(v));
                if (address && unspecified)
                        return error_set(err, ERROR_INVALID, "invalid allowed address %.64s", json_string_value(v));
                by_domain |= !address;
        }
        if (by_domain && !no_internet && !denies_all(deny))
                return error_set(err, ERROR_INVALID, "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all "
                                                     "other traffic.");
        return 0;
}

int network_rules_check(const json_t *network, const json_t *allow_internet_access, struct error *err)
{
        if (member(network, "egressProxy"))
                return error_set(err, ERROR_FORBIDDEN, "egressProxy is not enabled on this server");
        if (json_object_size(member(network, "rules")) > 0)
                return error_set(err, ERROR_INVALID, "network rules with header transforms are not available on this server; leave 'rules' out");
        return check_entries(network, json_is_false(allow_internet_access), err);
}

static int parse_network(const json_t *j, struct sandbox_body *b, struct error *err)
{
        int r = body_object(j, "network", &b->network, err);
        if (r < 0 || !b->network)
                return r;
        r = network_rules_validate(b->network, err);
        if (r == 0)
                r = body_bool(b->network, "allowPublicTraffic", &b->allow_public_traffic, err);
        const json_t *mask = member(b->network, "maskRequestHost");
        if (r == 0 && mask && !json_is_string(mask))
                r = invalid(err, "maskRequestHost", "a string");
        b->mask_request_host = json_string_value(mask);
        return r;
}

static int parse_mounts(const json_t *j, struct sandbox_body *b, struct error *err)
{
        const json_t *list = member(j, "volumeMounts");
        size_t n;
        json_t *v;
        if (list && !json_is_array(list))
                return invalid(err, "volumeMounts", "an array");
        json_array_foreach((json_t *)list, n, v)
                if (!json_str(v, "name") || !json_str(v, "path"))
                        return invalid(err, "volumeMounts", "an array of objects with 'name' and 'path'");
        b->volume_mounts = list;
        return 0;
}

static int parse_flags(const json_t *j, struct sandbox_body *b, struct error *err)
{
        bool internet = true;
        int r = body_bool(j, "autoPause", &b->auto_pause, err);
        if (r == 0)
                r = body_bool(j, "autoPauseMemory", &b->auto_pause_memory, err);
        if (r == 0)
                r = parse_auto_resume(j, b, err);
        if (r == 0)
                r = body_bool(j, "allow_internet_access", &internet, err);
        if (r == 0)
                b->allow_internet_access = member(j, "allow_internet_access");
        return r;
}

static int parse_template(const json_t *j, struct sandbox_body *b, struct error *err)
{
        const json_t *v = member(j, "templateID");
        if (!v)
                return error_set(err, ERROR_INVALID, "validation error: 'templateID' is required");
        if (!json_is_string(v) || json_string_length(v) > SANDBOX_TEMPLATE_REF_MAX)
                return invalid(err, "templateID", "a string of at most 512 bytes");
        b->template_ref = json_string_value(v);
        return 0;
}

int sandbox_body_parse(const json_t *j, bool v2, struct sandbox_body *ret, struct error *err)
{
        struct sandbox_body b = { .timeout_s = v2 ? 300 : 15, .secure = v2, .auto_pause_memory = true, .allow_public_traffic = true };
        const json_t *mcp;
        int r = parse_template(j, &b, err);
        if (r == 0)
                r = body_int32(j, "timeout", false, &b.timeout_s, err);
        if (r == 0 && !v2)
                r = body_bool(j, "secure", &b.secure, err);
        if (r == 0)
                r = parse_flags(j, &b, err);
        if (r == 0)
                r = body_strings(j, "metadata", SANDBOX_METADATA_MAX, &b.metadata, err);
        if (r == 0)
                r = parse_env(j, &b, err);
        if (r == 0)
                r = parse_network(j, &b, err);
        if (r == 0)
                r = body_object(j, "mcp", &mcp, err); /* all of it is the SDK's work (sandbox-api 5.5) */
        if (r == 0)
                r = body_object(j, "iam", &b.iam, err);
        if (r == 0)
                r = parse_mounts(j, &b, err);
        if (r == 0)
                *ret = b;
        return r;
}

static int check_pause(const struct sandbox_body *b, struct error *err)
{
        if (!b->auto_pause_memory && !b->auto_pause)
                return error_set(err, ERROR_INVALID, "autoPauseMemory=false only applies when autoPause is true.");
        if (!b->auto_pause_memory && b->auto_resume)
                return error_set(err, ERROR_INVALID, "autoPauseMemory=false cannot be combined with autoResume.");
        return 0;
}

/* host[:port] in ASCII, ${PORT} anywhere (sandbox-api 13.1): nothing that could end a header or a name. */
static bool is_mask(const char *mask)
{
        const char *const port = "${PORT}";
        size_t len = strlen(mask);
        if (len == 0 || len > SANDBOX_MASK_MAX || *mask == ':')
                return false;
        for (const char *s = mask; *s;) {
                if (strncmp(s, port, strlen(port)) == 0)
                        s += strlen(port);
                else if (isalnum((unsigned char)*s) || strchr("-._:[]", *s))
                        s++;
                else
                        return false;
        }
        return true;
}

static int check_network(const struct sandbox_body *b, struct error *err)
{
        if (!b->allow_public_traffic && !b->secure)
                return error_set(err, ERROR_INVALID,
                                 "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.");
        if (b->mask_request_host && !is_mask(b->mask_request_host))
                return error_set(err, ERROR_INVALID, "invalid maskRequestHost %.64s: it is a host name or address, then perhaps a colon and a port, "
                                                     "where ${PORT} stands for the port of the request", b->mask_request_host);
        return network_rules_check(b->network, b->allow_internet_access, err);
}

int sandbox_body_check(const struct sandbox_body *b, struct error *err)
{
        int r = check_pause(b, err);
        if (r == 0)
                r = check_network(b, err);
        if (r < 0)
                return r;
        if (json_object_size(json_object_get(b->iam, "tokens")) > 0)
                return error_set(err, ERROR_INVALID, "iam is not enabled on this server");
        if (json_array_size(b->volume_mounts) > 0)
                return error_set(err, ERROR_INVALID, "Volume mounts are not enabled.");
        return 0;
}
