/* Amazon's registry takes a user and password that its API gives out for 12 hours against keys; the request is signed
 * by libcurl (Signature V4).
 */
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/secret.h"
#include "oci/session.h"

#define ECR_ANSWER_MAX (256U << 10)
#define ECR_TARGET "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"

static char *ecr_url(const struct oci_options *o, const char *region)
{
        if (o->ecr_endpoint)
                return xstrdup(o->ecr_endpoint);
        return xasprintf("https://api.ecr.%s.amazonaws.com%s/", region, str_starts(region, "cn-") ? ".cn" : "");
}

/* base64 of "AWS:<password>". */
static char *decode_pair(const char *text)
{
        size_t len = strlen(text);
        CLEANUP_SECRET char *out = xcalloc(len + 1, 1);
        int n = len % 4 ? -1 : EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)text, (int)len);

        if (n < 0 || !strchr(out, ':') || strpbrk(out, "\r\n"))
                return NULL;
        return STEAL(out); /* padding decodes to NULs, which end the string */
}

static int take_answer(const struct transfer_reply *r, char **ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        const char *text;

        if (r->status == 400 || r->status == 401 || r->status == 403)
                return error_set(err, ERROR_FORBIDDEN, "AWS ECR refused the keys (status code %ld)", r->status);
        if (r->status != 200)
                return error_set(err, ERROR_UNAVAILABLE, "AWS ECR returned status code %ld", r->status);
        if (json_parse(buf_str(&r->body), r->body.len, &j, NULL) < 0)
                return error_set(err, ERROR_UNAVAILABLE, "AWS ECR's answer is no JSON");
        text = json_str(json_array_get(json_object_get(j, "authorizationData"), 0), "authorizationToken");
        *ret = text ? decode_pair(text) : NULL;
        return *ret ? 0 : error_set(err, ERROR_UNAVAILABLE, "AWS ECR's answer has no usable token");
}

int ecr_login(const struct oci_options *o, const struct oci_auth *auth, struct transfer *t, char **ret,
              struct error *err)
{
        CLEANUP_FREE char *url = ecr_url(o, auth->aws_region);
        CLEANUP_FREE char *signer = xasprintf("aws:amz:%s:ecr", auth->aws_region);
        CLEANUP_SECRET char *user = xasprintf("%s:%s", auth->aws_key_id, auth->aws_secret);
        struct transfer_reply reply = {};
        const struct transfer_request q = {
                .method = "POST",
                .url = url,
                .post = "{}",
                .post_type = "application/x-amz-json-1.1",
                .post_target = ECR_TARGET,
                .sigv4 = signer,
                .sigv4_user = user,
                .limit = ECR_ANSWER_MAX,
        };

        for (unsigned attempt = 1;; attempt++) {
                int r = transfer_perform(t, &q, &reply, err), wait;
                struct error ignored;

                wait = r == 0 || r == -EAGAIN ? session_backoff(NULL, t, r == 0 ? &reply : NULL, attempt, &ignored)
                                              : -ENOENT;
                if (wait == -ENOENT) {
                        r = r < 0 ? error_wrap(err, r, "AWS ECR") : take_answer(&reply, ret, err);
                        if (reply.body.data)
                                explicit_bzero(reply.body.data, reply.body.len);
                        transfer_reply_free(&reply);
                        return r;
                }
                transfer_reply_free(&reply);
                if (wait < 0)
                        return error_set(err, ERROR_CANCELLED, "cancelled");
        }
}
