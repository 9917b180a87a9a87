/* What the administrator and the housekeeping ask about sandboxes. */
#include "base/str.h"
#include "sandbox/manager.h"

int sandbox_console(struct sandbox_manager *m, const char *id, char **ret, struct error *err)
{
        struct entry *e = manager_acquire(m, NULL, id);
        if (!e)
                return error_set(err, ERROR_NOT_FOUND, "there is no sandbox '%s' on this node; list-sandboxes shows them", id);
        *ret = vm_console(e->vm);
        entry_unref(m, e);
        return 0;
}

bool sandbox_build_used(struct sandbox_manager *m, const char *build_id)
{
        bool used = template_cache_uses(m->templates, build_id);
        pthread_mutex_lock(&m->lock);
        for (size_t i = 0; i < m->count && !used; i++)
                used = streq(m->entries[i]->info->build_id, build_id);
        pthread_mutex_unlock(&m->lock);
        return used;
}

void sandbox_build_forget(struct sandbox_manager *m, const char *build_id)
{
        pool_forget(m->pool, build_id);
        template_cache_forget(m->templates, build_id);
}
