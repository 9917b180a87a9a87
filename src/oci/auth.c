/* Registry credentials as they come with a build request (template-api 5.2). They live in memory for the length of a
 * pull and are wiped when freed; nothing here formats them into a message.
 */
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "oci/oci.h"
#include "oci/secret.h"

/* A service account's JSON is about 2.5 KB; everything else is far shorter. */
#define CREDENTIAL_MAX 65536
#define REGION_MAX 40

static int take(const json_t *j, const char *key, char **ret, struct error *err)
{
        const json_t *v = json_object_get(j, key);

        if (!json_is_string(v) || json_string_length(v) == 0)
                return error_set(err, ERROR_INVALID, "fromImageRegistry: %s must be a non-empty string", key);
        if (json_string_length(v) > CREDENTIAL_MAX || strlen(json_string_value(v)) != json_string_length(v))
                return error_set(err, ERROR_INVALID, "fromImageRegistry: %s is too long or holds a NUL", key);
        *ret = xstrdup(json_string_value(v));
        return 0;
}

static int parse_basic(const json_t *j, struct oci_auth *a, struct error *err)
{
        int r = take(j, "username", &a->username, err);

        a->kind = OCI_AUTH_BASIC;
        if (r == 0)
                r = take(j, "password", &a->password, err);
        if (r == 0 && strchr(a->username, ':'))
                r = error_set(err, ERROR_INVALID, "fromImageRegistry: username must not contain ':'");
        return r;
}

/* The region becomes part of a host name: nothing but a region may pass. */
static bool region_valid(const char *s)
{
        size_t n = strlen(s);

        return n > 0 && n <= REGION_MAX && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static int parse_aws(const json_t *j, struct oci_auth *a, struct error *err)
{
        int r = take(j, "awsAccessKeyId", &a->aws_key_id, err);

        a->kind = OCI_AUTH_AWS;
        if (r == 0)
                r = take(j, "awsSecretAccessKey", &a->aws_secret, err);
        if (r == 0)
                r = take(j, "awsRegion", &a->aws_region, err);
        if (r == 0 && !region_valid(a->aws_region))
                r = error_set(err, ERROR_INVALID, "fromImageRegistry: awsRegion is no region name");
        return r;
}

static int parse_gcp(const json_t *j, struct oci_auth *a, struct error *err)
{
        a->kind = OCI_AUTH_GCP;
        return take(j, "serviceAccountJson", &a->gcp_json, err);
}

int oci_auth_parse(const json_t *j, struct oci_auth *ret, struct error *err)
{
        struct oci_auth a = {};
        const char *type;
        int r;

        if (!json_is_object(j))
                return error_set(err, ERROR_INVALID, "fromImageRegistry must be an object");
        type = json_string_value(json_object_get(j, "type"));
        if (!type)
                return error_set(err, ERROR_INVALID, "fromImageRegistry: type must be \"registry\", \"aws\" or \"gcp\"");
        if (streq(type, "registry"))
                r = parse_basic(j, &a, err);
        else if (streq(type, "aws"))
                r = parse_aws(j, &a, err);
        else if (streq(type, "gcp"))
                r = parse_gcp(j, &a, err);
        else
                r = error_set(err, ERROR_INVALID,
                              "fromImageRegistry: unknown type; it must be \"registry\", \"aws\" or \"gcp\"");
        if (r < 0) {
                oci_auth_free(&a);
                return r;
        }
        *ret = a;
        return 0;
}

void oci_auth_free(struct oci_auth *a)
{
        secret_free(&a->username);
        secret_free(&a->password);
        secret_free(&a->aws_key_id);
        secret_free(&a->aws_secret);
        secret_free(&a->aws_region);
        secret_free(&a->gcp_json);
        a->kind = OCI_AUTH_NONE;
}
