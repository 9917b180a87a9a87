/* What a layer hands on to the next (template-api 10.6). */
#pragma once

#include "build/build.h"

/* The context of a fresh base: user root, no workdir, the given variables. `image_env` is the image's config.Env
 * ("K=V", NULL-terminated; may be NULL). */
void build_context_init(struct build_context *c, char *const *image_env);
void build_context_copy(struct build_context *to, const struct build_context *from);
void build_context_set_user(struct build_context *c, const char *user);
void build_context_set_workdir(struct build_context *c, const char *workdir);

/* {"user","workdir" (string or null),"env"}: a new object. */
json_t *build_context_to_json(const struct build_context *c);
/* false when `j` has another shape. */
bool build_context_from_json(const json_t *j, struct build_context *ret);

/* config.Env as an object of strings; a new reference. */
json_t *build_env_object(char *const *list);

/* The environment of a command as "K=V" entries, NULL-terminated; free with build_env_free(). With `for_command`
 * the standard directories are appended to a PATH that is set (template-api 11.1) and the same value is given as
 * VMON_BUILD_PATH, from which /etc/profile.d/vmon-path.sh restores PATH after a distribution's /etc/profile has
 * reset it. */
char **build_env_list(const json_t *env, bool for_command);
void build_env_free(char **list);
