/* What a process that was killed in the middle of builds leaves, removed before the next one takes builds: VMs first, then
 * their files (design 8.2, 8.3).
 */
#include <errno.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/queue.h"
#include "vm/vm.h"

static void kill_vm(const char *vm_dir)
{
        struct vm *vm = NULL;

        if (vm_adopt(vm_dir, &vm, NULL) < 0)
                return;
        vm_kill(vm, NULL);
        vm_close(vm);
}

static int clean_dir(const char *dir, bool (*is_litter)(const char *name), struct error *err)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        struct dirent *de;

        if (!d)
                return errno == ENOENT ? 0 : error_errno(err, errno, "open %s", dir);
        while ((de = readdir(d))) {
                CLEANUP_FREE char *path = path_join(dir, de->d_name), *vm = path_join(path, "vm");
                int r;

                if (streq(de->d_name, ".") || streq(de->d_name, "..") || !is_litter(de->d_name))
                        continue;
                kill_vm(vm);
                r = tree_remove(path, err);
                if (r < 0)
                        return error_wrap(err, r, "clean up after an interrupted build");
        }
        return 0;
}

static bool any(const char *name)
{
        (void)name;
        return true;
}

static bool unfinished(const char *name)
{
        return str_ends(name, ".tmp");
}

int build_clean_litter(const char *data_dir, struct error *err)
{
        CLEANUP_FREE char *scratch = path_join(data_dir, "scratch"), *builds = path_join(data_dir, "builds");
        int r = clean_dir(scratch, any, err);

        return r < 0 ? r : clean_dir(builds, unfinished, err);
}

static const struct build_queue_ops ops = {.run = build_run_pipeline, .kill_vm = kill_vm};

int build_queue_new(const struct build_settings *s, const struct build_events *e, struct build_queue **ret, struct error *err)
{
        int r = build_clean_litter(s->data_dir, err);

        return r < 0 ? r : build_queue_new_with(s, e, &ops, ret, err);
}
