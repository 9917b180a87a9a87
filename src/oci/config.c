/* The image config and the choice of platform: the half of manifest.h that looks at architectures. */
#include <jansson.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/digest.h"
#include "oci/manifest.h"

#define ENV_MAX 4096
/* Platforms named in the message when none fits. */
#define OFFERS_SHOWN 12

const char *oci_architecture(const char *machine)
{
        if (streq(machine, "x86_64") || streq(machine, "x86-64"))
                return "amd64";
        return streq(machine, "aarch64") ? "arm64" : machine;
}

/* Smaller is better; -1 does not fit. The node promises no more than the baseline of its architecture, so amd64/v2 and
 * up, which an image may demand, are the last choice. */
static int rank(const struct descriptor *d, const char *architecture)
{
        const char *variant = d->variant ?: "";

        if (!d->os && !d->architecture)
                return 20;
        if (!streq(d->os, "linux") || !d->architecture || !streq(oci_architecture(d->architecture), architecture))
                return -1;
        if (!*variant || (streq(architecture, "arm64") && streq(variant, "v8")) || streq(variant, "v1"))
                return 0;
        return variant[0] == 'v' && variant[1] >= '2' && variant[1] <= '9' && !variant[2] ? variant[1] - '0' : 10;
}

static int none_fits(const struct manifest *index, const char *architecture, struct error *err)
{
        CLEANUP_BUF struct buf offers = {};
        size_t shown = 0;

        for (size_t i = 0; i < index->count && shown < OFFERS_SHOWN; i++) {
                const struct descriptor *d = &index->items[i];

                if (!d->os || !d->architecture || streq(d->os, "unknown"))
                        continue;
                buf_addf(&offers, "%s%.30s/%.30s%s%.30s", shown++ ? ", " : "", d->os, d->architecture,
                         d->variant ? "/" : "", d->variant ?: "");
        }
        return error_set(err, ERROR_NOT_FOUND, "it has no linux/%s variant; it offers %s", architecture,
                         shown ? buf_str(&offers) : "nothing");
}

int index_choose(const struct manifest *index, const char *architecture, size_t *ret, struct error *err)
{
        int best = -1;

        for (size_t i = 0; i < index->count; i++) {
                int r = rank(&index->items[i], architecture);

                if (r < 0 || (best >= 0 && r >= best))
                        continue;
                best = r;
                *ret = i;
        }
        return best < 0 ? none_fits(index, architecture, err) : 0;
}

/* Entries without "=", with an empty key or an empty value are dropped, as upstream does (template-api 10.3). */
static bool env_kept(const char *s)
{
        const char *equals = s ? strchr(s, '=') : NULL;

        return equals && equals != s && equals[1];
}

static int read_env(const json_t *env, struct image_config *c, struct error *err)
{
        size_t n = json_array_size(env), kept = 0;

        if (n > ENV_MAX)
                return error_set(err, ERROR_LIMIT, "the image config has %zu environment entries, more than %d", n, ENV_MAX);
        c->env = xcalloc(n + 1, sizeof(*c->env));
        for (size_t i = 0; i < n; i++) {
                const char *s = json_string_value(json_array_get(env, i));

                if (env_kept(s))
                        c->env[kept++] = xstrdup(s);
        }
        return 0;
}

static int read_diff_ids(const json_t *ids, struct image_config *c, struct error *err)
{
        size_t n = json_array_size(ids);

        if (n > LAYERS_MAX)
                return error_set(err, ERROR_LIMIT, "the image config names %zu layers, more than %d", n, LAYERS_MAX);
        c->diff_ids = xcalloc(n + 1, sizeof(*c->diff_ids));
        for (size_t i = 0; i < n; i++) {
                const char *s = json_string_value(json_array_get(ids, i));

                if (!digest_valid(s))
                        return error_set(err, ERROR_INVALID, "the image config has an unsupported diff_id");
                c->diff_ids[c->diff_id_count++] = xstrdup(s);
        }
        return 0;
}

int image_config_parse(const char *data, size_t len, struct image_config *ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        struct image_config c = {};
        int r = json_parse(data, len, &j, err);

        if (r < 0)
                return error_wrap(err, r, "image config");
        if (!json_is_object(j))
                return error_set(err, ERROR_INVALID, "the image config is no JSON object");
        c.os = xstrdup(json_str(j, "os") ?: "");
        c.architecture = xstrdup(json_str(j, "architecture") ?: "");
        r = read_env(json_object_get(json_object_get(j, "config"), "Env"), &c, err);
        if (r == 0)
                r = read_diff_ids(json_object_get(json_object_get(j, "rootfs"), "diff_ids"), &c, err);
        if (r < 0) {
                image_config_free(&c);
                return r;
        }
        *ret = c;
        return 0;
}

void image_config_free(struct image_config *c)
{
        free(c->os);
        free(c->architecture);
        for (char **e = c->env; e && *e; e++)
                free(*e);
        free(c->env);
        for (size_t i = 0; i < c->diff_id_count; i++)
                free(c->diff_ids[i]);
        free(c->diff_ids);
        *c = (struct image_config){};
}

/* Plain, gzip and zstd tars in the OCI and the Docker spelling. Encrypted layers and other artifacts are not. */
bool layer_type_known(const char *t)
{
        static const char *const known[] = {
                "application/vnd.oci.image.layer.v1.tar",
                "application/vnd.oci.image.layer.v1.tar+gzip",
                "application/vnd.oci.image.layer.v1.tar+zstd",
                "application/vnd.oci.image.layer.nondistributable.v1.tar",
                "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
                "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
                "application/vnd.docker.image.rootfs.diff.tar",
                "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "application/vnd.docker.image.rootfs.diff.tar.zstd",
                "application/vnd.docker.image.rootfs.foreign.diff.tar",
                "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        };

        for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
                if (strcasecmp(t, known[i]) == 0)
                        return true;
        return false;
}
