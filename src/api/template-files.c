/* Uploaded build contexts (template-api 4.3, 4.4): a signed link, and the PUT that it allows.
 *
 * The link is PUBLIC_URL/upload?path=<slug>/<hash>&expires=<unix seconds>&token=<HMAC of path and expires>; it is all
 * the authorisation there is. The body streams into files/<slug>/.upload-<random> and is published as files/<slug>/<hash> when it is
 * complete: a hash is absent or whole. Its bytes are not checked against the hash, which clients compute over names and
 * contents, not over the archive.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/templates-internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "cluster/contexts.h"

#define HASH_LEN 64
#define PARTIAL ".upload-"

static void sign(const struct template_service *s, const char *path, const char *expires, char *ret)
{
        CLEANUP_FREE char *text = xasprintf("PUT\n%s\n%s", path, expires);

        secret_mac(s->upload_key, text, strlen(text), ret);
}

static char *upload_url(const struct template_service *s, const char *path)
{
        CLEANUP_FREE char *expires = xasprintf("%" PRId64, (int64_t)(clock_realtime_ns() / NSEC_PER_SEC + UPLOAD_LINK_SECONDS));
        CLEANUP_FREE char *encoded = url_encode(path, false);
        char token[MAC_HEX_LEN + 1];

        sign(s, path, expires, token);
        return xasprintf("%s/upload?path=%s&expires=%s&token=%s", s->public_url, encoded, expires, token);
}

HANDLER(templates_files_link)
{
        struct template_service *s = data;
        const struct team *team = request->team;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        CLEANUP_FREE char *path = NULL, *file = NULL, *url = NULL;
        int r;

        if (!str_is_hex(request->params[1], HASH_LEN))
                return error_set(err, ERROR_INVALID, "Invalid files hash");
        r = template_by_id(s, request->params[0], "Template '%s' not found", &t, err);
        if (r < 0)
                return r;
        if (!streq(t->team_id, team->id))
                return error_set(err, ERROR_NOT_FOUND, "Template '%s' not found", t->id);
        path = xasprintf("%s/%s", team->slug, request->params[1]);
        file = xasprintf("%s/files/%s", s->data_dir, path);
        url = upload_url(s, path);
        context_touch(file); /* the build that is about to come needs it */
        response->status = 201;
        response->json = json_pack("{s:b, s:s}", "present", path_exists(file), "url", url);
        return 0;
}

/* "<slug>/<64 hex>" and nothing else: it becomes a file name. */
static bool path_valid(const char *path)
{
        const char *slash = strchr(path, '/');
        CLEANUP_FREE char *slug = slash ? xstrndup(path, (size_t)(slash - path)) : NULL;

        return slug && name_is_alias(slug) && str_is_hex(slash + 1, HASH_LEN);
}

/* The path that a request may write to; the caller frees. */
static int authorise(const struct template_service *s, const struct api_request *request, bool check_expiry, char **ret,
                     struct error *err)
{
        const char *query = request->http->query;
        CLEANUP_FREE char *path = query_get(query, "path", NULL), *expires = query_get(query, "expires", NULL),
                          *token = query_get(query, "token", NULL);
        char expected[MAC_HEX_LEN + 1];
        uint64_t until;

        if (!path || !expires || !token || !path_valid(path) || !str_to_u64(expires, INT64_MAX / NSEC_PER_SEC, &until))
                return error_set(err, ERROR_INVALID, "upload: the link is incomplete or malformed; use it exactly as it was given");
        sign(s, path, expires, expected);
        if (!str_equal_constant_time(token, expected))
                return error_set(err, ERROR_FORBIDDEN, "upload: the link's signature is wrong; ask for a new one");
        if (check_expiry && (int64_t)until < clock_realtime_ns() / NSEC_PER_SEC)
                return error_set(err, ERROR_FORBIDDEN, "upload: the link has expired; ask for a new one");
        *ret = STEAL(path);
        return 0;
}

/* What the team's limits leave. Contexts that nobody has used for a day make room for a new one. */
static int upload_limit(const struct template_service *s, const char *slug, const char *dir, int64_t content_length,
                        unsigned long long *ret, struct error *err)
{
        CLEANUP(cleanup_team) struct team *team = NULL;
        uint64_t one, all, held, wanted;
        int r = records_team_by_slug(s->records, slug, &team, err);

        if (r < 0)
                return r;
        one = (uint64_t)team->max_context_mb << 20;
        all = (uint64_t)team->max_contexts_mb << 20;
        wanted = content_length > 0 && (uint64_t)content_length < one ? (uint64_t)content_length : 1;
        held = contexts_make_room(dir, all, wanted, clock_realtime_ns() / NSEC_PER_SEC);
        if (held + wanted > all)
                return error_set(err, ERROR_LIMIT,
                                 "upload: the team's build contexts take %llu MB of the %u MB that it may keep (max_contexts_mb); those that no "
                                 "build has used for a day make room by themselves",
                                 (unsigned long long)(held >> 20), team->max_contexts_mb);
        *ret = all - held < one ? all - held : one;
        return 0;
}

int templates_upload_begin(void *data, struct api_request *request, char **ret_path, unsigned long long *ret_limit, struct error *err)
{
        struct template_service *s = data;
        CLEANUP_FREE char *path = NULL, *dir = NULL;
        char random[17];
        int r = authorise(s, request, true, &path, err);

        if (r < 0)
                return r;
        *strchr(path, '/') = '\0';
        dir = xasprintf("%s/files/%s", s->data_dir, path);
        r = dir_make(dir, 0700, err);
        if (r == 0)
                r = upload_limit(s, path, dir, request->http->content_length, ret_limit, err);
        if (r < 0)
                return r;
        random_id(random, sizeof(random) - 1);
        *ret_path = xasprintf("%s/" PARTIAL "%s", dir, random);
        return 0;
}

HANDLER(templates_upload)
{
        struct template_service *s = data;
        CLEANUP_FREE char *path = NULL, *file = NULL;
        /* The link may have expired while the body came: it was good when that began. */
        int r = authorise(s, request, false, &path, err);

        if (r < 0)
                return r;
        file = xasprintf("%s/files/%s", s->data_dir, path);
        r = file_publish(request->upload_path, file, err);
        if (r < 0)
                return error_wrap(err, r, "upload");
        response->status = 200;
        return 0;
}

static void clean_dir(const char *dir)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);

        for (struct dirent *e; d && (e = readdir(d));)
                if (str_starts(e->d_name, PARTIAL))
                        unlinkat(dirfd(d), e->d_name, 0);
}

int uploads_clean(struct template_service *s, struct error *err)
{
        CLEANUP_FREE char *files = path_join(s->data_dir, "files");
        CLEANUP_CLOSEDIR DIR *d = NULL;
        int r = dir_make(files, 0700, err);

        if (r < 0)
                return r;
        d = opendir(files);
        if (!d)
                return error_errno(err, errno, "open %s", files);
        for (struct dirent *e; (e = readdir(d));)
                if (e->d_name[0] != '.') {
                        CLEANUP_FREE char *dir = path_join(files, e->d_name);

                        clean_dir(dir);
                }
        return 0;
}
