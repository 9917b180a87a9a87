/* At start: every sandbox that a previous process left is either adopted (directory, record and living VM), or what is
 * there of it is removed. The record is the truth about the end of a sandbox: the shim is told again, because the old
 * process may have been killed between writing the one and telling the other.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/manager.h"

struct found {
        char *id;
        json_t *record;
};
struct found_list {
        struct found *items;
        size_t count;
};

static int collect(void *data, const char *id, const json_t *j)
{
        struct found_list *list = data;
        list->items = xreallocarray(list->items, list->count + 1, sizeof *list->items);
        list->items[list->count].id = xstrdup(id);
        list->items[list->count].record = json_deep_copy(j);
        list->count++;
        return 0;
}

static void found_list_free(struct found_list *list)
{
        for (size_t i = 0; i < list->count; i++) {
                free(list->items[i].id);
                json_decref(list->items[i].record);
        }
        free(list->items);
}

/* Anything else must not become part of a path. */
static bool is_plain_id(const char *id)
{
        char parsed[SANDBOX_ID_MAX + 1];
        return sandbox_id_parse(id, parsed) == 0 && strcmp(parsed, id) == 0;
}

/* A reference to a new entry for the record, not yet in the table. */
static int entry_from_record(struct sandbox_manager *m, const char *id, const json_t *record, struct entry **ret, struct error *err)
{
        struct sandbox_info *info = NULL;
        bool secure, public_traffic;
        int r = sandbox_record_read(id, record, &info, &secure, &public_traffic, err);
        if (r < 0)
                return r;
        struct entry *e = entry_new(id);
        sandbox_info_free(e->info);
        e->info = info;
        entry_set_end(e, info->ends_ns);
        entry_set_tokens(m, e, secure, public_traffic);
        *ret = e;
        return 0;
}

/* A pause or a resume was cut off: the guest stands still, and goes on. */
static int let_run(struct entry *e, const char *dir, struct error *err)
{
        bool running = true;
        int r = vm_is_running(e->vm, &running, err);
        if (r == 0 && !running) {
                json_t *wake = manager_wake_again(e);
                r = vm_continue(e->vm, wake, err);
                json_decref(wake);
        }
        static const char *const leftovers[] = { "paused.tmp", "resumed", "saved", "saved.tmp" };
        for (size_t i = 0; r == 0 && i < sizeof leftovers / sizeof *leftovers; i++) {
                CLEANUP_FREE char *path = path_join(dir, leftovers[i]);
                r = tree_remove(path, err);
        }
        return r;
}

/* The old process may have been killed between writing new rules and setting them. */
static int set_rules(struct entry *e, struct error *err)
{
        if (!e->info->network && !e->info->allow_internet_access)
                return 0;
        json_t *egress = manager_egress(e->info);
        int r = egress || e->info->network ? vm_set_egress(e->vm, egress, err) : 0;
        json_decref(egress);
        return r;
}

/* Finds the VM and shows the sandbox. Takes the reference over on success. */
static int adopt_entry(struct sandbox_manager *m, struct entry *e, struct error *err)
{
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, e->id);
        int r = vm_adopt(dir, &e->vm, err);
        if (r == 0)
                r = let_run(e, dir, err);
        if (r == 0)
                r = set_rules(e, err);
        if (r == 0)
                r = vm_set_expiry(e->vm, entry_shim_end(e->info), err);
        if (r < 0)
                return r;
        pthread_mutex_lock(&m->lock);
        e->references++;
        e->state = ENTRY_RUNNING;
        entry_insert(m, e);
        pthread_mutex_unlock(&m->lock);
        r = watch_add(m, e, err);
        if (r < 0) {
                pthread_mutex_lock(&m->lock);
                entry_remove(m, e);
                pthread_mutex_unlock(&m->lock);
                return r;
        }
        entry_unref(m, e);
        return 0;
}

/* Ends whatever runs in a sandbox's directory; `vm` is its handle, or NULL. */
static int end_vm(struct sandbox_manager *m, const char *id, struct vm *vm, struct error *err)
{
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, id);
        struct vm *found = vm;
        if (!found && vm_adopt(dir, &found, NULL) < 0)
                return 0;
        int r = vm_kill(found, err);
        if (found != vm)
                vm_close(found);
        return r;
}

/* Then removes directory and record. */
static void remove_remains(struct sandbox_manager *m, const char *id, struct vm *vm)
{
        struct error err = {};
        if (end_vm(m, id, vm, &err) < 0)
                log_warn("sandbox %s: %s", id, err.message);
        manager_forget(m, id);
}

/* Its directory says that it is paused. The record may not say so yet. Takes the reference over on success. */
static int adopt_paused(struct sandbox_manager *m, struct entry *e, struct error *err)
{
        CLEANUP_FREE char *paused = manager_paused_dir(m, e->id);
        bool memory;
        int r = end_vm(m, e->id, NULL, err);
        if (vm_paused_with_memory(paused, &memory, NULL) < 0)
                memory = true; /* resuming will say what is wrong */
        if (r == 0 && (!e->info->paused || e->info->paused_disk == memory)) {
                e->info->paused = true;
                e->info->paused_disk = !memory;
                json_t *record = sandbox_record_write(e->info, e->envd_token[0] != '\0', e->public_traffic);
                r = records_sandbox_put(m->records, e->id, record, err);
                json_decref(record);
        }
        if (r == 0)
                manager_show_paused(m, e);
        return r;
}

static bool adopt_one(struct sandbox_manager *m, const char *id, const json_t *record)
{
        struct error err = {};
        struct entry *e = NULL;
        if (!is_plain_id(id)) {
                log_warn("a sandbox record with a damaged identifier was removed");
                if (records_sandbox_delete(m->records, id, &err) < 0)
                        log_warn("%s", err.message);
                return false;
        }
        CLEANUP_FREE char *paused = manager_paused_dir(m, id);
        int r = entry_from_record(m, id, record, &e, &err);
        if (r == 0)
                r = path_exists(paused) ? adopt_paused(m, e, &err) : adopt_entry(m, e, &err);
        if (r == 0)
                return true;
        if (e && path_exists(paused)) { /* never lose what was saved because this start cannot use it */
                log_error("sandbox %s is paused and cannot be taken over: %s", id, err.message);
                entry_unref(m, e);
                return false;
        }
        log_info("sandbox %s did not live on (%s); removing what is left of it", id, err.message);
        remove_remains(m, id, e ? e->vm : NULL);
        entry_unref(m, e);
        return false;
}

/* Directories without a record: creates that were cut off before the sandbox was shown to anyone. */
static int remove_orphans(struct sandbox_manager *m, struct error *err)
{
        CLEANUP_FREE char *parent = path_join(m->data_dir, "sandboxes");
        CLEANUP_CLOSEDIR DIR *d = opendir(parent);
        if (!d)
                return error_errno(err, errno, "read %s", parent);
        struct dirent *de;
        while ((de = readdir(d))) {
                if (!is_plain_id(de->d_name))
                        continue;
                pthread_mutex_lock(&m->lock);
                bool known = entry_find(m, de->d_name) != NULL;
                pthread_mutex_unlock(&m->lock);
                if (known)
                        continue;
                log_info("sandbox %s was never finished; removing it", de->d_name);
                remove_remains(m, de->d_name, NULL);
        }
        return 0;
}

int manager_adopt_all(struct sandbox_manager *m, struct error *err)
{
        struct found_list list = {};
        size_t adopted = 0;
        int r = records_sandbox_each(m->records, collect, &list, err);
        for (size_t i = 0; r == 0 && i < list.count; i++)
                adopted += adopt_one(m, list.items[i].id, list.items[i].record);
        if (r == 0)
                r = remove_orphans(m, err);
        if (r == 0 && list.count > 0)
                log_info("adopted %zu of %zu sandboxes", adopted, list.count);
        found_list_free(&list);
        return r < 0 ? error_wrap(err, r, "take over running sandboxes") : 0;
}
