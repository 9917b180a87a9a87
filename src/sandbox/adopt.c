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
        e->reap_ns = info->ends_ns + REAP_GRACE_NS;
        entry_set_tokens(m, e, secure, public_traffic);
        *ret = e;
        return 0;
}

/* Finds the VM and shows the sandbox. Takes the reference over on success. */
static int adopt_entry(struct sandbox_manager *m, struct entry *e, struct error *err)
{
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, e->id);
        int r = vm_adopt(dir, &e->vm, err);
        if (r == 0)
                r = vm_set_expiry(e->vm, e->info->ends_ns, err);
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

/* Ends whatever runs in a sandbox's directory, then removes directory and record. */
static void remove_remains(struct sandbox_manager *m, const char *id, struct vm *vm)
{
        struct error err = {};
        CLEANUP_FREE char *dir = manager_sandbox_dir(m, id);
        struct vm *found = vm;
        if (!found && vm_adopt(dir, &found, NULL) < 0)
                found = NULL;
        if (found && vm_kill(found, &err) < 0)
                log_warn("sandbox %s: %s", id, err.message);
        if (found != vm)
                vm_close(found);
        manager_forget(m, id);
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
        int r = entry_from_record(m, id, record, &e, &err);
        if (r == 0)
                r = adopt_entry(m, e, &err);
        if (r == 0)
                return true;
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
