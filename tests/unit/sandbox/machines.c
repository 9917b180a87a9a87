#include "machines.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/agent.h"

struct vm {
        struct machine *machine;
};
struct vm_template {
        int unused;
};

static struct sandbox_manager *opened;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct machine machines[MACHINES];
size_t machine_count;
json_t *store;           /* id -> record */
json_t *last_wake, *last_egress;
bool restore_fails, resume_fails, pause_fails, put_fails, dead_on_arrival, warm_fails, hand_over_fails;
bool template_deleted;
unsigned pool_max, pool_mib, warm_tries;
char data_dir[64];

struct team team_a = { .id = "team-a", .max_sandboxes = 2, .max_sandbox_hours = 24 };
struct team team_b = { .id = "team-b", .max_sandboxes = 100, .max_sandbox_hours = 1 };
struct template_record template_ = { .id = "template" };
struct build_record build = { .id = "build", .vcpus = 2, .memory_mb = 512, .disk_mb = 1024, .envd_version = "0.6.13",
                                     .default_user = "user", .workdir = "/home/user" };

void machine_die(struct machine *m)
{
        pthread_mutex_lock(&lock);
        if (m->alive) {
                m->alive = false;
                close(m->exit_write);
        }
        pthread_mutex_unlock(&lock);
}

size_t alive_machines(void)
{
        size_t n = 0;
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < machine_count; i++)
                n += machines[i].alive;
        pthread_mutex_unlock(&lock);
        return n;
}

size_t warm_machines(void)
{
        size_t n = 0;
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < machine_count; i++)
                n += machines[i].alive && machines[i].warm;
        pthread_mutex_unlock(&lock);
        return n;
}

struct machine *machine_of(const char *id)
{
        struct machine *found = NULL;
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < machine_count && !found; i++)
                if (str_ends(machines[i].dir, id))
                        found = &machines[i];
        pthread_mutex_unlock(&lock);
        return found;
}

int vm_template_open(const char *build_dir, const char *kit_root, const char *backend, struct vm_template **ret, struct error *err)
{
        (void)kit_root, (void)backend;
        if (strstr(build_dir, "old-format"))
                return error_set(err, ERROR_CONFLICT, "recapture required");
        *ret = xcalloc(1, sizeof **ret);
        return 0;
}

void vm_template_close(struct vm_template *t)
{
        free(t);
}

static struct machine *machine_new(const struct vm_fork *f, bool warm)
{
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        pthread_mutex_lock(&lock);
        assert_true(machine_count < MACHINES);
        struct machine *m = &machines[machine_count];
        *m = (struct machine){ .dir = xstrdup(f->dir), .exit_read = fds[0], .exit_write = fds[1], .expires_ns = f->expires_at_ns, .alive = true, .running = !warm, .warm = warm };
        machine_count++;
        pthread_mutex_unlock(&lock);
        return m;
}

static void told(const json_t *wake, const json_t *egress)
{
        pthread_mutex_lock(&lock);
        json_decref(last_wake);
        last_wake = json_deep_copy(wake);
        json_decref(last_egress);
        last_egress = egress ? json_deep_copy(egress) : NULL;
        pthread_mutex_unlock(&lock);
}

int vm_restore(const struct vm_fork *f, struct vm **ret, struct error *err)
{
        if (restore_fails)
                return error_set(err, ERROR_INTERNAL, "the machine did not wake");
        assert_true(path_exists(f->dir));
        assert_true(!f->paused || path_exists(f->paused));
        if (f->before_run) {
                int r = f->before_run(f->before_run_data, err);
                if (r < 0)
                        return r;
        }
        if (resume_fails) /* it has run, and used its memory up */
                return error_set(err, ERROR_INTERNAL, "the machine did not wake");
        struct machine *m = machine_new(f, false);
        told(f->wake, f->egress);
        if (dead_on_arrival)
                machine_die(m);
        *ret = xcalloc(1, sizeof **ret);
        (*ret)->machine = m;
        return 0;
}

int vm_restore_warm(const struct vm_fork *f, struct vm **ret, struct error *err)
{
        assert_true(path_exists(f->dir));
        assert_null(f->wake);
        assert_true(f->expires_at_ns > 0); /* nobody may be left to end it */
        __atomic_add_fetch(&warm_tries, 1, __ATOMIC_SEQ_CST);
        if (warm_fails)
                return error_set(err, ERROR_INTERNAL, "the machine did not warm up");
        struct machine *m = machine_new(f, true);
        *ret = xcalloc(1, sizeof **ret);
        (*ret)->machine = m;
        return 0;
}

int vm_hand_over(struct vm *vm, const json_t *egress, const json_t *wake, struct error *err)
{
        pthread_mutex_lock(&lock);
        bool once = vm->machine->warm, alive = vm->machine->alive;
        vm->machine->warm = false;
        pthread_mutex_unlock(&lock);
        assert_true(once);
        if (hand_over_fails || !alive)
                return error_set(err, ERROR_UNAVAILABLE, "the virtual machine has ended");
        vm->machine->running = true;
        told(wake, egress);
        return 0;
}

pid_t vm_pid(const struct vm *vm)
{
        (void)vm;
        return 0; /* measures as nothing */
}

int vm_pause(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, uint64_t *ret_pages, struct error *err)
{
        assert_int_equal(memory_mib, build.memory_mb);
        assert_non_null(json_str(wake, "sandbox_id"));
        assert_int_equal(vm->machine->expires_ns, 0); /* nobody may end it meanwhile */
        if (!vm->machine->alive)
                return error_set(err, ERROR_NOT_FOUND, "the virtual machine has ended");
        if (pause_fails)
                return error_set(err, ERROR_UNAVAILABLE, "no space left on device");
        vm->machine->running = false;
        *ret_pages = 7;
        return dir_make(into, 0700, err);
}

/* `into` says for vm_paused_with_memory() that there is none. */
int vm_pause_disk(struct vm *vm, unsigned memory_mib, const char *into, const json_t *wake, struct error *err)
{
        CLEANUP_FREE char *mark = path_join(into, "disk");
        uint64_t ignored;
        int r = vm_pause(vm, memory_mib, into, wake, &ignored, err);
        return r < 0 ? r : file_write_atomic(mark, "", 0, 0600, err);
}

int vm_paused_with_memory(const char *paused, bool *ret, struct error *err)
{
        CLEANUP_FREE char *mark = path_join(paused, "disk");
        (void)err;
        *ret = !path_exists(mark);
        return 0;
}

int vm_drop_memory(const struct vm_fork *f, struct error *err)
{
        CLEANUP_FREE char *mark = path_join(f->paused, "disk");
        return file_write_atomic(mark, "", 0, 0600, err);
}

/* The agent: commands that were started, as texts. */
json_t *started;
int ready_after; /* runs of the ready command that fail first */

static void note(const struct agent_process *p)
{
        pthread_mutex_lock(&lock);
        if (!started)
                started = json_array();
        json_array_append_new(started, json_string(p->argv[3]));
        pthread_mutex_unlock(&lock);
}

int agent_spawn(struct vm *vm, const struct agent_process *p, struct agent_stream **ret, struct error *err)
{
        (void)vm, (void)err;
        note(p);
        *ret = NULL;
        return 0;
}

int agent_run(struct vm *vm, const struct agent_process *p, struct agent_exit *ret, struct error *err)
{
        (void)vm, (void)err;
        note(p);
        ret->code = ready_after-- > 0;
        return 0;
}

int agent_stream_poll(struct agent_stream *s, unsigned wait_ms, struct agent_exit *ret, struct error *err)
{
        (void)s, (void)wait_ms, (void)ret, (void)err;
        return 1;
}

void agent_stream_close(struct agent_stream *s)
{
        assert_null(s);
}

int records_build_get(struct records *r, const char *id, struct build_record **ret, struct error *err)
{
        (void)r;
        if (template_deleted)
                return error_set(err, ERROR_NOT_FOUND, "build '%s' not found", id);
        assert_string_equal(id, build.id);
        *ret = xmemdup(&build, sizeof build);
        return 0;
}

void build_record_free(struct build_record *b)
{
        free(b);
}

int vm_continue(struct vm *vm, const json_t *wake, struct error *err)
{
        (void)wake, (void)err;
        vm->machine->running = true;
        return 0;
}

int vm_is_running(struct vm *vm, bool *ret, struct error *err)
{
        if (!vm->machine->alive)
                return error_set(err, ERROR_NOT_FOUND, "the virtual machine has ended");
        *ret = vm->machine->running;
        return 0;
}

int records_template_get(struct records *r, const char *id, struct template_record **ret, struct error *err)
{
        (void)r;
        if (template_deleted)
                return error_set(err, ERROR_NOT_FOUND, "template '%s' not found", id);
        assert_true(sandbox_build_used(opened, build.id)); /* before it looks */
        *ret = xcalloc(1, sizeof **ret);
        return 0;
}

void template_record_free(struct template_record *t)
{
        free(t);
}

int records_team_get(struct records *r, const char *id, struct team **ret, struct error *err)
{
        (void)r;
        const struct team *t = streq(id, team_a.id) ? &team_a : streq(id, team_b.id) ? &team_b : NULL;
        if (!t)
                return error_set(err, ERROR_NOT_FOUND, "no such team");
        *ret = xmemdup(t, sizeof *t);
        return 0;
}

void team_free(struct team *t)
{
        free(t);
}

int vm_adopt(const char *dir, struct vm **ret, struct error *err)
{
        for (size_t i = 0; i < machine_count; i++)
                if (machines[i].alive && streq(machines[i].dir, dir)) {
                        *ret = xcalloc(1, sizeof **ret);
                        (*ret)->machine = &machines[i];
                        return 0;
                }
        return error_set(err, ERROR_NOT_FOUND, "its supervisor is gone");
}

int vm_set_egress(struct vm *vm, const json_t *egress, struct error *err)
{
        if (!vm->machine->alive)
                return error_set(err, ERROR_NOT_FOUND, "the virtual machine has ended");
        json_decref(last_egress);
        last_egress = egress ? json_deep_copy(egress) : NULL;
        return 0;
}

int vm_set_expiry(struct vm *vm, int64_t expires_at_ns, struct error *err)
{
        (void)err;
        vm->machine->expires_ns = expires_at_ns;
        return 0;
}

int vm_connect(struct vm *vm, int port, int *ret_fd, struct error *err)
{
        (void)err;
        if (!vm->machine->alive)
                return -ENOENT;
        if (port != VM_AGENT_PORT)
                return -ECONNREFUSED;
        *ret_fd = dup(vm->machine->exit_read);
        return 0;
}

int vm_exit_fd(const struct vm *vm)
{
        return vm->machine->exit_read;
}

int vm_kill(struct vm *vm, struct error *err)
{
        if (vm->machine->kill_fails)
                return error_set(err, ERROR_INTERNAL, "the machine does not die");
        machine_die(vm->machine);
        return 0;
}

char *vm_console(struct vm *vm)
{
        (void)vm;
        return xstrdup("");
}

void vm_close(struct vm *vm)
{
        free(vm);
}

int records_sandbox_put(struct records *r, const char *id, const json_t *j, struct error *err)
{
        (void)r;
        if (put_fails)
                return error_set(err, ERROR_UNAVAILABLE, "the store is full");
        pthread_mutex_lock(&lock);
        json_object_set_new(store, id, json_deep_copy(j));
        pthread_mutex_unlock(&lock);
        return 0;
}

int records_sandbox_delete(struct records *r, const char *id, struct error *err)
{
        (void)r, (void)err;
        pthread_mutex_lock(&lock);
        json_object_del(store, id);
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        return 0;
}

int records_sandbox_each(struct records *r, int (*fn)(void *data, const char *id, const json_t *j), void *data, struct error *err)
{
        (void)r, (void)err;
        const char *id;
        json_t *j;
        json_object_foreach(store, id, j)
                fn(data, id, j);
        return 0;
}

/* Waits for the watcher's own removal of a record; the limit only guards against a hang. */
void wait_for_records(size_t n)
{
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 30;
        pthread_mutex_lock(&lock);
        while (json_object_size(store) != n)
                assert_int_equal(pthread_cond_timedwait(&changed, &lock, &limit), 0);
        pthread_mutex_unlock(&lock);
}

struct sandbox_manager *manager_open(const char *backend)
{
        static const unsigned char secret[ROOT_SECRET_LEN] = { 7 };
        struct sandbox_settings s = { .data_dir = data_dir, .kit_root = "/kit", .backend = backend, .root_secret = secret,
                                      .pool_max = pool_max, .pool_bytes = (uint64_t)pool_mib << 20 };
        struct sandbox_manager *m = NULL;
        assert_int_equal(sandbox_manager_new(&s, &m, NULL), 0);
        opened = m;
        return m;
}

int setup(void **state)
{
        log_setup(LOG_LEVEL_ERROR, false);
        strcpy(data_dir, "/tmp/vmon-test-manager-XXXXXX");
        assert_non_null(mkdtemp(data_dir));
        store = json_object();
        machine_count = 0;
        template_deleted = false;
        warm_tries = 0;
        restore_fails = resume_fails = pause_fails = put_fails = dead_on_arrival = warm_fails = hand_over_fails = false;
        *state = manager_open("tcg");
        return 0;
}

int teardown(void **state)
{
        sandbox_manager_free(*state);
        for (size_t i = 0; i < machine_count; i++) {
                machine_die(&machines[i]);
                close(machines[i].exit_read);
                free(machines[i].dir);
        }
        json_decref(store);
        json_decref(last_wake);
        last_wake = NULL;
        json_decref(last_egress);
        last_egress = NULL;
        return tree_remove(data_dir, NULL);
}

int create(struct sandbox_manager *m, const struct team *team, int64_t timeout_s, struct sandbox_info **ret, struct error *err)
{
        struct sandbox_spec spec = { .team = team, .template_ = &template_, .build = &build, .timeout_s = timeout_s, .secure = true,
                                     .allow_public_traffic = true };
        return sandbox_create(m, &spec, ret, err);
}

struct sandbox_info *must_create(struct sandbox_manager *m, const struct team *team, int64_t timeout_s)
{
        struct sandbox_info *i = NULL;
        assert_int_equal(create(m, team, timeout_s, &i, NULL), 0);
        return i;
}

bool dir_exists(const char *id)
{
        CLEANUP_FREE char *parent = path_join(data_dir, "sandboxes");
        CLEANUP_FREE char *dir = path_join(parent, id);
        return path_exists(dir);
}

void assert_gone(struct sandbox_manager *m, const char *id)
{
        struct sandbox_info *i = NULL;
        struct error err = {};
        struct sandbox_route route;
        assert_true(sandbox_get(m, NULL, id, &i, &err) < 0);
        assert_int_equal(err.kind, ERROR_NOT_FOUND);
        assert_int_equal(sandbox_route(m, id, &route), -ENOENT);
        assert_false(route.running);
}
