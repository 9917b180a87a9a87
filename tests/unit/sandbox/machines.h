/* The sandbox manager over machines and a store of the test's own: every function of vm.h and of records.h that the manager
 * calls is defined here. A machine is a pipe (its read end is the exit descriptor) and a line in a table that survives the
 * manager, as real shims survive `vmon serve`.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sandbox/manager.h"

#define MACHINES 64

struct machine {
        char *dir;
        int exit_read, exit_write; /* write end closed = dead */
        int64_t expires_ns;
        bool alive, running, kill_fails;
        bool warm; /* of the pool, and not handed over yet */
};

extern struct machine machines[MACHINES]; /* in the order in which they were made */
extern size_t machine_count;
extern json_t *store;                     /* id -> record */
extern json_t *last_wake, *last_egress; /* what the last machine was told; egress NULL: no rules */
/* A fork fails; a resumed machine fails once it has run; pausing fails; so does writing a record; a new machine is dead. */
extern bool restore_fails, resume_fails, pause_fails, put_fails, dead_on_arrival;
/* Warming fails; so does handing over. The pool of the next manager_open(): members, and MiB for them (each counts as POOL_GUESS_BYTES). */
extern bool warm_fails, hand_over_fails;
extern unsigned pool_max, pool_mib, warm_tries;
extern json_t *started;   /* texts of the commands that were run in machines */
extern int ready_after;   /* runs of the ready command that fail first */
extern bool template_deleted; /* as the second look at it finds */
extern char data_dir[64];
extern struct team team_a, team_b;        /* at most 2 sandboxes for a day; at most 100 for an hour */
extern struct template_record template_;
extern struct build_record build;

void machine_die(struct machine *m);
size_t alive_machines(void);
size_t warm_machines(void);
struct machine *machine_of(const char *id); /* the first that was made with this sandbox's directory, or NULL */
void wait_for_records(size_t n);
struct sandbox_manager *manager_open(const char *backend);
int create(struct sandbox_manager *m, const struct team *team, int64_t timeout_s, struct sandbox_info **ret, struct error *err);
struct sandbox_info *must_create(struct sandbox_manager *m, const struct team *team, int64_t timeout_s);
bool dir_exists(const char *id);
void assert_gone(struct sandbox_manager *m, const char *id);

int setup(void **state);    /* *state: a manager under the backend "tcg" */
int teardown(void **state);
#define WITH_MANAGER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
