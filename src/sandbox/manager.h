/* Inside of the sandbox manager, shared by its files and by nobody else.
 *
 * Life of an entry (docs/architecture.md; sandbox-api 21 has the whole product's):
 *
 *     STARTING --restored and recorded--> RUNNING --kill--> KILLING --dead--> GONE
 *         |                                |  |  ^--------------'  (the kill failed: may be tried again)
 *         '-------- create failed ---------+--|----- VM ended by itself or at its expiry ------> GONE
 *                                             |
 *     RUNNING --pause, or expiry with autoPause--> PAUSING --saved, VM gone--> PAUSED --resume--> RESUMING --> RUNNING
 *        ^-----------------(failed)-------------------'          ^--(failed before it ran)-----------'
 *
 * STARTING holds a place in the team's limit and is invisible; GONE is out of the table and lives only as long as somebody
 * holds a reference. A RUNNING entry past its end is treated at once as what it is about to be, gone or paused: the shim, which
 * keeps the time of death, and the pausers need a few milliseconds to act on it. Whoever meets PAUSING or RESUMING waits for
 * its end on manager.changed. An entry never loses its VM: pausing replaces it in the table with a new one.
 *
 * Durable state is the directory sandboxes/<id>/ and the record in the store. Create makes the directory, restores the VM
 * and writes the record, and only then shows the sandbox to anyone; death removes the VM, then the record, then the
 * directory. So whatever instant the process is killed at, the next start finds a complete sandbox (directory, record
 * and living VM), which it adopts, or parts of one, which it removes. A sandbox is paused when its directory holds the complete
 * `paused`, published after the last and renamed before the first instruction that runs; a VM beside it stands still and is ended.
 *
 * Locks: manager.lock guards the table and every mutable member of entries but `vm`'s use; it is never held across I/O.
 * entry.vm_lock serialises the calls on one VM that are not thread-safe and changes of its end; it is taken before
 * manager.lock, never after it.
 */
#pragma once

#include <pthread.h>

#include "base/clock.h"
#include "sandbox/history.h"
#include "sandbox/id.h"
#include "sandbox/pool.h"
#include "sandbox/sandbox.h"
#include "sandbox/template-cache.h"
#include "sandbox/token.h"
#include "vm/vm.h"

/* A sandbox whose shim has not ended it this long after its end is ended by the manager. */
#define REAP_GRACE_NS (3 * NSEC_PER_SEC)

enum entry_state { ENTRY_STARTING = 0, ENTRY_RUNNING, ENTRY_PAUSING, ENTRY_PAUSED, ENTRY_RESUMING, ENTRY_KILLING, ENTRY_GONE };

/* Threads that pause what has reached its end: each is busy for a few hundred milliseconds a sandbox. */
#define PAUSERS 4
/* Threads that ask the agents for metrics and logs. */
#define COLLECTORS 2

struct entry {
        unsigned references;         /* guarded by manager.lock */
        enum entry_state state;
        char id[SANDBOX_ID_MAX + 1];
        struct sandbox_info *info;   /* immutable but for ends_ns; complete from RUNNING on, before only id and team */
        bool public_traffic;
        int64_t reap_ns;             /* when the manager pauses it, or itself ends what the shim should have ended (REAP_GRACE_NS) */
        char envd_token[SANDBOX_TOKEN_LEN + 1], traffic_token[SANDBOX_TOKEN_LEN + 1]; /* "" when there is none */
        pthread_mutex_t vm_lock;
        uint64_t life;               /* unique in this process */
        bool saving;                 /* guarded by manager.lock: a fork or a snapshot of it is being made */
        struct vm *vm;               /* set before RUNNING, closed with the last reference; NULL while paused */
        pthread_mutex_t collect_lock; /* one asks the agent at a time; taken before no other but manager.lock, of the next two */
        struct history_cursor cursor;
        int64_t collected_ns;        /* monotonic; 0: never */
        int64_t collect_ns;          /* guarded by manager.lock: when to ask next, by the monotonic clock; INT64_MAX: somebody is at it */
        unsigned collect_failures;   /* in a row; of the collector that is at it */
};

struct sandbox_manager {
        pthread_mutex_t lock;
        struct entry **entries;      /* sorted by id */
        size_t count, capacity;
        char *data_dir;              /* DATA */
        char *kit_root;
        int (*need_backend)(void *data, const char **ret, struct error *err);
        void *need_backend_data;
        char *node; /* or NULL */
        enum vm_network network;
        unsigned char root_secret[ROOT_SECRET_LEN];
        struct records *records;
        struct template_cache *templates;
        struct pool *pool; /* or NULL */
        int epoll_fd, wake_fd;
        bool stopping;               /* guarded by lock */
        pthread_t watcher;
        bool watching;               /* the thread exists */
        pthread_cond_t changed;      /* an entry has left PAUSING or RESUMING */
        pthread_cond_t due;          /* an end has changed, or stopping */
        pthread_t pausers[PAUSERS];
        unsigned pauser_count;
        struct history *history;
        uint64_t history_bytes;
        int64_t trim_ns;             /* guarded by lock: when to trim it next, monotonic */
        pthread_cond_t collect_due;  /* monotonic */
        pthread_t collectors[COLLECTORS];
        unsigned collector_count;
};

/* manager.c: the table */
struct entry *entry_new(const char *id);
void entry_unref(struct sandbox_manager *m, struct entry *e); /* NULL is fine */
struct entry *entry_find(struct sandbox_manager *m, const char *id);       /* with the lock; no reference taken */
void entry_insert(struct sandbox_manager *m, struct entry *e);             /* with the lock; takes over a reference */
void entry_remove(struct sandbox_manager *m, struct entry *e);             /* with the lock; gives back that reference's count,
                                                                              the caller must hold another */
struct entry *manager_acquire(struct sandbox_manager *m, const struct team *team, const char *id); /* a reference, or NULL */
bool entry_alive(const struct entry *e, int64_t now_ns);                   /* with the lock */
/* What the entry counts as: RUNNING past its end is PAUSING or KILLING. With the lock. */
enum entry_state entry_state_now(const struct entry *e, int64_t now_ns);
/* Does it belong to the team (NULL = any) and exist, running or paused or between them? With the lock. */
bool entry_visible(const struct entry *e, const struct team *team, int64_t now_ns);
/* Sets the end, and with it when the manager acts on it. With the lock. */
void entry_set_end(struct entry *e, int64_t ends_ns);
/* The end that the shim is told: none where the manager pauses. */
int64_t entry_shim_end(const struct sandbox_info *i);
/* The open snapshot of a build, to be given back with template_cache_release(). */
int manager_template(struct sandbox_manager *m, const char *build_id, struct vm_template **ret, struct error *err);
int manager_need_backend(struct sandbox_manager *m, struct error *err); /* a kit may have been prepared since the start */
int manager_not_found(const char *id, struct error *err);
size_t manager_count_team(const struct sandbox_manager *m, const char *team_id, int64_t now_ns); /* with the lock; NULL = all */
int manager_limit_check(const struct sandbox_manager *m, const struct team *team, struct error *err); /* with the lock */
char *manager_sandbox_dir(const struct sandbox_manager *m, const char *id); /* the caller frees */
char *manager_build_dir(const struct sandbox_manager *m, const char *build_id);
/* The tokens that an entry with these properties has. */
void entry_set_tokens(struct sandbox_manager *m, struct entry *e, bool secure, bool public_traffic);
/* After the VM's death: record, directory. Logs what it could not remove (the next start will). */
void manager_forget(struct sandbox_manager *m, const char *id);

/* watch.c: the thread that learns of deaths */
int watch_start(struct sandbox_manager *m, struct error *err);
void watch_stop(struct sandbox_manager *m);
int watch_add(struct sandbox_manager *m, struct entry *e, struct error *err); /* takes a reference of its own */
void watch_poke(struct sandbox_manager *m); /* an end has changed */
void watch_bury(struct sandbox_manager *m, struct entry *e); /* ends and forgets what the caller has set to KILLING */

/* collect.c */
int collectors_start(struct sandbox_manager *m, struct error *err);
void collectors_stop(struct sandbox_manager *m);
/* A last look at what is about to be killed: the caller holds a reference, and nobody ends the VM meanwhile. */
void collect_last(struct sandbox_manager *m, struct entry *e);
/* An entry of the sandbox's log by the host; `fields` (or NULL) is taken over. */
void manager_log(struct sandbox_manager *m, const struct entry *e, const char *level, const char *message, json_t *fields);

/* network.c */
json_t *manager_egress(const struct sandbox_info *i); /* for struct vm_fork; a new reference, or NULL when nothing is restricted */
/* ERROR_INVALID where this server cannot enforce what is asked for. */
int manager_check_network(const struct sandbox_manager *m, const struct sandbox_info *i, struct error *err);

/* create.c: ends and forgets a sandbox that could not be brought up */
void manager_undo_create(struct sandbox_manager *m, struct entry *e);

/* reboot.c */
/* As manager_wake_again(), and what the template gives its sandboxes, for one whose agent knows nothing. */
json_t *manager_wake_booted(struct sandbox_manager *m, const struct entry *e);
/* The template's start command in a machine that has booted, and its ready command until that succeeds, for REBOOT_READY_SECONDS at most. What fails is in
 * the sandbox's log: it runs all the same. */
void manager_start_again(struct sandbox_manager *m, struct entry *e);

/* pause.c */
/* Brings up what the directory's `paused` holds, for an entry that is in the table and that nobody else acts on; RUNNING at the end.
 * `reboot`: from its disk, whatever is saved of its memory. *ret_committed, also on failure: the saved state is used up. */
int manager_resume(struct sandbox_manager *m, struct entry *e, int64_t timeout_s, bool reboot, struct sandbox_info **ret, bool *ret_committed,
                   struct error *err);
int pausers_start(struct sandbox_manager *m, struct error *err);
void pausers_stop(struct sandbox_manager *m);
char *manager_paused_dir(const struct sandbox_manager *m, const char *id); /* the caller frees */
/* What the agent is told when the guest goes on: who it is; its environment it still has. */
json_t *manager_wake_again(const struct entry *e);
/* A sandbox whose directory holds `paused`, and nothing that runs: shown, with a reference taken over. */
void manager_show_paused(struct sandbox_manager *m, struct entry *e);

/* adopt.c: what a previous process left */
int manager_adopt_all(struct sandbox_manager *m, struct error *err);

/* record.c: pure */
struct sandbox_info *sandbox_info_copy(const struct sandbox_info *i);
json_t *sandbox_record_write(const struct sandbox_info *i, bool secure, bool public_traffic);
/* ERROR_INVALID naming the member that is missing or of the wrong type. */
int sandbox_record_read(const char *id, const json_t *j, struct sandbox_info **ret, bool *ret_secure, bool *ret_public, struct error *err);
