/* The records that the product is made of, kept as JSON values in the store: teams, keys, templates, builds,
 * their logs, sandboxes. Names, tags and resolution follow template-api 15. Thread-safe; blocking.
 *
 * Every struct returned by pointer is owned by the caller and freed with its _free (NULL is fine).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "store/build_state.h"
#include "store/names.h"
#include "store/secret.h"
#include "store/store.h"

struct team {
        char *id;   /* UUID */
        char *name;
        char *slug; /* the namespace */
        bool system, blocked;
        char *blocked_reason; /* or NULL */
        unsigned max_vcpus, max_memory_mb, max_disk_mb, max_concurrent_builds, max_sandboxes, max_sandbox_hours;
        unsigned max_context_mb, max_contexts_mb; /* one uploaded archive; all that are kept */
        unsigned max_log_mb;                      /* of messages a build */
        unsigned max_requests_per_second;         /* 0: no limit */
};
void team_free(struct team *t);
void team_list_free(struct team **teams, size_t count);
/* Fills the limits with their defaults (design 4). */
void team_defaults(struct team *t);
/* The rules for CPU and memory of a template (template-api 4.1). ERROR_INVALID with its texts. */
int team_check_resources(const struct team *t, unsigned vcpus, unsigned memory_mb, struct error *err);
static inline void cleanup_team(struct team **t)
{
        team_free(*t);
}

struct template_record {
        char *id;       /* 20 of [a-z0-9] */
        char *team_id;
        bool public_, deleted, snapshot; /* snapshot: made from a sandbox (sandbox-api 15) */
        char **aliases; /* without namespace, sorted, NULL-terminated */
        int64_t created_ns, updated_ns, last_spawned_ns; /* 0 = never */
        int64_t spawn_count;
        int build_count;
        char *latest_ready;   /* build ID of the build that became ready last, or NULL */
        char *latest_default; /* build ID of the newest build registered with the tag "default", or NULL */
};
void template_record_free(struct template_record *t);
void template_records_free(struct template_record **list, size_t count);
static inline void cleanup_template(struct template_record **t)
{
        template_record_free(*t);
}

/* The ready command of a build with a start command and none of its own (template-api 13.2): time for it to come up, and no condition. */
#define BUILD_READY_DEFAULT "sleep 20"

struct build_record {
        char *id; /* UUID */
        char *template_id;
        enum build_state state;
        char **tags;   /* NULL-terminated; at least one */
        unsigned vcpus, memory_mb, disk_mb;
        int64_t created_ns, started_ns, finished_ns; /* 0 = not yet */
        char *reason, *reason_step; /* of BUILD_ERROR; step may be NULL (template-api 14.2) */
        char *envd_version;         /* "" until ready */
        /* What a sandbox or child build needs (template-api 10.6, 13.4); set when ready. */
        char *default_user, *workdir; /* of sandboxes; workdir may be NULL: the user's home */
        char *context_user, *context_workdir; /* what children start from; workdir may be NULL */
        json_t *env;                  /* object: the build environment for children */
        json_t *image_env;            /* object: the image's own ENV, lowest precedence in sandboxes (design 9) */
        char *start_cmd, *ready_cmd;  /* or NULL; BUILD_READY_DEFAULT where there is only the first */
        json_t *start_context;        /* {user, workdir, env} in which the pair was defined, or NULL */
        uint64_t disk_bytes;          /* allocated */
        char *node;
        char *sandbox_id;             /* what it is a snapshot of, or NULL */
};
void build_record_free(struct build_record *b);
void build_records_free(struct build_record **list, size_t count);
static inline void cleanup_build(struct build_record **b)
{
        build_record_free(*b);
}

#define BUILD_REASON_CANCELLED "build was cancelled"
#define BUILD_REASON_SUPERSEDED "The build was canceled because it was superseded by a newer one."
#define BUILD_REASON_WAITED "build is in waiting state for too long"

struct records;
/* `s` must outlive the records. */
int records_open(struct store *s, struct records **ret, struct error *err);
/* From now on environments and sandbox objects are sealed under a key derived from the root secret (design 8.6). Call it once,
 * right after records_open(); without it they lie in the store in clear (tests). */
void records_set_secret(struct records *r, const unsigned char root[SECRET_LEN]);
/* Is the root secret the one that the store was first used with? ERROR_CONFLICT with the mend when not. */
int records_check_secret(struct records *r, struct error *err);
void records_close(struct records *r);

/* Teams and keys */
int records_team_create(struct records *r, const struct team *t, struct error *err); /* slug taken: CONFLICT */
int records_team_get(struct records *r, const char *id, struct team **ret, struct error *err);
int records_team_by_slug(struct records *r, const char *slug, struct team **ret, struct error *err);
int records_team_update(struct records *r, const struct team *t, struct error *err);
/* By slug; freed with team_list_free(). */
int records_team_list(struct records *r, struct team ***ret, size_t *count, struct error *err);
/* With its keys. ERROR_CONFLICT while it has templates. */
int records_team_delete(struct records *r, const char *id, struct error *err);
int records_team_keys_revoke(struct records *r, const char *team_id, struct error *err);
/* Mints e2b_ + 40 hex; only a hash is stored. The caller frees both (and shows the key once). */
int records_key_create(struct records *r, const char *team_id, char **ret_key, char **ret_key_id, struct error *err);
int records_key_revoke(struct records *r, const char *key_id, struct error *err);
/* An array of {id, hint, createdAt}. */
int records_key_list(struct records *r, const char *team_id, json_t **ret, struct error *err);
/* UNAUTHORISED with the texts of sandbox-api 2.2. */
int records_key_team(struct records *r, const char *key, struct team **ret, struct error *err);

/* Templates and builds */
struct build_request { /* POST /v3/templates after validation; or a snapshot of a sandbox (sandbox-api 15) */
        const char *alias;              /* NULL: an unnamed snapshot */
        const char *const *tags; /* NULL-terminated, lower-case, unique, not empty */
        unsigned vcpus, memory_mb;
        const char *sandbox_id;         /* a snapshot of this sandbox: the build is building at once. NULL: a build */
        unsigned disk_mb;               /* of a snapshot */
};
/* Registers a build (template-api 4.1 from "resolve the alias" on): finds or creates the template, supersedes waiting
 * builds with an overlapping tag (16.2), enforces the team's concurrent-build limit (LIMIT). An alias belongs either to builds or
 * to snapshots: CONFLICT. */
int records_build_register(struct records *r, const struct team *team, const struct build_request *q,
                           struct template_record **ret_template, struct build_record **ret_build, struct error *err);
/* By ID; deleted ones are ERROR_NOT_FOUND. */
int records_template_get(struct records *r, const char *id, struct template_record **ret, struct error *err);
int records_build_get(struct records *r, const char *id, struct build_record **ret, struct error *err);
/* Without what is sealed (env, image_env, start_context: NULL): who follows a build does not need it. */
int records_build_peek(struct records *r, const char *id, struct build_record **ret, struct error *err);
/* waiting -> building; CONFLICT "build is not in waiting state", NOT_FOUND when its template was deleted. */
int records_build_start(struct records *r, const char *id, struct error *err);
/* The running builds of the template whose tags overlap with those of `build_id`, other than itself; for cancelling. */
int records_build_overlapping(struct records *r, const char *build_id, char ***ret_ids, struct error *err);
/* building -> ready with what the result carries; the tags move in the same transaction (template-api 15.4). CONFLICT when
 * the build is no longer building (cancelled, template deleted). */
int records_build_ready(struct records *r, const struct build_record *result, struct error *err);
/* waiting or building -> error. `step` may be NULL. A no-op on a finished build. */
int records_build_fail(struct records *r, const char *id, const char *reason, const char *step, struct error *err);
/* At start-up: every build that was building becomes error with `reason` (design 8.3). Returns how many. */
int records_builds_interrupted(struct records *r, const char *reason, struct error *err);

/* Resolves "[ns/]alias[:tag]" or an ID for `team` to a template and its ready build (template-api 15.3-15.5). */
int records_resolve(struct records *r, const struct team *team, const char *reference, struct template_record **ret_template,
                    struct build_record **ret_build, struct error *err);
/* The two halves of it, without the check of access: NOT_FOUND "template '<key>' not found" and "tag '<tag>' does not
 * exist for template '<key>'". An untagged name means "default", else the latest ready build. */
int records_template_find(struct records *r, const struct team *team, const struct name_ref *n, struct template_record **ret,
                          struct error *err);
int records_build_find(struct records *r, const struct template_record *t, const struct name_ref *n, struct build_record **ret,
                       struct error *err);
/* The ready build of exactly this tag; NULL when there is none. */
int records_build_of_tag(struct records *r, const struct template_record *t, const char *tag, struct build_record **ret,
                         struct error *err);
int records_template_spawned(struct records *r, const char *id, struct error *err); /* spawn_count + 1 */

/* "slug/alias" of each alias, then the bare aliases it holds; freed with name_list_free(). */
int records_template_names(struct records *r, const struct template_record *t, char ***ret, struct error *err);
/* Sets the public flag, and claims or releases bare aliases (template-api 15.6). */
int records_template_publish(struct records *r, const char *id, bool public_, struct error *err);
/* Soft delete (template-api 16.3): the second time ERROR_NOT_FOUND. Its waiting and building builds fail as cancelled;
 * their IDs come back (name_list_free()), so that the caller ends their VMs. */
int records_template_delete(struct records *r, const char *id, char ***ret_builds, struct error *err);

/* Lists are pages, newest first: those strictly after the cursor (NULL: from the start), at most `limit`; *ret_more tells
 * whether there are others. */
struct list_cursor {
        int64_t time_ns;
        const char *id;
};
int records_template_list(struct records *r, const char *team_id, const struct list_cursor *after, size_t limit,
                          struct template_record ***ret, size_t *ret_count, bool *ret_more, struct error *err);
/* How many a team has. */
int records_template_count(struct records *r, const char *team_id, size_t *ret, struct error *err);
int records_build_list(struct records *r, const char *template_id, const struct list_cursor *after, size_t limit,
                       struct build_record ***ret, size_t *ret_count, bool *ret_more, struct error *err);
/* The waiting and building builds of all teams. */
int records_builds_active(struct records *r, struct build_record ***ret, size_t *count, struct error *err);
int records_team_builds_active(struct records *r, const char *team_id, struct build_record ***ret, size_t *count, struct error *err);
/* Fails the builds that wait for their trigger since before `before_ns` (template-api 14.1), and those whose template was deleted by a
 * process that did not get to them. Returns how many. */
int records_builds_expire(struct records *r, int64_t before_ns, struct error *err);

/* Tags. The name of a tag must satisfy name_is_tag(). */
struct tag_record {
        char *tag, *build_id;
        int64_t created_ns; /* when it was assigned */
};
void tag_records_free(struct tag_record *tags, size_t count);
/* Points `tags` (NULL-terminated, at most NAME_TAGS_MAX) at a ready build of the template; NOT_FOUND otherwise. */
int records_tags_assign(struct records *r, const char *template_id, const char *build_id, char *const *tags, struct error *err);
/* Points `tags` at the build that the tag `from` (or the build ID `from`) names at that moment; its ID comes back (the caller
 * frees). NOT_FOUND when there is no such ready build. */
int records_tags_copy(struct records *r, const char *template_id, const char *from, char *const *tags, char **ret_build_id,
                      struct error *err);
/* Absent ones are ignored. */
int records_tags_delete(struct records *r, const char *template_id, char *const *tags, struct error *err);
/* Sorted by name. */
int records_tags_list(struct records *r, const char *template_id, struct tag_record **ret, size_t *ret_count, struct error *err);

/* store_snapshot_begin() and store_snapshot_end() of its store. */
void records_snapshot_begin(struct records *r);
void records_snapshot_end(struct records *r);

/* Build log: appended in batches (chunks, compressed when large), read by offset after the level filter. */
struct log_entry {
        int64_t time_ns;
        int level;   /* 0 debug … 3 error */
        char *step;  /* NULL, "base", "finalize" or a decimal */
        char *message;
};
#define RECORDS_LOG_MAX_BYTES (16 * 1024 * 1024)  /* of messages a build, where its team has no max_log_mb of its own */
#define RECORDS_LOG_RESERVE_BYTES (64 * 1024)     /* more for lines without a step: how the build ended */
void log_entries_free(struct log_entry *entries, size_t count);
int records_log_append(struct records *r, const char *build_id, const struct log_entry *entries, size_t count, struct error *err);
int records_log_read(struct records *r, const char *build_id, int min_level, size_t offset, size_t limit,
                     struct log_entry **ret, size_t *ret_count, struct error *err);
/* The offset, after the level filter, of the first entry at or after a time. */
int records_log_seek(struct records *r, const char *build_id, int min_level, int64_t time_ns, size_t *ret_offset, struct error *err);
/* Removes the logs whose last entry is older than `before_ns`. Returns how many. */
int records_logs_expire(struct records *r, int64_t before_ns, struct error *err);

/* Sandboxes: one JSON object a sandbox, its shape is src/sandbox's. */
int records_sandbox_put(struct records *r, const char *id, const json_t *j, struct error *err);
int records_sandbox_delete(struct records *r, const char *id, struct error *err);
int records_sandbox_each(struct records *r, int (*fn)(void *data, const char *id, const json_t *j), void *data, struct error *err);

/* The audit log: appended to, never changed; the oldest entries go where there are more than RECORDS_AUDIT_MAX. */
#define RECORDS_AUDIT_MAX 10000
struct audit_entry {
        const char *actor;  /* who, as far as it is known */
        const char *action; /* "create-team" … */
        const char *target; /* what it was done to; this and the following may be NULL, and are cut at 1 KiB */
        const char *detail; /* must hold no secret */
        const char *error;  /* why it failed */
        int status;         /* of the answer */
};
int records_audit_append(struct records *r, const struct audit_entry *e, struct error *err);
/* The newest `limit` entries, oldest first: an array of {time, actor, action, target?, detail?, error?, status}. */
int records_audit_list(struct records *r, size_t limit, json_t **ret, struct error *err);

/* Nodes. A cordoned one takes no new builds and sandboxes; what runs goes on. */
int records_node_cordon(struct records *r, const char *name, bool cordoned, struct error *err);
/* ERROR_UNAVAILABLE when it is cordoned. */
int records_node_admits(struct records *r, const char *name, struct error *err);
