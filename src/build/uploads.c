/* Are the archives that a plan's COPY steps name there? Asked at the trigger, and again when a step is reached. */
#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"
#include "build/build.h"

int build_step_check_upload(const struct build_step *s, const char *dir, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, s->files_hash);

        if (path_exists(path))
                return 0;
        return error_set(err, ERROR_NOT_FOUND, "COPY %s: the files (hash %s) were not uploaded; run the build again with its context, "
                         "which uploads them", s->args[0], s->files_hash);
}

int build_plan_check_uploads(const struct build_plan *p, const char *dir, size_t *ret_step, struct error *err)
{
        for (size_t i = 0; i < p->step_count; i++) {
                int r = p->steps[i].files_hash ? build_step_check_upload(&p->steps[i], dir, err) : 0;

                if (r < 0) {
                        *ret_step = i + 1;
                        return r;
                }
        }
        return 0;
}
