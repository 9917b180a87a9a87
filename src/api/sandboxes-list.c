/* GET /sandboxes and GET /v2/sandboxes (sandbox-api 6): filter, sort, page. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/sandbox-query.h"
#include "api/sandboxes-internal.h"
#include "base/str.h"
#include "http/message.h"

struct listing {
        struct sandbox_info **items;
        size_t count;
};

static void listing_free(struct listing *l)
{
        for (size_t i = 0; i < l->count; i++)
                sandbox_info_free(l->items[i]);
        free(l->items);
}

static int descending(const void *a, const void *b)
{
        const struct sandbox_info *x = *(struct sandbox_info *const *)a, *y = *(struct sandbox_info *const *)b;
        return sandbox_order(x->started_ns, x->id, y->started_ns, y->id, false);
}

static int ascending(const void *a, const void *b)
{
        return -descending(a, b);
}

/* The identifier that the template filter means; NULL when nothing has that name (so nothing matches but a sandbox of a
 * deleted template, by its ID). */
static int resolve_template(struct sandboxes_api *s, const struct team *team, const char *name, char **ret_id, struct error *err)
{
        struct template_record *t = NULL;
        struct build_record *b = NULL;
        *ret_id = NULL;
        int r = records_resolve(s->records, team, name, &t, &b, err);
        if (r < 0)
                return err->kind == ERROR_INTERNAL || err->kind == ERROR_UNAVAILABLE ? r : 0;
        *ret_id = strdup(t->id);
        template_record_free(t);
        build_record_free(b);
        return *ret_id ? 0 : -ENOMEM;
}

static void keep(struct listing *l, const struct sandbox_query *q, const char *template_id)
{
        size_t n = 0;
        for (size_t i = 0; i < l->count; i++) {
                struct sandbox_info *s = l->items[i];
                bool wanted = (s->paused ? q->paused : q->running) && sandbox_query_matches(q, s) &&
                              (!q->template_ || streq(s->template_id, q->template_) || (template_id && streq(s->template_id, template_id)));
                if (wanted)
                        l->items[n++] = s;
                else
                        sandbox_info_free(s);
        }
        l->count = n;
}

/* The page after the cursor, and the header for the next one. */
static json_t *page(const struct listing *l, const struct sandbox_query *q, struct api_response *p)
{
        json_t *array = json_array();
        const struct sandbox_info *last = NULL;
        for (size_t i = 0; i < l->count; i++) {
                if (!sandbox_query_is_after(q, l->items[i]))
                        continue;
                if (last && json_array_size(array) == q->limit) {
                        char cursor[CURSOR_MAX];
                        cursor_format(last->started_ns, last->id, q->ascending, cursor);
                        http_headers_add(&p->headers, "X-Next-Token", cursor);
                        break;
                }
                last = l->items[i];
                json_array_append_new(array, sandbox_listed_json(last));
        }
        return array;
}

static int list(struct sandboxes_api *s, const struct team *team, const struct sandbox_query *q, struct listing *ret, struct error *err)
{
        char *template_id = NULL;
        int r = q->template_ ? resolve_template(s, team, q->template_, &template_id, err) : 0;
        if (r == 0)
                r = sandbox_list(s->manager, team, &ret->items, &ret->count, err);
        if (r == 0) {
                keep(ret, q, template_id);
                qsort(ret->items, ret->count, sizeof *ret->items, q->ascending ? ascending : descending);
        }
        free(template_id);
        return r;
}

int sandboxes_list_v2(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandbox_query query = {};
        struct listing l = {};
        int r = sandbox_query_parse(q->http->query, &query, err);
        if (r < 0)
                return r;
        r = list(data, q->team, &query, &l, err);
        if (r == 0) {
                p->status = 200;
                size_t running = 0;
                for (size_t i = 0; i < l.count; i++)
                        running += !l.items[i]->paused;
                if (query.running)
                        http_headers_addf(&p->headers, "X-Total-Running", "%zu", running);
                p->json = page(&l, &query, p);
        }
        listing_free(&l);
        sandbox_query_free(&query);
        return r;
}

/* The v1 form knows metadata only and has no pages. */
int sandboxes_list(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandbox_query query = { .running = true, .started_after_ns = INT64_MIN };
        struct listing l = {};
        bool malformed = false;
        char *metadata = query_get(q->http->query, "metadata", &malformed);
        int r = malformed ? error_set(err, ERROR_INVALID, "Error parsing metadata") : 0;
        if (r == 0 && metadata && *metadata)
                r = metadata_decode(metadata, &query.metadata, err);
        if (r == 0)
                r = list(data, q->team, &query, &l, err);
        if (r == 0) {
                p->status = 200;
                p->json = json_array();
                for (size_t i = 0; i < l.count; i++)
                        json_array_append_new(p->json, sandbox_listed_json(l.items[i]));
        }
        free(metadata);
        listing_free(&l);
        sandbox_query_free(&query);
        return r;
}
