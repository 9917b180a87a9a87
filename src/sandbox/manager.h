/* Inside of the sandbox manager, shared by its files and by nobody else.
 *
 * Life of an entry (docs/architecture.md; sandbox-api 21 has the whole product's):
 *
 *     STARTING --restored and recorded--> RUNNING --kill--> KILLING --dead--> GONE
 *         |                                  |  ^--------------'  (the kill failed: may be tried again)
 *         '-------- create failed -----------+------- VM ended by itself or at its expiry ------> GONE
 *
 * STARTING holds a place in the team's limit and is invisible; GONE is out of the table and lives only as long as somebody
 * holds a reference. A RUNNING entry past its end is treated as gone at once: the shim, which keeps the time of death,
 * needs a few milliseconds to act on it.
 *
 * Durable state is the directory sandboxes/<id>/ and the record in the store. Create makes the directory, restores the VM
 * and writes the record, and only then shows the sandbox to anyone; death removes the VM, then the record, then the
 * directory. So whatever instant the process is killed at, the next start finds a complete sandbox (directory, record
 * and living VM), which it adopts, or parts of one, which it removes.
 *
 * Locks: manager.lock guards the table and every mutable member of entries but `vm`'s use; it is never held across I/O.
 * entry.vm_lock serialises the calls on one VM that are not thread-safe and changes of its end; it is taken before
 * manager.lock, never after it.
 */
#pragma once

#include <pthread.h>

#include "base/clock.h"
#include "sandbox/id.h"
#include "sandbox/sandbox.h"
#include "sandbox/template-cache.h"
#include "sandbox/token.h"
#include "vm/vm.h"

/* A sandbox whose shim has not ended it this long after its end is ended by the manager. */
#define REAP_GRACE_NS (3 * NSEC_PER_SEC)

enum entry_state { ENTRY_STARTING = 0, ENTRY_RUNNING, ENTRY_KILLING, ENTRY_GONE };

struct entry {
        unsigned references;         /* guarded by manager.lock */
        enum entry_state state;
        char id[SANDBOX_ID_MAX + 1];
        struct sandbox_info *info;   /* immutable but for ends_ns; complete from RUNNING on, before only id and team */
        bool public_traffic;
        int64_t reap_ns;             /* when the manager itself ends what the shim should have ended (REAP_GRACE_NS) */
        char envd_token[SANDBOX_TOKEN_LEN + 1], traffic_token[SANDBOX_TOKEN_LEN + 1]; /* "" when there is none */
        pthread_mutex_t vm_lock;
        struct vm *vm;               /* set before RUNNING, closed with the last reference */
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
        int epoll_fd, wake_fd;
        bool stopping;               /* guarded by lock */
        pthread_t watcher;
        bool watching;               /* the thread exists */
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

/* adopt.c: what a previous process left */
int manager_adopt_all(struct sandbox_manager *m, struct error *err);

/* record.c: pure */
struct sandbox_info *sandbox_info_copy(const struct sandbox_info *i);
json_t *sandbox_record_write(const struct sandbox_info *i, bool secure, bool public_traffic);
/* ERROR_INVALID naming the member that is missing or of the wrong type. */
int sandbox_record_read(const char *id, const json_t *j, struct sandbox_info **ret, bool *ret_secure, bool *ret_public, struct error *err);
