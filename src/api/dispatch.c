/* One task for each exchange:
 *
 *   matched --> AUTHENTICATE (worker) --> body (loop; an upload's chunks are written by the worker) --> HANDLE
 *   (worker) --> answered
 *
 * A request that has no body is authenticated and handled in one job: half the switches between threads.
 *
 * Nothing of the body is read before authentication is through (template-api 3.1), and the loop never blocks:
 * whatever touches store or disk is a job. A task has one job under way at most. When the client leaves, a
 * handler that runs still finishes; its task is freed when both the exchange and the job are through.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/api.h"
#include "api/route.h"
#include "api/workers.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "http/server.h"

#define API_BODY_MAX (16 * 1024 * 1024)   /* sandbox-api R12 */
#define UPLOAD_PAUSE_AT (1024 * 1024)     /* collected upload bytes while a write is under way */
#define JSON_TYPE "application/json; charset=utf-8"

struct api {
        struct api_hooks hooks;
        struct workers *workers;
        struct api_route *routes;
        size_t count;
};

struct task {
        struct job job; /* first: a job is its task */
        struct api *api;
        struct http_exchange *x; /* NULL when the client has gone */
        const struct api_route *route;
        struct http_request http; /* a copy: outlives the exchange */
        char *peer;
        char *params[ROUTE_PARAMS_MAX + 1];
        struct api_request request;
        struct api_response response;
        struct error err;
        int result;        /* of the last job */
        bool working, answered;
        bool blocked;
        struct buf body;   /* the body; of an upload the bytes not yet handed to a write */
        bool body_ended;
        /* API_UPLOAD */
        char *path;
        int fd;
        unsigned long long limit, received;
        struct buf chunk;  /* being written */
};

static const char cors_headers[] =
        "Origin, Content-Length, Content-Type, User-Agent, Authorization, X-API-Key, X-Team-ID, browser, lang, "
        "lang_version, machine, os, package_version, processor, publisher, release, sdk_runtime, system";
static const char cors_exposed[] =
        "X-Next-Token, X-Total-Running, Retry-After, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset";

void api_error(struct api_response *r, int status, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        CLEANUP_FREE char *text = NULL;
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        text = utf8_scrub(buf_str(&b), b.len);
        json_decref(r->json);
        r->status = status;
        r->json = json_pack("{s:i, s:s}", "code", status, "message", text);
}

int api_status_of(enum error_kind kind)
{
        switch (kind) {
        case ERROR_INVALID:
                return 400;
        case ERROR_UNAUTHORISED:
                return 401;
        case ERROR_FORBIDDEN:
                return 403;
        case ERROR_NOT_FOUND:
                return 404;
        case ERROR_CONFLICT:
                return 409;
        case ERROR_LIMIT:
                return 429;
        case ERROR_UNAVAILABLE:
        case ERROR_CANCELLED:
                return 503;
        default:
                return 500;
        }
}

static void copy_request(struct http_request *to, const struct http_request *from)
{
        *to = *from;
        to->method = xstrdup(from->method);
        to->target = xstrdup(from->target);
        to->path = xstrdup(from->path);
        to->query = xstrdup(from->query);
        to->headers = (struct http_headers){};
        http_headers_copy(&to->headers, &from->headers);
}

static void free_response(struct api_response *r)
{
        http_headers_free(&r->headers);
        json_decref(r->json);
        free(r->text);
        *r = (struct api_response){};
}

static void task_free(struct task *t)
{
        if (t->request.team)
                t->api->hooks.release_team(t->api->hooks.data, t->request.team);
        json_decref(t->request.json);
        for (size_t i = 0; t->params[i]; i++)
                free(t->params[i]);
        http_request_free(&t->http);
        free_response(&t->response);
        buf_free(&t->body);
        buf_free(&t->chunk);
        free(t->path);
        free(t->peer);
        free(t);
}

static void run_discard(struct job *j)
{
        struct task *t = (struct task *)j;

        if (t->fd >= 0)
                close(t->fd);
        t->fd = -1;
        if (t->path)
                unlink(t->path);
}

static void done_discard(struct job *j)
{
        task_free((struct task *)j);
}

static void submit(struct task *t, void (*run)(struct job *j), void (*done)(struct job *j))
{
        t->working = true;
        t->job.run = run;
        t->job.done = done;
        workers_submit(t->api->workers, &t->job);
}

/* Frees a task that nobody needs any more; an unfinished upload is removed by a worker first. */
static void task_maybe_free(struct task *t)
{
        if (t->x || t->working)
                return;
        if (t->fd >= 0)
                submit(t, run_discard, done_discard);
        else
                task_free(t);
}

static void answer(struct task *t)
{
        struct api_response *r = &t->response;
        CLEANUP_FREE char *text = r->json ? json_text(r->json) : STEAL(r->text);
        const char *type = r->content_type && !r->json ? r->content_type : JSON_TYPE;
        size_t len = text ? strlen(text) : 0;

        t->answered = true;
        if (r->status >= 500)
                log_error("%s %s: %d %s", t->http.method, t->http.path, r->status, text ? text : "");
        else
                log_debug("%s %s: %d", t->http.method, t->http.path, r->status);
        if (!t->x)
                return;
        if (len && !http_headers_get(&r->headers, "Content-Type"))
                http_headers_set(&r->headers, "Content-Type", type);
        http_headers_set(&r->headers, "Access-Control-Allow-Origin", "*");
        http_headers_set(&r->headers, "Access-Control-Expose-Headers", cors_exposed);
        if (r->status == 204)
                len = 0;
        http_exchange_start(t->x, r->status, &r->headers, (int64_t)len);
        http_exchange_write(t->x, text, len);
        http_exchange_end(t->x);
}

static void answer_error(struct task *t, int status, const char *message)
{
        api_error(&t->response, status, "%s", message);
        answer(t);
}

/* The credential of the request: the API key wins over a bearer (sandbox-api 2.1). */
static const char *bearer_of(const struct http_request *r)
{
        const char *v = http_headers_get(&r->headers, "authorization");

        if (!v || strncasecmp(v, "bearer ", 7) != 0)
                return NULL;
        v += 7;
        return v + strspn(v, " ");
}

static int authenticate_key(struct task *t)
{
        const char *key = http_headers_get(&t->http.headers, "x-api-key");

        if (!key) {
                if (!http_headers_get(&t->http.headers, "authorization"))
                        return error_set(&t->err, ERROR_UNAUTHORISED, "authorization header is missing");
                key = bearer_of(&t->http);
                if (!key || !str_starts(key, "e2b_"))
                        return error_set(&t->err, ERROR_UNAUTHORISED,
                                         "Invalid Access token, try to login again by running `e2b auth login`.");
        }
        return t->api->hooks.authenticate(t->api->hooks.data, key, &t->request.team, &t->blocked, &t->err);
}

static int authenticate_cluster(struct task *t)
{
        const char *token = bearer_of(&t->http), *want = t->api->hooks.cluster_token;

        if (!http_headers_get(&t->http.headers, "authorization"))
                return error_set(&t->err, ERROR_UNAUTHORISED, "authorization header is missing");
        if (!token || !want || !*want || !str_equal_constant_time(token, want))
                return error_set(&t->err, ERROR_UNAUTHORISED, "invalid cluster token");
        return 0;
}

static int authenticate(struct task *t)
{
        int r = 0;

        if (t->route->auth == API_AUTH_KEY)
                r = authenticate_key(t);
        else if (t->route->auth == API_AUTH_CLUSTER)
                r = authenticate_cluster(t);
        if (r < 0)
                return r;
        if (t->blocked && (t->route->flags & API_MUTATES)) {
                t->err.kind = ERROR_FORBIDDEN;
                return t->err.message[0] ? -EACCES : error_set(&t->err, ERROR_FORBIDDEN, "team is blocked");
        }
        if (route_params(t->route, t->http.path, t->params) < 0)
                return error_set(&t->err, ERROR_INVALID, "validation error: malformed percent-encoding in the path");
        for (size_t i = 0; i < ROUTE_PARAMS_MAX; i++)
                t->request.params[i] = t->params[i];
        return 0;
}

static void run_authenticate(struct job *j)
{
        struct task *t = (struct task *)j;

        t->result = authenticate(t);
        if (t->result < 0 || !(t->route->flags & API_UPLOAD))
                return;
        t->result = t->route->upload(t->route->data, &t->request, &t->path, &t->limit, &t->err);
        if (t->result < 0)
                return;
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (t->fd < 0) {
                t->result = error_errno(&t->err, errno, "create a file for the upload");
                free(STEAL(t->path)); /* whatever is there is not ours */
        }
}

static bool too_large(struct task *t)
{
        unsigned long long limit = t->route->flags & API_UPLOAD ? t->limit : API_BODY_MAX;

        if (t->received <= limit && (t->http.content_length < 0 || (unsigned long long)t->http.content_length <= limit))
                return false;
        api_error(&t->response, 413, "the request body is too large (limit: %llu bytes)", limit);
        answer(t);
        return true;
}

/* After a job: false when the task is at its end. */
static bool go_on(struct task *t)
{
        t->working = false;
        if (!t->x || t->answered) {
                task_maybe_free(t);
                return false;
        }
        if (t->result < 0) {
                answer_error(t, api_status_of(t->err.kind), t->err.message);
                return false;
        }
        return true;
}

static void done_authenticate(struct job *j)
{
        struct task *t = (struct task *)j;

        if (go_on(t) && !too_large(t))
                http_exchange_resume(t->x);
}

static int parse_json(struct task *t)
{
        struct error why;

        if (!(t->route->flags & (API_JSON | API_JSON_OPTIONAL)))
                return 0;
        if (!t->request.body_len && (t->route->flags & API_JSON_OPTIONAL)) {
                t->request.json = json_object();
                return 0;
        }
        if (json_parse(t->request.body, t->request.body_len, &t->request.json, &why) < 0)
                return error_set(&t->err, ERROR_INVALID, "Error when parsing request: %s", why.message);
        if (!json_is_object(t->request.json))
                return error_set(&t->err, ERROR_INVALID, "Error when parsing request: the body is not a JSON object");
        return 0;
}

static void audit(struct task *t)
{
        const struct api_hooks *h = &t->api->hooks;

        if (t->route->action && h->audit)
                h->audit(h->data, &t->request, t->route->action, t->result < 0 ? api_status_of(t->err.kind) : t->response.status,
                         t->result < 0 ? t->err.message : NULL);
}

static void run_handle(struct job *j)
{
        struct task *t = (struct task *)j;

        if (t->fd >= 0)
                close(t->fd);
        t->fd = -1;
        t->request.upload_path = t->path;
        t->request.body = (char *)buf_str(&t->body);
        t->request.body_len = t->body.len;
        t->result = parse_json(t);
        if (t->result >= 0)
                t->result = t->route->handler(t->route->data, &t->request, &t->response, &t->err);
        if (t->path)
                unlink(t->path); /* fails when the handler took it */
        if (t->result >= 0 && !t->response.status) {
                t->result = error_set(&t->err, ERROR_INTERNAL, "the handler of %s gave no answer", t->route->pattern);
        } else if (t->result < 0) {
                free_response(&t->response);
        }
        audit(t);
}

static void done_handle(struct job *j)
{
        struct task *t = (struct task *)j;

        t->working = false;
        if (t->result < 0)
                answer_error(t, api_status_of(t->err.kind), t->err.message);
        else
                answer(t);
        task_maybe_free(t);
}

static void run_bodyless(struct job *j)
{
        struct task *t = (struct task *)j;

        const struct api_hooks *hooks = &t->api->hooks;
        bool snapshot = (t->route->flags & API_READS) && hooks->snapshot;

        t->body_ended = true;
        if (snapshot)
                hooks->snapshot(hooks->data, true);
        run_authenticate(j);
        if (t->result >= 0)
                run_handle(j);
        if (snapshot)
                hooks->snapshot(hooks->data, false);
}

static void run_write(struct job *j)
{
        struct task *t = (struct task *)j;
        int r = fd_write_all(t->fd, t->chunk.data, t->chunk.len);

        t->result = r < 0 ? error_errno(&t->err, r, "write the uploaded file") : 0;
        buf_free(&t->chunk);
}

static void done_write(struct job *j);

static void write_chunk(struct task *t)
{
        t->chunk = t->body;
        t->body = (struct buf){};
        submit(t, run_write, done_write);
}

static void done_write(struct job *j)
{
        struct task *t = (struct task *)j;

        if (!go_on(t))
                return;
        if (t->body.len)
                write_chunk(t);
        else if (t->body_ended)
                submit(t, run_handle, done_handle);
        if (!t->body_ended)
                http_exchange_resume(t->x);
}

static void on_data(struct http_exchange *x, const void *data, size_t len, void *userdata)
{
        struct task *t = userdata;

        if (t->answered)
                return;
        t->received += len;
        if (too_large(t))
                return;
        buf_add(&t->body, data, len);
        if (!(t->route->flags & API_UPLOAD))
                return;
        if (!t->working)
                write_chunk(t);
        else if (t->body.len > UPLOAD_PAUSE_AT)
                http_exchange_pause(x);
}

static void on_end(struct http_exchange *x, void *userdata)
{
        struct task *t = userdata;

        (void)x;
        if (t->answered)
                return;
        t->body_ended = true;
        if (!t->working)
                submit(t, run_handle, done_handle);
}

static void on_close(struct http_exchange *x, bool aborted, void *userdata)
{
        struct task *t = userdata;

        (void)x;
        (void)aborted;
        t->x = NULL;
        task_maybe_free(t);
}

static const struct http_exchange_ops task_ops = {
        .on_data = on_data,
        .on_end = on_end,
        .on_close = on_close,
        .serves_half_closed = true,
};

static struct task *task_new(struct api *a, struct http_exchange *x)
{
        struct task *t = xcalloc(1, sizeof(*t));

        t->api = a;
        t->x = x;
        t->fd = -1;
        copy_request(&t->http, http_exchange_request(x));
        t->peer = xstrdup(http_exchange_peer(x));
        t->request.http = &t->http;
        t->request.peer = t->peer;
        return t;
}

static void answer_preflight(struct task *t)
{
        struct http_headers *h = &t->response.headers;
        const char *asked = http_headers_get(&t->http.headers, "access-control-request-headers");

        t->response.status = 204;
        http_headers_add(h, "Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        http_headers_add(h, "Access-Control-Allow-Headers", asked ? asked : cors_headers);
        http_headers_add(h, "Access-Control-Max-Age", "7200");
        answer(t);
}

static void answer_unrouted(struct task *t, enum route_verdict verdict)
{
        if (verdict == ROUTE_OTHER_METHOD) {
                CLEANUP_FREE char *allow = route_allow(t->api->routes, t->api->count, t->http.path);

                http_headers_add(&t->response.headers, "Allow", allow);
                answer_error(t, 405, "method not allowed");
        } else if (str_starts(t->http.path, "/instances") || str_starts(t->http.path, "/envs")) {
                answer_error(t, 404, "Endpoints are deprecated, please update your SDK to the latest version.");
        } else {
                answer_error(t, 404, "no matching operation was found");
        }
}

void api_dispatch(struct api *a, struct http_exchange *x)
{
        struct task *t = task_new(a, x);
        enum route_verdict verdict;

        http_exchange_accept(x, &task_ops, t, true);
        if (streq(t->http.method, "OPTIONS")) {
                answer_preflight(t);
                return;
        }
        verdict = route_find(a->routes, a->count, t->http.method, t->http.path, &t->route);
        if (verdict != ROUTE_FOUND)
                answer_unrouted(t, verdict);
        else if (t->http.content_length == 0 && !(t->route->flags & API_UPLOAD))
                submit(t, run_bodyless, done_handle);
        else
                submit(t, run_authenticate, done_authenticate);
}

int api_new(struct uv_loop_s *loop, unsigned workers, const struct api_hooks *hooks, struct api **ret)
{
        struct api *a = xcalloc(1, sizeof(*a));
        int r = workers_new(loop, workers, &a->workers);

        if (r < 0) {
                free(a);
                return r;
        }
        a->hooks = *hooks;
        *ret = a;
        return 0;
}

void api_add_routes(struct api *a, const struct api_route *routes, size_t count)
{
        a->routes = xreallocarray(a->routes, a->count + count, sizeof(*a->routes));
        memcpy(a->routes + a->count, routes, count * sizeof(*routes));
        a->count += count;
}

void api_free(struct api *a)
{
        if (!a)
                return;
        workers_free(a->workers);
        free(a->routes);
        free(a);
}
