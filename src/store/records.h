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
#include "store/store.h"

struct team {
        char *id;   /* UUID */
        char *name;
        char *slug; /* the namespace */
        bool system, blocked;
        char *blocked_reason; /* or NULL */
        unsigned max_vcpus, max_memory_mb, max_disk_mb, max_concurrent_builds, max_sandboxes, max_sandbox_hours;
};
void team_free(struct team *t);

struct template_record {
        char *id;       /* 20 of [a-z0-9] */
        char *team_id;
        bool public_, deleted, snapshot; /* snapshot: made from a sandbox (sandbox-api 15) */
        char **aliases; /* without namespace, sorted, NULL-terminated */
        int64_t created_ns, updated_ns, last_spawned_ns; /* 0 = never */
        int64_t spawn_count;
        int build_count;
};
void template_record_free(struct template_record *t);

enum build_state { BUILD_WAITING = 0, BUILD_BUILDING, BUILD_READY, BUILD_ERROR };
const char *build_state_name(enum build_state s); /* "waiting" … (template-api W9) */

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
        char *default_user, *workdir; /* workdir may be NULL */
        json_t *env;                  /* object: the build environment for children */
        json_t *image_env;            /* object: the image's own ENV, lowest precedence in sandboxes (design 9) */
        char *start_cmd, *ready_cmd;  /* or NULL */
        json_t *start_context;        /* {user, workdir, env} in which the pair was defined, or NULL */
        uint64_t disk_bytes;          /* allocated */
        char *node;
};
void build_record_free(struct build_record *b);

struct records;
int records_open(struct store *s, struct records **ret, struct error *err);
void records_close(struct records *r);

/* Teams and keys */
int records_team_create(struct records *r, const struct team *t, struct error *err); /* slug taken: CONFLICT */
int records_team_get(struct records *r, const char *id, struct team **ret, struct error *err);
int records_team_by_slug(struct records *r, const char *slug, struct team **ret, struct error *err);
int records_team_update(struct records *r, const struct team *t, struct error *err);
int records_team_list(struct records *r, struct team ***ret, size_t *count, struct error *err);
/* Mints e2b_ + 40 hex; only a hash is stored. The caller frees both (and shows the key once). */
int records_key_create(struct records *r, const char *team_id, char **ret_key, char **ret_key_id, struct error *err);
int records_key_revoke(struct records *r, const char *key_id, struct error *err);
int records_key_list(struct records *r, const char *team_id, json_t **ret, struct error *err);
/* UNAUTHORISED with the texts of sandbox-api 2.2. */
int records_key_team(struct records *r, const char *key, struct team **ret, struct error *err);

/* Templates and builds */
struct build_request { /* POST /v3/templates after validation */
        const char *alias;
        const char *const *tags; /* NULL-terminated, lower-case, unique, not empty */
        unsigned vcpus, memory_mb;
};
/* Registers a build (template-api 4.1 from "resolve the alias" on): finds or creates the template, supersedes waiting
 * builds with an overlapping tag (16.2), enforces the team's concurrent-build limit (LIMIT). */
int records_build_register(struct records *r, const struct team *team, const struct build_request *q,
                           struct template_record **ret_template, struct build_record **ret_build, struct error *err);
int records_template_get(struct records *r, const char *id, struct template_record **ret, struct error *err);
int records_build_get(struct records *r, const char *id, struct build_record **ret, struct error *err);
/* waiting -> building; CONFLICT "build is not in waiting state". */
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
int records_template_spawned(struct records *r, const char *id, struct error *err); /* spawn_count + 1 */

/* Build log: appended in batches (chunks, compressed when large), read by offset after the level filter. */
struct log_entry {
        int64_t time_ns;
        int level;   /* 0 debug … 3 error */
        char *step;  /* NULL, "base", "finalize" or a decimal */
        char *message;
};
void log_entries_free(struct log_entry *entries, size_t count);
int records_log_append(struct records *r, const char *build_id, const struct log_entry *entries, size_t count, struct error *err);
int records_log_read(struct records *r, const char *build_id, int min_level, size_t offset, size_t limit,
                     struct log_entry **ret, size_t *ret_count, struct error *err);

/* Sandboxes: one JSON object a sandbox, its shape is src/sandbox's. */
int records_sandbox_put(struct records *r, const char *id, const json_t *j, struct error *err);
int records_sandbox_delete(struct records *r, const char *id, struct error *err);
int records_sandbox_each(struct records *r, int (*fn)(void *data, const char *id, const json_t *j), void *data, struct error *err);
