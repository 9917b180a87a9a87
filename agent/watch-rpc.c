/* Theory of operation: WatchDir turns events into stream messages at once; a slow reader pauses the inotify
 * descriptor, and the kernel's queue overflowing then ends the stream. A polled watcher (CreateWatcher) keeps its
 * events until they are fetched, a bounded number; it lives until it is removed, whoever made it.
 */
#include "watch-rpc.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "protojson.h"
#include "watch.h"

#define POLLED_EVENTS_MAX 65536
#define POLLED_WATCHERS_MAX 1024
#define WATCHER_ID_LEN 20

struct polled {
        struct polled *next;
        char id[WATCHER_ID_LEN + 2];
        struct watch *watch;
        json_t *events;
        char *error;
};

static struct polled *watchers;
static unsigned watcher_count;

static int read_options(struct rpc *c, const json_t *request, struct watch_options *o, char **ret_path)
{
        struct error err;
        int r = proto_bool(request, "recursive", &o->recursive, &err);

        if (r >= 0)
                r = proto_bool(request, "includeEntry", &o->include_entry, &err);
        if (r >= 0)
                r = proto_bool(request, "allowNetworkMounts", &o->network_mounts, &err);
        if (r < 0) {
                rpc_fail_error(c, &err);
                return r;
        }
        o->legacy = c->legacy;
        r = filesystem_path(c, request, "path", ret_path);
        o->path = *ret_path;
        return r;
}

static void stream_event(json_t *event, void *data)
{
        struct rpc *c = data;
        CLEANUP_FREE char *text = json_text(event);
        CLEANUP_FREE char *message = xasprintf("{\"filesystem\":%s}", text);

        if (rpc_send(c, message, strlen(message)) > HTTP_HIGH_WATER)
                watch_pause(c->data, true);
}

static void stream_broken(const char *message, void *data)
{
        rpc_fail(data, RPC_INTERNAL, "%s", message);
}

static void stream_drained(struct rpc *c)
{
        watch_pause(c->data, false);
}

static void stream_closed(struct rpc *c)
{
        watch_free(c->data);
}

void handle_watch_dir(struct rpc *c, json_t *request)
{
        static const struct watch_ops ops = { stream_event, stream_broken };
        CLEANUP_FREE char *path = NULL;
        struct watch_options o = {};
        struct watch *w;
        struct error err;

        if (read_options(c, request, &o, &path) < 0)
                return;
        if (watch_start(&o, &ops, c, &w, &err) < 0) {
                rpc_fail_error(c, &err);
                return;
        }
        c->data = w;
        c->on_drain = stream_drained;
        c->on_close = stream_closed;
        rpc_send(c, "{\"start\":{}}", 12);
}

static void polled_event(json_t *event, void *data)
{
        struct polled *p = data;

        if (p->error)
                return;
        if (json_array_size(p->events) < POLLED_EVENTS_MAX)
                json_array_append(p->events, event);
        else
                p->error = xasprintf("watcher error: more than %d events were not fetched: overflow", POLLED_EVENTS_MAX);
}

static void polled_broken(const char *message, void *data)
{
        struct polled *p = data;

        if (!p->error)
                p->error = xstrdup(message);
}

static void free_polled(struct polled *p)
{
        watch_free(p->watch);
        json_decref(p->events);
        free(p->error);
        free(p);
}

void handle_create_watcher(struct rpc *c, json_t *request)
{
        static const struct watch_ops ops = { polled_event, polled_broken };
        CLEANUP_FREE char *path = NULL;
        struct watch_options o = {};
        struct polled *p;
        struct error err;
        char text[64];

        if (read_options(c, request, &o, &path) < 0)
                return;
        if (watcher_count >= POLLED_WATCHERS_MAX) {
                rpc_fail(c, RPC_RESOURCE_EXHAUSTED, "more than %d watchers: remove some", POLLED_WATCHERS_MAX);
                return;
        }
        p = xcalloc(1, sizeof(*p));
        p->events = json_array();
        if (watch_start(&o, &ops, p, &p->watch, &err) < 0) {
                rpc_fail_error(c, &err);
                free_polled(p);
                return;
        }
        p->id[0] = 'w';
        random_id(p->id + 1, WATCHER_ID_LEN);
        p->next = watchers;
        watchers = p;
        watcher_count++;
        snprintf(text, sizeof(text), "{\"watcherId\":\"%s\"}", p->id);
        rpc_reply(c, text);
}

/* Where the watcher of the request hangs; answers and returns NULL when there is none. */
static struct polled **find_watcher(struct rpc *c, const json_t *request)
{
        const char *id = "";
        struct error err;

        if (proto_string(request, "watcherId", &id, &err) < 0) {
                rpc_fail_error(c, &err);
                return NULL;
        }
        for (struct polled **at = &watchers; *at; at = &(*at)->next)
                if (streq((*at)->id, id))
                        return at;
        rpc_fail(c, RPC_NOT_FOUND, "watcher with id %s not found", id);
        return NULL;
}

void handle_get_watcher_events(struct rpc *c, json_t *request)
{
        struct polled **at = find_watcher(c, request);
        CLEANUP_JSON json_t *answer = json_object();
        CLEANUP_FREE char *text = NULL;

        if (!at)
                return;
        if ((*at)->error) {
                rpc_fail(c, RPC_INTERNAL, "%s", (*at)->error);
                return;
        }
        if (json_array_size((*at)->events)) {
                json_object_set_new(answer, "events", (*at)->events);
                (*at)->events = json_array();
        }
        text = json_text(answer);
        rpc_reply(c, text);
}

void handle_remove_watcher(struct rpc *c, json_t *request)
{
        struct polled **at = find_watcher(c, request), *p;

        if (!at)
                return;
        p = *at;
        *at = p->next;
        watcher_count--;
        free_polled(p);
        rpc_reply(c, "{}");
}
