/* The operations of the serial channel (docs/agent-protocol.md), one function each, by a table. They run on the
 * channel's worker thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/random.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent.h"
#include "bare.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base64.h"
#include "cgroup.h"
#include "copy.h"
#include "guest.h"
#include "guest-reset.h"
#include "serial.h"
#include "state.h"
#include "unpack.h"

#define ENTROPY_MAX 512

struct operation {
        const char *name;
        int (*run)(const json_t *request, json_t *id, json_t **ret, struct error *err);
        void (*after)(void);
};

static int wrong_mode(const char *op, struct error *err)
{
        return error_set(err, ERROR_INVALID, "%s is not possible in mode %s", op, agent_mode_name(agent_options.mode));
}

static int run_unpack(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        if (agent_options.mode != MODE_INITRAMFS)
                return wrong_mode("unpack", err);
        return unpack_layers(request, id, ret, err);
}

static int run_switch_root(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        (void)request, (void)id, (void)ret;
        if (agent_options.mode != MODE_INITRAMFS)
                return wrong_mode("switch-root", err);
        return guest_mount_root(err);
}

static void after_switch_root(void)
{
        const char *const argv[] = { AGENT_BINARY, NULL };
        struct error err;

        if (guest_mount_module_disk(NEW_ROOT, &err) < 0)
                log_warn("%s", err.message);
        guest_switch_root(argv, &err);
        log_error("%s", err.message);
        guest_power_off();
}

static int run_copy(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        const char *archive = json_str(request, "archive"), *mode = json_str(request, "mode");
        CLEANUP_FREE char *path = NULL;
        struct copy_request c = {
                .source = json_str(request, "src"), .target = json_str(request, "dest"),
                .owner = json_str(request, "owner"), .mode = mode ? mode : "",
        };
        struct copy_result result;
        int r;

        (void)id;
        if (!archive || strstr(archive, "..") || !c.source || !c.target || !c.owner)
                return error_set(err, ERROR_INVALID, "copy needs archive, src, dest and owner");
        if (agent_options.mode == MODE_INITRAMFS)
                return wrong_mode("copy", err);
        r = agent_options.confined ? 0 : guest_mount_share(agent_options.share, err);
        if (r < 0)
                return r;
        path = xasprintf("%s/%s", agent_options.share, archive);
        c.archive = path;
        r = copy_from_archive(&c, &result, err);
        if (r >= 0)
                *ret = json_pack("{s:I,s:I,s:b}", "entries", (json_int_t)result.entries, "bytes", (json_int_t)result.bytes,
                                 "elsewhere", result.elsewhere);
        return r;
}

/* What is left of the root file system, to tell a full disk from other failures. */
static int run_disk_space(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        struct statvfs fs;

        (void)request, (void)id;
        if (statvfs("/", &fs) < 0)
                return error_errno(err, errno, "look at the disk");
        *ret = json_pack("{s:I,s:I}", "free_bytes", (json_int_t)fs.f_bavail * (json_int_t)fs.f_frsize, "free_inodes", (json_int_t)fs.f_favail);
        return 0;
}

static int run_set_up_bare(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        struct bare_ids ids = { json_str(request, "template_id"), json_str(request, "build_id") };

        (void)id, (void)ret;
        if (!ids.template_id != !ids.build_id)
                return error_set(err, ERROR_INVALID, "set-up-bare needs both template_id and build_id or neither");
        return agent_options.confined ? wrong_mode("set-up-bare", err) : bare_set_up("", &ids, err);
}

static int run_step_end(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        int r;

        (void)request, (void)id, (void)ret;
        r = process_end_all(err);
        return r < 0 ? r : guest_reset(err);
}

static const char *frozen_root(void)
{
        return agent_options.mode == MODE_INITRAMFS ? NEW_ROOT : "/";
}

static int freeze_ioctl(unsigned long what, int already, const char *name, struct error *err)
{
        CLEANUP_CLOSE int fd = open(frozen_root(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0)
                return error_errno(err, errno, "open %s", frozen_root());
        if (agent_options.confined)
                return 0;
        if (ioctl(fd, what, 0) < 0 && errno != already)
                return error_errno(err, errno, "%s %s", name, frozen_root());
        return 0;
}

static int run_fs_freeze(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        (void)request, (void)id, (void)ret;
        if (!agent_options.confined)
                sync();
        return freeze_ioctl(FIFREEZE, EBUSY, "freeze", err);
}

static int run_fs_thaw(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        (void)request, (void)id, (void)ret;
        return freeze_ioctl(FITHAW, EINVAL, "thaw", err);
}

static int run_freeze(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        (void)request, (void)id, (void)ret, (void)err;
        freezer_freeze();
        return 0;
}

static int run_thaw(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        (void)request, (void)id, (void)ret, (void)err;
        freezer_thaw();
        return 0;
}

static int run_prepare_snapshot(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        CLEANUP_CLOSE int fd = -1;

        (void)request, (void)id, (void)ret;
        freezer_freeze();
        if (agent_options.confined)
                return 0;
        sync();
        fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "3", 1) < 0)
                return error_errno(err, errno, "drop the caches");
        return 0;
}

/* Gives the kernel what makes this clone's random numbers its own. */
static int add_entropy(const json_t *request, struct error *err)
{
        const char *text = json_str(request, "entropy");
        CLEANUP_BUF struct buf raw = {};
        CLEANUP_CLOSE int fd = -1;
        union {
                struct rand_pool_info info; /* ends in the data */
                char room[sizeof(struct rand_pool_info) + ENTROPY_MAX];
        } pool = {};

        if (!text || !base64_decode(text, strlen(text), &raw) || raw.len < 32 || raw.len > ENTROPY_MAX)
                return error_set(err, ERROR_INVALID, "wake needs entropy: base64 of 32 to %d bytes", ENTROPY_MAX);
        if (agent_options.confined)
                return 0;
        pool.info.entropy_count = (int)raw.len * 8;
        pool.info.buf_size = (int)raw.len;
        memcpy(pool.room + offsetof(struct rand_pool_info, buf), raw.data, raw.len);
        fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) < 0)
                return error_errno(err, errno, "add entropy");
        /* From Linux 4.14 on; without it the pool is taken up at the next reseeding. */
        if (ioctl(fd, RNDRESEEDCRNG) < 0 && errno != EINVAL && errno != ENOTTY && errno != ENODATA)
                return error_errno(err, errno, "reseed the random number generator");
        explicit_bzero(&pool, sizeof(pool));
        return 0;
}

static int run_init(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        json_t *token = json_object_get(request, "access_token"), *hash = json_object_get(request, "access_token_hash");
        json_t *env = json_object_get(request, "env"), *image_env = json_object_get(request, "image_env");
        struct state_update u = {
                .set_token = token, .token = json_string_value(token),
                .env = json_is_null(env) ? NULL : env, .image_env = json_is_null(image_env) ? NULL : image_env,
                .default_user = json_str(request, "default_user"), .default_workdir = json_str(request, "default_workdir"),
                .sandbox_id = json_str(request, "sandbox_id"), .template_id = json_str(request, "template_id"),
                .time_ns = json_int(request, "time_ns", 0), .by_host = true,
                .set_token_hash = hash, .token_hash = json_string_value(hash),
        };

        (void)id, (void)ret;
        if (token && !json_is_null(token) && !json_is_string(token))
                return error_set(err, ERROR_INVALID, "access_token is neither a string nor null");
        if (hash && !json_is_null(hash) && !json_is_string(hash))
                return error_set(err, ERROR_INVALID, "access_token_hash is neither a string nor null");
        return state_apply(&u, err);
}

/* What a boot would forget and a wake can bring back. */
static int run_state(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *user = state_default_user(), *workdir = state_default_workdir();

        (void)request, (void)id, (void)err;
        *ret = json_pack("{s:o,s:o,s:s*,s:s*}", "env", state_user_env(), "image_env", state_image_env(), "default_user", user, "default_workdir", workdir);
        return 0;
}

/* The clone is for later. The host runs commands now, so that the first one of its user finds everything translated and in place; what is
 * frozen stays so. */
static int run_warm(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        int r = add_entropy(request, err);

        if (r >= 0)
                r = run_init(request, id, ret, err);
        if (r >= 0)
                cgroup_rehearse(true);
        return r;
}

static int run_wake(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        int r = add_entropy(request, err);

        cgroup_rehearse(false);
        if (r >= 0)
                r = run_init(request, id, ret, err);
        return r;
}

static int run_power_off(const json_t *request, json_t *id, json_t **ret, struct error *err)
{
        (void)request, (void)id, (void)ret;
        return agent_options.confined ? wrong_mode("power-off", err) : 0;
}

static const struct operation operations[] = {
        { "unpack", run_unpack, NULL },
        { "switch-root", run_switch_root, after_switch_root },
        { "copy", run_copy, NULL },
        { "disk-space", run_disk_space, NULL },
        { "set-up-bare", run_set_up_bare, NULL },
        { "step-end", run_step_end, NULL },
        { "fs-freeze", run_fs_freeze, NULL },
        { "fs-thaw", run_fs_thaw, NULL },
        { "freeze", run_freeze, NULL },
        { "thaw", run_thaw, NULL },
        { "prepare-snapshot", run_prepare_snapshot, NULL },
        { "warm", run_warm, NULL },
        { "wake", run_wake, freezer_thaw }, /* answered first: what is thawed wants the processor too */
        { "init", run_init, NULL },
        { "state", run_state, NULL },
        { "power-off", run_power_off, guest_power_off },
};

int serial_operation(const json_t *request, json_t *id, json_t **ret, void (**after)(void), struct error *err)
{
        const char *name = json_str(request, "op");

        for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
                int r;

                if (!streq(name, operations[i].name))
                        continue;
                r = operations[i].run(request, id, ret, err);
                if (r >= 0)
                        *after = operations[i].after;
                return r;
        }
        return error_set(err, ERROR_INVALID, "unknown operation '%s'", name ? name : "");
}
