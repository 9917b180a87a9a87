/* Sandboxes on this node: fork, life cycle, expiry, adoption after a restart. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "store/records.h"

#define SANDBOX_MASK_MAX 261 /* bytes of maskRequestHost: a DNS name, a colon, a port */

struct sandbox_settings {
        const char *data_dir;
        const char *kit_root;
        const char *backend;      /* NULL: need_backend() tells it when the first sandbox is started */
        int (*need_backend)(void *data, const char **ret, struct error *err); /* or NULL; any thread */
        void *need_backend_data;
        int network;              /* enum vm_network */
        const unsigned char *root_secret; /* 32 bytes: envd and traffic tokens are HMACs under HKDF labels */
        struct records *records;
        unsigned pool_max;        /* clones that are kept ready (pool.h), at most; 0: none */
        uint64_t pool_bytes;      /* of memory for them */
        uint64_t history_bytes;   /* for logs and metrics of sandboxes; 0: no bound but their age */
        const char *node;         /* asked for in the records whether it takes work; NULL: it does */
};

struct sandbox_spec {
        const struct team *team;
        const struct template_record *template_;
        const struct build_record *build;
        int64_t timeout_s;
        bool secure;
        bool auto_pause;          /* at its end the sandbox is paused, not ended */
        bool auto_pause_disk;     /* then without its memory (sandbox-api 5.1, autoPauseMemory false) */
        bool auto_resume;         /* traffic to the paused sandbox resumes it */
        const json_t *metadata;   /* object of strings or NULL */
        const json_t *env;        /* object of strings or NULL */
        const json_t *allow_internet_access; /* true/false/NULL */
        const json_t *network;    /* object or NULL */
        bool allow_public_traffic;
};

struct sandbox_info { /* a copy; free with sandbox_info_free */
        char *id;             /* i + 20 of [a-z0-9] */
        char *team_id, *template_id, *build_id, *alias; /* alias may be NULL */
        char *envd_version;
        char *envd_token;     /* NULL when not secure */
        char *traffic_token;  /* NULL unless public traffic is off */
        int64_t started_ns, ends_ns;
        unsigned vcpus, memory_mb;
        uint64_t disk_mb;
        json_t *metadata, *allow_internet_access, *network;
        bool auto_pause, auto_pause_disk, auto_resume;
        int64_t timeout_s;    /* as at create: what an automatic resume gives */
        bool paused;
        bool paused_disk;     /* without its memory: traffic does not resume it, for a boot would be no continuation */
        bool nothing_started; /* the template has no start command */
};
void sandbox_info_free(struct sandbox_info *i);

struct sandbox_manager;
/* Opens the manager, adopts the sandboxes whose shims still run, forgets and cleans up after the others. */
int sandbox_manager_new(const struct sandbox_settings *s, struct sandbox_manager **ret, struct error *err);
void sandbox_manager_free(struct sandbox_manager *m); /* sandboxes live on */

int sandbox_create(struct sandbox_manager *m, const struct sandbox_spec *spec, struct sandbox_info **ret, struct error *err);
/* team NULL = any team (admin, proxy). Unknown or another team's: NOT_FOUND `Sandbox "<id>" doesn't exist or you don't have
 * access to it`. */
int sandbox_get(struct sandbox_manager *m, const struct team *team, const char *id, struct sandbox_info **ret, struct error *err);
int sandbox_list(struct sandbox_manager *m, const struct team *team, struct sandbox_info ***ret, size_t *count, struct error *err);
int sandbox_kill(struct sandbox_manager *m, const struct team *team, const char *id, struct error *err);
/* end = now + timeout; with `extend_only` never earlier than it is. */
int sandbox_set_timeout(struct sandbox_manager *m, const struct team *team, const char *id, int64_t timeout_s, bool extend_only,
                        struct sandbox_info **ret, struct error *err);

/* Saves memory and devices (or, without `memory`, writes the file systems back: resuming then boots), ends the VM, keeps the disk; durable when it
 * returns (sandbox-api 9). Waits for a pause or resume that is under way. CONFLICT when it is paused already; NOT_FOUND as above; after any other error it goes on running. */
int sandbox_pause(struct sandbox_manager *m, const struct team *team, const char *id, bool memory, struct error *err);
struct sandbox_connect {
        int64_t timeout_s;
        bool running_ok; /* false: CONFLICT when it is running (sandbox-api 10) */
        bool reboot;     /* paused: booted from its disk, whatever was saved of its memory; no processes but the template's start command */
};
/* Running: the end is moved as by sandbox_set_timeout(extend_only). Paused: resumed, to end `timeout_s` from now, and *ret_resumed
 * is true (sandbox-api 11). Of several callers one resumes and the others wait. LIMIT when the team runs too many; CONFLICT while
 * it is being killed. */
int sandbox_connect(struct sandbox_manager *m, const struct team *team, const char *id, const struct sandbox_connect *c,
                    struct sandbox_info **ret, bool *ret_resumed, struct error *err);

/* Copies of a running sandbox, which is frozen only while its changes are saved (sandbox-api 14): memory, disk, metadata and
 * lifecycle are inherited, identity and tokens are new. Each ends `timeout_s` after it is ready. */
struct sandbox_fork {
        struct sandbox_info *info; /* of the copy; NULL: `error` says why there is none. The caller frees. */
        struct error error;
};
/* Fills `count` (1 or more) forks; NOT_FOUND, CONFLICT (paused, or being copied already) and the failures of saving are of the whole. */
int sandbox_fork(struct sandbox_manager *m, const struct team *team, const char *id, int64_t timeout_s, size_t count,
                 struct sandbox_fork *ret, struct error *err);
/* Makes the artifacts of build `build_id` of template `template_id` from a running sandbox, which goes on (sandbox-api 15):
 * builds/<build_id>/ appears complete and durable. Errors as of sandbox_fork(). */
int sandbox_snapshot(struct sandbox_manager *m, const struct team *team, const char *id, const char *template_id, const char *build_id,
                     struct error *err);

/* Replaces what the sandbox may reach (sandbox-api 13): arrays of addresses and ranges, or NULL; open connections stay. INVALID where this
 * server cannot enforce it; CONFLICT when it is paused. */
int sandbox_set_network(struct sandbox_manager *m, const struct team *team, const char *id, const json_t *allow_out, const json_t *deny_out,
                        const json_t *allow_internet_access, struct error *err);

/* What it used, from its samples between the two times, ascending; for long ranges means (sandbox-api 16). A running one is asked now when its last
 * sample is old. Nothing for a sandbox of another team or a time before its first sample; samples outlive the sandbox. free() *ret. */
struct sandbox_metrics;
size_t sandbox_metrics(struct sandbox_manager *m, const struct team *team, const char *id, int64_t from_ns, int64_t to_ns, struct sandbox_metrics **ret);
/* Its log, which outlives it too (sandbox-api 17): the array of history_logs(). */
struct history_query;
json_t *sandbox_logs(struct sandbox_manager *m, const struct team *team, const char *id, const struct history_query *q);

size_t sandbox_count(struct sandbox_manager *m, const char *team_id);

/* The last bytes of a sandbox's console; the caller frees. */
int sandbox_console(struct sandbox_manager *m, const char *id, char **ret, struct error *err);
/* Does a sandbox here, or one that is just being made, run on this build's artifacts? */
bool sandbox_build_used(struct sandbox_manager *m, const char *build_id);
/* The artifacts of this build are about to go: closes what the manager holds open of them. */
void sandbox_build_forget(struct sandbox_manager *m, const char *build_id);

/* For the traffic proxy (proxy.h); any thread. `ret` says what the gateway must check. */
struct sandbox_route {
        bool running;
        uint64_t life;        /* another one after each pause: a connection to the guest is of one life */
        bool resumable;       /* paused, and traffic resumes it */
        bool public_traffic;
        bool nothing_started; /* as in sandbox_info */
        char traffic_token[65];
        char envd_token[65]; /* "" when not secure */
        char mask_request_host[SANDBOX_MASK_MAX + 1]; /* as in `network`; "" = none */
};
int sandbox_route(struct sandbox_manager *m, const char *id, struct sandbox_route *ret);
/* Blocking (worker thread): a connected socket to a guest port; -ENOENT unknown, -ECONNREFUSED nothing listens. A paused sandbox
 * is resumed where that is wanted (sandbox-api 21); -EDQUOT when its team runs too many. */
int sandbox_dial(struct sandbox_manager *m, const char *id, int port, int *ret_fd);
/* The running or resumable sandbox whose token makes the signature of a signed file URL valid (sandbox-api 22.3); `ret_id` has 22 bytes. */
int sandbox_by_signature(struct sandbox_manager *m, const char *path, const char *operation, const char *user, const char *expiration,
                         const char *signature, char *ret_id);
