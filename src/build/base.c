/* The base phase (template-api 10.1 phases 1 and 2): the file system that steps start from.
 *
 * From an image: resolve its digest (always, so that a moved tag is noticed), then take the layer from the cache or make
 * it: pull, decompress on the host, unpack and provision in the guest. From a template: the parent's rootfs is the bottom
 * of the chain. On top comes the layer that creates `user`.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/context.h"
#include "build/limits.h"
#include "build/pipeline.h"
#include "build/scripts.h"
#include "vm/disk.h"

#define MB (1024ULL * 1024)

static void on_oci_log(void *data, int level, const char *message)
{
        static const int levels[] = {LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN};
        struct pipeline *p = data;

        build_log(&p->run->log, level >= 0 && level <= 2 ? levels[level] : LOG_LEVEL_INFO, "%s", message);
}

static bool on_oci_cancelled(void *data)
{
        struct pipeline *p = data;

        return build_run_stopped(p->run);
}

static struct oci_progress progress_of(struct pipeline *p)
{
        return (struct oci_progress){.log = on_oci_log, .cancelled = on_oci_cancelled, .data = p};
}

static char *human_size(uint64_t bytes)
{
        if (bytes >= 10 * MB)
                return xasprintf("%llu MB", (unsigned long long)(bytes / MB));
        return xasprintf("%.1f MB", (double)bytes / (double)MB);
}

/* Compressed layers beyond the disk cannot fit when unpacked: say so before downloading. */
static int check_size(const struct pipeline *p, const struct oci_image *image, struct error *err)
{
        uint64_t mb = image->total_size / MB;

        if (mb > BUILD_IMAGE_MB_MAX)
                return error_set(err, ERROR_LIMIT, "image '%s' has %llu MB compressed; the limit is %d MB unpacked",
                                 image->reference, (unsigned long long)mb, BUILD_IMAGE_MB_MAX);
        if (mb > p->job->disk_mb)
                return error_set(err, ERROR_LIMIT, "image '%s' has %llu MB compressed, but the disk of this build has %u MB "
                                 "(the team's max_disk_mb)", image->reference, (unsigned long long)mb, p->job->disk_mb);
        return 0;
}

/* Plain tars in the share, diff_ids verified; `ret_bytes` is their sum. */
static int extract_layers(struct pipeline *p, const struct oci_image *image, uint64_t *ret_bytes, struct error *err)
{
        struct oci_progress progress = progress_of(p);
        uint64_t left = BUILD_IMAGE_MB_MAX * MB;

        for (size_t i = 0; i < image->layer_count; i++) {
                CLEANUP_FREE char *path = xasprintf("%s/layers/%zu.tar", p->share, i);
                CLEANUP_FREE char *size = human_size(image->layers[i].size);
                uint64_t bytes = 0;
                int r;

                build_log(&p->run->log, LOG_LEVEL_INFO, "Uncompressing layer %s %s", image->layers[i].digest, size);
                r = oci_extract(&p->run->settings->oci, image, i, path, left, &bytes, &progress, err);
                if (r < 0)
                        return error_wrap(err, r, "image '%s': layer %zu of %zu", image->reference, i + 1, image->layer_count);
                left -= bytes < left ? bytes : left;
        }
        *ret_bytes = BUILD_IMAGE_MB_MAX * MB - left;
        return 0;
}

static json_t *unpack_arguments(const struct oci_image *image)
{
        json_t *args = json_object(), *layers = json_array();

        for (size_t i = 0; i < image->layer_count; i++) {
                CLEANUP_FREE char *file = xasprintf("layers/%zu.tar", i);

                json_array_append_new(layers, json_pack("{s:s,s:s}", "file", file, "name", image->layers[i].digest));
        }
        json_object_set_new(args, "layers", layers);
        return args;
}

static void log_root(const struct pipeline *p, const json_t *result)
{
        CLEANUP_BUF struct buf names = {};
        const json_t *name;
        size_t i;

        build_log(&p->run->log, LOG_LEVEL_INFO, "Layers extracted");
        json_array_foreach(json_object_get(result, "root"), i, name)
                buf_addf(&names, "%s%s", i ? ", " : "", json_string_value(name) ? json_string_value(name) : "");
        build_log(&p->run->log, LOG_LEVEL_INFO, "Root filesystem structure: %s", buf_str(&names));
}

static void on_unpack_event(const json_t *event, void *data)
{
        struct pipeline *p = data;

        build_log(&p->run->log, LOG_LEVEL_DEBUG, "Layer %lld: %lld entries, %lld MB", (long long)json_int(event, "layer", 0),
                  (long long)json_int(event, "entries", 0), (long long)json_int(event, "bytes", 0) / (long long)MB);
}

static int unpack(struct pipeline *p, const struct oci_image *image, uint64_t bytes, struct error *err)
{
        CLEANUP_JSON json_t *args = unpack_arguments(image), *result = NULL;
        int r = guest_request(p, "unpack", args, BUILD_UNPACK_SECONDS, on_unpack_event, p, &result, err);

        if (r < 0)
                return error_wrap(err, r, "image '%s' (%llu MB unpacked) onto the disk of this build (%u MB, the team's max_disk_mb)",
                                  image->reference, (unsigned long long)(bytes / MB), p->job->disk_mb);
        log_root(p, result);
        r = guest_request(p, "switch-root", NULL, BUILD_BOOT_SECONDS, NULL, NULL, NULL, err);
        if (r >= 0)
                r = guest_await(p, "init", err);
        return r < 0 ? r : guest_introduce(p, err);
}

static int remove_tars(struct pipeline *p, struct error *err)
{
        CLEANUP_FREE char *dir = path_join(p->share, "layers");

        return tree_remove(dir, err);
}

static int boot_unpacker(struct pipeline *p, struct error *err)
{
        unsigned memory = p->job->memory_mb < BUILD_MEMORY_FLOOR_MIB ? BUILD_MEMORY_FLOOR_MIB : p->job->memory_mb;
        const char *disks[2] = {};
        int r;

        p->top = path_join(p->scratch, "base.img");
        r = disk_create_ext4(p->top, p->job->disk_mb, err);
        if (r < 0)
                return r;
        disks[0] = p->top;
        return guest_start(p, &(struct guest_boot){.mode = "unpack", .disks = disks, .agent_mode = "initramfs", .memory_mib = memory},
                           err);
}

/* Everything of an image that is not in the cache. */
static int make_base(struct pipeline *p, const struct oci_image *image, struct error *err)
{
        struct oci_progress progress = progress_of(p);
        CLEANUP_FREE char *dir = path_join(p->share, "layers");
        uint64_t bytes = 0;
        int r;

        build_log(&p->run->log, LOG_LEVEL_INFO, "Base Docker image size: %llu MB", (unsigned long long)(image->total_size / MB));
        r = check_size(p, image, err);
        if (r >= 0)
                r = dir_make(dir, 0755, err);
        if (r < 0)
                return r;
        build_log(&p->run->log, LOG_LEVEL_INFO, "Creating file system and pulling Docker image");
        r = oci_fetch(&p->run->settings->oci, image, &p->job->plan.auth, &progress, err);
        if (r >= 0)
                r = extract_layers(p, image, &bytes, err);
        build_log_time(&p->run->log, "pull");
        if (r >= 0)
                r = boot_unpacker(p, err);
        build_log_time(&p->run->log, "boot of the unpacking VM");
        if (r >= 0)
                r = unpack(p, image, bytes, err);
        if (r >= 0)
                r = remove_tars(p, err);
        build_log_time(&p->run->log, "unpack");
        if (r >= 0)
                r = pipeline_provision(p, err);
        build_log_time(&p->run->log, "provision");
        return r;
}

static int from_image(struct pipeline *p, struct error *err)
{
        CLEANUP_FREE char *text = xasprintf("FROM %s", p->job->plan.from_image);
        struct oci_progress progress = progress_of(p);
        char scripts[BUILD_KEY_LEN + 1], key[BUILD_KEY_LEN + 1];
        struct oci_image image = {};
        bool cached = false;
        int r;

        build_log(&p->run->log, LOG_LEVEL_DEBUG, "Requesting Docker Image");
        r = oci_resolve(&p->run->settings->oci, p->job->plan.from_image, p->kit->arch, &p->job->plan.auth, &progress, &image, err);
        if (r < 0)
                return r;
        build_log_time(&p->run->log, "resolve the image");
        guest_scripts_hash(scripts);
        build_key_image(image.digest, p->kit->arch, p->job->disk_mb, scripts, p->kit->agent_sha256, key);
        r = pipeline_resume(p, key, err);
        if (r >= 0) {
                cached = pipeline_next_is_cached(p, key);
                pipeline_log_layer(p, cached, "base", text, key);
        }
        if (r >= 0 && !cached) {
                p->image_env = build_env_object(image.env);
                build_context_init(&p->context, image.env);
                r = make_base(p, &image, err);
                if (r >= 0)
                        r = pipeline_add_built(p, key, true, err);
        }
        oci_image_free(&image);
        return r;
}

/* What the parent build left beside its snapshot for its children. */
static int read_parent_init(struct pipeline *p, struct error *err)
{
        CLEANUP_FREE char *path = path_join(p->job->parent->dir, "build.json");
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        int r = file_read(path, 1 << 20, &text, err);

        if (r >= 0)
                r = json_parse(text.data, text.len, &j, err);
        if (r < 0)
                return error_wrap(err, r, "the parent build's artifacts are not complete on this node");
        free(p->init);
        p->init = xstrdup(json_str(j, "init") ? json_str(j, "init") : "agent");
        return 0;
}

static int from_template(struct pipeline *p, struct error *err)
{
        const struct build_parent *parent = p->job->parent;
        CLEANUP_FREE char *text = xasprintf("FROM TEMPLATE %s", p->job->plan.from_template);
        int r = read_parent_init(p, err);

        if (r < 0)
                return r;
        p->bottom = path_join(parent->dir, "rootfs.img");
        p->bottom_instance = parent->build_id;
        if (!path_exists(p->bottom))
                return error_set(err, ERROR_UNAVAILABLE, "the root file system of the parent build is not on this node: %s", p->bottom);
        build_key_template(parent->build_id, p->job->disk_mb, p->key);
        build_context_copy(&p->context, &parent->context);
        p->image_env = parent->image_env ? json_incref(parent->image_env) : json_object();
        /* Never rebuilt, not even by a forced build (template-api 5.3). */
        pipeline_log_layer(p, true, "base", text, p->key);
        return pipeline_resume(p, NULL, err);
}

static int create_user(struct pipeline *p, struct error *err)
{
        const char *parts[] = {guest_lib, guest_user, "ensure_user user; make_admin user", NULL};
        bool shell = false;
        int r = guest_has_shell(p, &shell, err);

        if (r < 0)
                return r;
        if (!shell)
                return guest_set_up_bare(p, false, err);
        return guest_run_script(p, &(struct guest_script){.parts = parts, .prefix = "[base] ", .timeout_s = BUILD_CONFIGURE_SECONDS,
                                                          .what = "creating the default user"}, NULL, err);
}

static int default_user(struct pipeline *p, struct error *err)
{
        char key[BUILD_KEY_LEN + 1];
        bool cached;
        int r;

        build_key_user(p->key, key);
        cached = pipeline_next_is_cached(p, key);
        pipeline_log_layer(p, cached, "base", "DEFAULT USER user", key);
        if (cached)
                return 0;
        r = guest_need(p, err);
        if (r >= 0)
                r = create_user(p, err);
        if (r < 0)
                return r;
        build_context_set_user(&p->context, "user");
        return pipeline_add_built(p, key, true, err);
}

int pipeline_base(struct pipeline *p, struct error *err)
{
        int r = p->job->parent ? from_template(p, err) : from_image(p, err);

        if (r < 0)
                return r;
        if (p->job->template_version >= 21)
                return default_user(p, err);
        return 0;
}
