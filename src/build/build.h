/* Building a template: the pipeline of the product page (pull, unpack, provision, steps, finalize), run on one worker
 * thread per build, and the queue that bounds how many run at once.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "oci/oci.h"

/* One validated step (template-api 5.1). */
struct build_step {
        char *type;   /* COPY, ENV, RUN, WORKDIR, USER: upper-case; ADD and ARG are mapped */
        char **args;  /* NULL-terminated */
        bool force;
        char *files_hash; /* COPY: 64 hex; else NULL */
};

/* The trigger request (template-api 4.5) as values. Pure: validates everything that can be validated without I/O; errors are
 * ERROR_INVALID with the texts of template-api 5.4 and 17 D1, D34. */
struct build_plan {
        char *from_image, *from_template; /* exactly one */
        struct oci_auth auth;
        bool force;
        struct build_step *steps;
        size_t step_count;
        char *start_cmd, *ready_cmd; /* NULL when unset or empty */
};
int build_plan_parse(const json_t *body, struct build_plan *ret, struct error *err);
void build_plan_free(struct build_plan *p);
/* Are the archives of all COPY steps in `dir` (the team's, or what a guest sees), named by their hashes? ERROR_NOT_FOUND tells
 * of the first step whose archive is not; `*ret_step` is then its number from 1 (checklist 95). */
int build_plan_check_uploads(const struct build_plan *p, const char *dir, size_t *ret_step, struct error *err);
/* The same of one COPY step. */
int build_step_check_upload(const struct build_step *s, const char *dir, struct error *err);

/* 20 or 21 from the User-Agent (template-api 10.2); ERROR_INVALID "Error when parsing user agent: …". */
int build_template_version(const char *user_agent, int *ret, struct error *err);

/* {user, workdir, env}: what layers hand on (template-api 10.6). */
struct build_context {
        char *user;
        char *workdir;  /* or NULL */
        json_t *env;    /* object of strings */
};
void build_context_free(struct build_context *c);

struct build_parent { /* fromTemplate, resolved by the caller */
        char *build_id, *dir;
        struct build_context context;
        json_t *image_env;
        char *start_cmd, *ready_cmd;
        struct build_context start_context;
};

struct build_job {
        char *build_id, *template_id;
        char *team_slug;          /* scope of uploaded contexts: files/<slug>/<hash> */
        struct build_plan plan;
        struct build_parent *parent; /* for from_template */
        int template_version;     /* 20 or 21 */
        unsigned vcpus, memory_mb, disk_mb;
};
void build_job_free(struct build_job *j);

struct build_outcome {
        struct build_context context;
        json_t *image_env;
        char *start_cmd, *ready_cmd;
        struct build_context start_context;
        uint64_t disk_bytes;
        char *envd_version;
};

/* What the queue tells its owner; called on the build's worker thread. */
struct build_events {
        void (*log)(void *data, const char *build_id, int level, const char *step, const char *message);
        /* The build leaves the queue and begins. */
        void (*started)(void *data, const char *build_id);
        /* Artifacts are durable in builds/<buildID>/. Returning negative (cancelled meanwhile) makes the queue remove them. */
        int (*ready)(void *data, const struct build_job *job, const struct build_outcome *outcome, struct error *err);
        void (*failed)(void *data, const char *build_id, const char *reason, const char *step);
        void *data;
};

struct build_settings {
        const char *data_dir;      /* builds/, cache/, files/ below it */
        const char *kit_root;
        const char *hypervisor;    /* "auto", "kvm" or "tcg": chosen anew for each build, by its kit */
        const char *cpu_model;     /* or NULL */
        int network;               /* enum vm_network */
        struct oci_options oci;
        unsigned max_builds;       /* --max-builds */
        uint64_t step_cache_bytes; /* --step-cache-mb */
        unsigned max_seconds;      /* --build-seconds: from the build's turn to its end */
        unsigned ready_seconds;    /* --ready-seconds: all tries of the ready command together */
};

struct build_queue;
/* Removes litter of interrupted builds (scratch directories, VMs of builds) first. */
int build_queue_new(const struct build_settings *s, const struct build_events *e, struct build_queue **ret, struct error *err);
/* Takes the job over. */
int build_queue_submit(struct build_queue *q, struct build_job *job, struct error *err);
/* Ends a queued or running build: its VMs die, its artifacts go, failed() is called with "build was cancelled". Returns
 * at once. Unknown IDs are fine. */
void build_queue_cancel(struct build_queue *q, const char *build_id);
/* Is the build queued or running, or the parent of one that is? Any thread. */
bool build_queue_uses(struct build_queue *q, const char *build_id);
/* Cancels all, waits, frees. */
void build_queue_free(struct build_queue *q);
