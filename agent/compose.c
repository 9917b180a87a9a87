/* POST /files/compose (envd.md 3.7): sources into one file beside the destination, renamed over it at the end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "endpoints.h"
#include "entry.h"
#include "fileops.h"
#include "files.h"
#include "loop.h"
#include "protojson.h"
#include "web.h"

#define BODY_MAX (4 * 1024 * 1024)

struct compose {
        json_t *sources;     /* absolute paths */
        char *destination;
        struct user user;
        int status;          /* 0 = done */
        char *message;
};

static int fail(struct compose *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int fail(struct compose *c, int status, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        free(c->message);
        c->message = buf_steal(&b);
        c->status = status;
        return -1;
}

static int append(struct compose *c, int to, const char *path)
{
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat st;
        ssize_t n;

        if (fd < 0 && errno == ENOENT)
                return fail(c, 404, "source file not found: %s", path);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fail(c, 500, "error opening source file %s: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return fail(c, 400, "source path is not a regular file: %s", path);
        while ((n = sendfile(to, fd, NULL, 16 << 20)) > 0)
                ;
        if (n < 0)
                return fail(c, errno == ENOSPC || errno == EDQUOT ? 507 : 500, "error copying %s: %s", path, strerror(errno));
        return 0;
}

static int write_all(struct compose *c, const char *temporary)
{
        CLEANUP_CLOSE int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        json_t *source;
        size_t i;

        if (fd < 0)
                return fail(c, errno == ENOSPC || errno == EDQUOT ? 507 : 500, "error creating %s: %s", temporary,
                            strerror(errno));
        if (fchown(fd, c->user.uid, c->user.gid) < 0)
                return fail(c, 500, "error changing file ownership: %s", strerror(errno));
        json_array_foreach(c->sources, i, source)
                if (append(c, fd, json_string_value(source)) < 0)
                        return -1;
        return 0;
}

static void compose(struct compose *c)
{
        char uuid[UUID_LEN + 1];
        CLEANUP_FREE char *temporary = NULL;
        struct error err;
        json_t *source;
        size_t i;

        if (fileops_make_parents(c->destination, &c->user, &err) < 0) {
                fail(c, 500, "error ensuring directories: %s", err.message);
                return;
        }
        random_uuid(uuid);
        temporary = xasprintf("%s.e2b-compose.%s.tmp", c->destination, uuid);
        if (write_all(c, temporary) < 0 ||
            (rename(temporary, c->destination) < 0 && fail(c, 500, "error renaming to %s: %s", c->destination, strerror(errno)))) {
                unlink(temporary);
                return;
        }
        json_array_foreach(c->sources, i, source)
                unlink(json_string_value(source));
}

static int read_sources(struct compose *c, const json_t *sources)
{
        CLEANUP_FREE char *message = NULL;
        json_t *source;
        size_t i;

        c->sources = json_array();
        json_array_foreach(sources, i, source) {
                CLEANUP_FREE char *path = file_path(json_string_value(source), &c->user, &message);

                if (!path)
                        return fail(c, 400, "%s", message);
                if (streq(path, c->destination))
                        return fail(c, 400, "source path cannot be the destination: %s", path);
                json_array_append_new(c->sources, entry_string(path));
        }
        return 0;
}

static int read_request(struct compose *c, const char *data, size_t len)
{
        CLEANUP_JSON json_t *body = NULL;
        CLEANUP_FREE char *message = NULL;
        const char *destination = "", *username = "";
        json_t *sources = NULL;
        struct error err;

        if (proto_parse(data, len, &body, &err) < 0 || proto_strings(body, "sourcePaths", &sources, &err) < 0 ||
            proto_string(body, "destination", &destination, &err) < 0 || proto_string(body, "username", &username, &err) < 0)
                return fail(c, 400, "%s", err.message);
        if (json_array_size(sources) == 0)
                return fail(c, 400, "source_paths must not be empty");
        if (!*destination)
                return fail(c, 400, "destination is required");
        struct file_query q = { .username = (char *)username };

        if (file_user(&q, &c->user, &message) < 0)
                return fail(c, 401, "%s", message);
        c->destination = file_path(destination, &c->user, &message);
        if (!c->destination)
                return fail(c, 400, "%s", message);
        return read_sources(c, sources);
}

static void on_body(struct http_exchange *x, const char *data, size_t len)
{
        struct compose c = {};

        if (read_request(&c, data, len) == 0)
                compose(&c);
        if (c.status)
                web_error(x, c.status, "%s", c.message);
        else {
                const char *slash = strrchr(c.destination, '/');
                CLEANUP_JSON json_t *answer = json_object();
                CLEANUP_FREE char *text = NULL;

                json_object_set_new(answer, "path", entry_string(c.destination));
                json_object_set_new(answer, "name", entry_string(slash ? slash + 1 : c.destination));
                json_object_set_new(answer, "type", json_string("file"));
                text = json_text(answer);
                web_reply(x, 200, "application/json", text, strlen(text));
        }
        user_free(&c.user);
        json_decref(c.sources);
        free(c.destination);
        free(c.message);
}

void handle_compose(struct http_exchange *x)
{
        web_collect(x, BODY_MAX, on_body);
}
