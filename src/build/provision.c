/* Provisioning: what turns an image's file system into one that boots and that the SDKs' users expect (template-api 10.4).
 * The scripts are guest/provision/; the profile is chosen in the guest by its os-release.
 */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/scripts.h"
#include "build/shell.h"

static const struct {
        const char *name, *script;
} profiles[] = {
        {"debian", guest_debian}, {"rhel", guest_rhel}, {"arch", guest_arch}, {"alpine", guest_alpine}, {"none", guest_none},
};

static const char *profile_script(const char *name)
{
        for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++)
                if (streq(profiles[i].name, name))
                        return profiles[i].script;
        return NULL;
}

static int detect(struct pipeline *p, json_t **ret, struct error *err)
{
        const char *parts[] = {guest_lib, guest_detect, NULL};

        return guest_run_script(p, &(struct guest_script){.parts = parts, .prefix = "", .timeout_s = BUILD_CONFIGURE_SECONDS,
                                                          .what = "detecting the distribution"}, ret, err);
}

static int run_profile(struct pipeline *p, struct error *err)
{
        CLEANUP_JSON json_t *found = NULL, *set = NULL;
        CLEANUP_FREE char *id = NULL, *assign = NULL;
        const char *parts[5] = {NULL, guest_lib, NULL, guest_common, NULL};
        int r;

        r = detect(p, &found, err);
        if (r < 0)
                return r;
        id = shell_quote(json_str(found, "id") ? json_str(found, "id") : "");
        assign = xasprintf("DISTRO_ID=%s", id);
        parts[0] = assign;
        parts[2] = profile_script(json_str(found, "profile"));
        if (!parts[2])
                return error_set(err, ERROR_INTERNAL, "the distribution could not be detected");
        r = guest_run_script(p, &(struct guest_script){.parts = parts, .prefix = "", .timeout_s = BUILD_PROVISION_SECONDS,
                                                       .what = "provisioning"}, &set, err);
        if (r < 0)
                return r;
        free(p->init);
        p->init = xstrdup(json_str(set, "init") ? json_str(set, "init") : "agent");
        return 0;
}

/* `FROM scratch`: there is nothing to run a script with, and nothing that packages could go into. */
static int provision_bare(struct pipeline *p, struct error *err)
{
        build_log(&p->run->log, LOG_LEVEL_WARN, "the image has no shell (/bin/sh): the agent runs as PID 1, no packages are "
                  "installed, and RUN, USER, WORKDIR, start and ready commands are not possible");
        free(p->init);
        p->init = xstrdup("agent");
        return guest_set_up_bare(p, false, err);
}

int pipeline_provision(struct pipeline *p, struct error *err)
{
        bool shell = false;
        int r;

        build_log(&p->run->log, LOG_LEVEL_INFO, "Provisioning sandbox template");
        r = guest_has_shell(p, &shell, err);
        if (r >= 0)
                r = shell ? run_profile(p, err) : provision_bare(p, err);
        if (r < 0)
                return r;
        build_log(&p->run->log, LOG_LEVEL_INFO, "Provisioning was successful, cleaning up");
        build_log(&p->run->log, LOG_LEVEL_INFO, "Sandbox template provisioned");
        return 0;
}
