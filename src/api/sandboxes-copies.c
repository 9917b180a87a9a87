/* Copies of running sandboxes: forks (sandbox-api 14) and snapshots, which are templates (sandbox-api 15). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/sandbox-body.h"
#include "api/sandbox-query.h"
#include "api/sandboxes-internal.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "http/message.h"
#include "sandbox/id.h"
#include "sandbox/timeout.h"
#include "store/names.h"

#define FORKS_MAX 100
#define FORK_TIMEOUT_S 15
#define TEMPLATES_AT_ONCE 100
#define CURSOR_ID_LEN 16

/* Forks */

static json_t *fork_json(struct sandbox_fork *f)
{
        json_t *j = f->info ? json_pack("{s:o}", "sandbox", sandbox_json(f->info)) :
                              json_pack("{s:{s:i, s:s}}", "error", "code", api_status_of(f->error.kind), "message", f->error.message);
        sandbox_info_free(f->info);
        return j;
}

static int fork_count(const struct api_request *q, const struct team *team, int64_t *ret_count, int64_t *ret_timeout_s, struct error *err)
{
        int r = body_int32(q->json, "count", false, ret_count, err);
        if (r == 0)
                r = body_int32(q->json, "timeout", false, ret_timeout_s, err);
        if (r == 0 && (*ret_count < 1 || *ret_count > FORKS_MAX))
                return error_set(err, ERROR_INVALID, "validation error: 'count' must be between 1 and %d", FORKS_MAX);
        if (r == 0 && *ret_count >= team->max_sandboxes)
                return error_set(err, ERROR_INVALID, "validation error: 'count' must be below the number of sandboxes that your team may run (%u)",
                                 team->max_sandboxes);
        return r < 0 ? r : sandbox_timeout_check(*ret_timeout_s, team->max_sandbox_hours, false, err);
}

int sandboxes_fork(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        char id[SANDBOX_ID_MAX + 1];
        int64_t count = 1, timeout_s = FORK_TIMEOUT_S;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = fork_count(q, q->team, &count, &timeout_s, err);
        if (r < 0)
                return r;
        CLEANUP_FREE struct sandbox_fork *forks = xcalloc((size_t)count, sizeof *forks);
        r = sandbox_fork(s->manager, q->team, id, timeout_s, (size_t)count, forks, err);
        if (r < 0)
                return r;
        p->status = 201;
        p->json = json_array();
        for (int64_t i = 0; i < count; i++)
                json_array_append_new(p->json, fork_json(&forks[i]));
        return 0;
}

/* Snapshots */

/* The name that a snapshot shall have: alias and tags, or none. */
static int parse_name(const json_t *body, const struct team *team, struct name_ref *ret, char ***ret_tags, struct error *err)
{
        const json_t *name = json_object_get(body, "name");
        int r = 0;
        if (name && !json_is_null(name)) {
                if (!json_is_string(name))
                        return error_set(err, ERROR_INVALID, "validation error: 'name' must be a string");
                r = name_parse(json_string_value(name), ret, err);
        }
        if (r == 0 && ret->namespace_ && !streq(ret->namespace_, team->slug))
                return error_set(err, ERROR_INVALID, "namespace '%s' is not your team's ('%s')", ret->namespace_, team->slug);
        return r < 0 ? r : name_tags_collect(ret->tag, NULL, 0, ret_tags, err);
}

/* "<slug>/<alias>:<tag>" and the name without the tag; "<template>:<tag>" and no name for an unnamed one. */
static json_t *snapshot_json(const struct team *team, const struct template_record *t, const char *tag)
{
        const char *alias = t->aliases ? t->aliases[0] : NULL;
        CLEANUP_FREE char *name = alias ? xasprintf("%s/%s", team->slug, alias) : NULL;
        CLEANUP_FREE char *id = xasprintf("%s:%s", name ? name : t->id, tag);
        json_t *names = json_array();
        if (name)
                json_array_append_new(names, json_string(name));
        return json_pack("{s:s, s:o}", "snapshotID", id, "names", names);
}

/* What sandboxes of the snapshot and builds on it need to know is what the sandbox's own build says. */
static int finish(struct sandboxes_api *s, const struct build_record *parent, const struct build_record *made, struct error *err)
{
        CLEANUP_FREE char *rootfs = xasprintf("%s/builds/%s/rootfs.img", s->data_dir, made->id);
        struct build_record result = *parent;
        result.id = made->id;
        result.disk_bytes = tree_allocated_bytes(rootfs);
        return records_build_ready(s->records, &result, err);
}

/* A template that was made for this snapshot alone goes again. */
static void give_up(struct sandboxes_api *s, const struct template_record *t, const struct build_record *b, const struct error *why)
{
        struct error err = {};
        char **builds;
        if (records_build_fail(s->records, b->id, why->message, NULL, &err) < 0)
                log_warn("snapshot %s: %s", b->id, err.message);
        if (t->latest_ready)
                return;
        if (records_template_delete(s->records, t->id, &builds, &err) < 0)
                log_warn("snapshot %s: %s", b->id, err.message);
        else
                name_list_free(builds);
}

static int make(struct sandboxes_api *s, const struct team *team, const struct sandbox_info *info, const char *alias, char *const *tags,
                struct api_response *p, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *parent = NULL, *b = NULL;
        CLEANUP(cleanup_template) struct template_record *t = NULL;
        int r = records_build_get(s->records, info->build_id, &parent, err);
        if (r < 0)
                return r;
        struct build_request request = { .alias = alias, .tags = (const char *const *)tags, .vcpus = info->vcpus, .memory_mb = info->memory_mb,
                                         .disk_mb = (unsigned)info->disk_mb, .sandbox_id = info->id };
        r = records_build_register(s->records, team, &request, &t, &b, err);
        if (r < 0)
                return r;
        r = sandbox_snapshot(s->manager, team, info->id, t->id, b->id, err);
        if (r == 0)
                r = finish(s, parent, b, err);
        if (r < 0) {
                give_up(s, t, b, err);
                return r;
        }
        p->status = 201;
        p->json = snapshot_json(team, t, tags[0]);
        return 0;
}

int sandboxes_snapshot(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        struct sandboxes_api *s = data;
        const struct team *team = q->team;
        char id[SANDBOX_ID_MAX + 1];
        CLEANUP(name_ref_clear) struct name_ref name = {};
        struct sandbox_info *info = NULL;
        char **tags = NULL;
        int r = sandboxes_target(q, id, err);
        if (r == 0)
                r = parse_name(q->json, team, &name, &tags, err);
        if (r == 0)
                r = sandbox_get(s->manager, team, id, &info, err);
        if (r == 0 && info->paused)
                r = error_set(err, ERROR_NOT_FOUND, "Sandbox \"%s\" is not running: resume it before a snapshot of it is made", id);
        if (r == 0)
                r = make(s, team, info, name.alias, tags, p, err);
        sandbox_info_free(info);
        name_list_free(tags);
        return r;
}

/* The list */

struct snapshot {
        json_t *json;
        int64_t created_ns;
        char cursor_id[CURSOR_ID_LEN + 1]; /* orders those of one instant */
};

struct snapshots {
        struct snapshot *items;
        size_t count;
};

static void snapshots_free(struct snapshots *l)
{
        for (size_t i = 0; i < l->count; i++)
                json_decref(l->items[i].json);
        free(l->items);
}

struct filter {
        const char *sandbox_id;
        struct name_ref name; /* alias NULL: any */
};

static bool name_matches(const struct filter *f, const struct team *team, const struct template_record *t, const char *tag)
{
        if (!f->name.alias)
                return true;
        if (f->name.namespace_ && !streq(f->name.namespace_, team->slug))
                return false;
        if (f->name.tag ? !streq(f->name.tag, tag) : f->name.explicit_default && !streq(tag, NAME_TAG_DEFAULT))
                return false;
        return streq(t->id, f->name.alias) || (t->aliases && name_list_has(t->aliases, f->name.alias));
}

/* FNV-1a. */
static void cursor_id(const char *text, char *ret)
{
        uint64_t h = 0xcbf29ce484222325u;
        for (; *text; text++)
                h = (h ^ (unsigned char)*text) * 0x100000001b3u;
        snprintf(ret, CURSOR_ID_LEN + 1, "%016llx", (unsigned long long)h);
}

static int add_tag(struct sandboxes_api *s, const struct team *team, const struct filter *f, const struct template_record *t,
                   const struct tag_record *tag, struct snapshots *l, struct error *err)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        if (!name_matches(f, team, t, tag->tag))
                return 0;
        int r = records_build_get(s->records, tag->build_id, &b, err);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        if (f->sandbox_id && (!b->sandbox_id || !streq(b->sandbox_id, f->sandbox_id)))
                return 0;
        struct snapshot one = { .json = snapshot_json(team, t, tag->tag), .created_ns = tag->created_ns };
        cursor_id(json_str(one.json, "snapshotID"), one.cursor_id);
        l->items = xreallocarray(l->items, l->count + 1, sizeof *l->items);
        l->items[l->count++] = one;
        return 0;
}

static int add_template(struct sandboxes_api *s, const struct team *team, const struct filter *f, const struct template_record *t,
                        struct snapshots *l, struct error *err)
{
        struct tag_record *tags;
        size_t count;
        int r = records_tags_list(s->records, t->id, &tags, &count, err);
        for (size_t i = 0; r == 0 && i < count; i++)
                r = add_tag(s, team, f, t, &tags[i], l, err);
        if (r == 0 || count > 0)
                tag_records_free(tags, count);
        return r;
}

static int collect(struct sandboxes_api *s, const struct team *team, const struct filter *f, struct snapshots *l, struct error *err)
{
        CLEANUP_FREE char *last_id = NULL;
        struct list_cursor last = {};
        bool more = true;
        int r = 0;
        while (r == 0 && more) {
                struct template_record **list;
                size_t count;
                r = records_template_list(s->records, team->id, last_id ? &last : NULL, TEMPLATES_AT_ONCE, &list, &count, &more, err);
                if (r < 0)
                        return r;
                for (size_t i = 0; r == 0 && i < count; i++)
                        if (list[i]->snapshot)
                                r = add_template(s, team, f, list[i], l, err);
                if (count > 0) {
                        last_id = (free(last_id), xstrdup(list[count - 1]->id));
                        last = (struct list_cursor){ .time_ns = list[count - 1]->created_ns, .id = last_id };
                }
                template_records_free(list, count);
        }
        return r;
}

static int newest_first(const void *a, const void *b)
{
        const struct snapshot *x = a, *y = b;
        return sandbox_order(x->created_ns, x->cursor_id, y->created_ns, y->cursor_id, false);
}

static json_t *page(struct snapshots *l, const struct sandbox_query *q, struct api_response *p)
{
        json_t *array = json_array();
        const struct snapshot *last = NULL;
        if (l->count > 0)
                qsort(l->items, l->count, sizeof *l->items, newest_first);
        for (size_t i = 0; i < l->count; i++) {
                const struct snapshot *x = &l->items[i];
                if (q->after && sandbox_order(x->created_ns, x->cursor_id, q->after_started_ns, q->after_id, false) <= 0)
                        continue;
                if (last && json_array_size(array) == q->limit) {
                        char cursor[CURSOR_MAX];
                        cursor_format(last->created_ns, last->cursor_id, false, cursor);
                        http_headers_add(&p->headers, "X-Next-Token", cursor);
                        break;
                }
                last = x;
                json_array_append(array, x->json);
        }
        return array;
}

int sandboxes_snapshots(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        CLEANUP_FREE char *sandbox_id = query_get(q->http->query, "sandboxID", NULL), *name = query_get(q->http->query, "name", NULL);
        struct sandbox_query query = {};
        struct filter f = { .sandbox_id = sandbox_id && *sandbox_id ? sandbox_id : NULL };
        struct snapshots l = {};
        int r = sandbox_query_parse(q->http->query, &query, err); /* for limit and cursor */
        if (r == 0 && name && *name)
                r = name_parse(name, &f.name, err);
        if (r == 0)
                r = collect(data, q->team, &f, &l, err);
        if (r == 0) {
                p->status = 200;
                p->json = page(&l, &query, p);
        }
        snapshots_free(&l);
        name_ref_clear(&f.name);
        sandbox_query_free(&query);
        return r;
}
