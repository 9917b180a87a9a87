/* Theory of operation: one struct behind one mutex. Environment maps are kept as jansson objects that only
 * this file touches (jansson's reference counts are not atomic across the lock, so copies leave, never
 * references). The clock rule of envd.md 4 (step when more than 50 ms behind or 5 s ahead) lives here because
 * it is part of an init call's effect.
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "agent.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "journal.h"

#define RUN_DIR "/run/e2b"
#define CLOCK_BEHIND_NS (50 * NSEC_PER_MSEC)
#define CLOCK_AHEAD_NS (5 * NSEC_PER_SEC)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
        char *token;
        char *token_hash;
        bool host_owned;
        char *user;
        char *workdir;
        char *sandbox_id;
        char *template_id;
        json_t *env;
        json_t *image_env;
        int64_t newest_ns;
} state;

static void replace(char **to, const char *from)
{
        char *fresh = xstrdup(from);

        free(*to);
        *to = fresh;
}

static int check_env(const json_t *env, const char *member, struct error *err)
{
        const char *key;
        json_t *value;

        if (!env)
                return 0;
        if (!json_is_object(env))
                return error_set(err, ERROR_INVALID, "%s must be an object of strings", member);
        json_object_foreach((json_t *)env, key, value) {
                if (!json_is_string(value))
                        return error_set(err, ERROR_INVALID, "%s: the value of %s is no string", member, key);
                if (*key == 0 || strchr(key, '='))
                        return error_set(err, ERROR_INVALID, "%s: '%s' is no variable name", member, key);
        }
        return 0;
}

static int check_update(const struct state_update *u, struct error *err)
{
        int r;

        if (u->set_token && u->token) {
                if (*u->token == 0 || strchr(u->token, '\\'))
                        return error_set(err, ERROR_INVALID, "the access token is empty or holds a backslash");
                if (strlen(u->token) > STATE_TOKEN_MAX)
                        return error_set(err, ERROR_INVALID, "the access token is longer than %d bytes",
                                         STATE_TOKEN_MAX);
        }
        if (u->token_hash && !str_is_hex(u->token_hash, 2 * SHA512_DIGEST_LENGTH))
                return error_set(err, ERROR_INVALID, "access_token_hash is no SHA-512 in lower-case hexadecimal");
        r = check_env(u->env, "envVars", err);
        return r < 0 ? r : check_env(u->image_env, "image_env", err);
}

bool state_clock_is_off(int64_t now, int64_t wanted)
{
        return now < wanted - CLOCK_BEHIND_NS || now > wanted + CLOCK_AHEAD_NS;
}

static void set_clock(int64_t wanted)
{
        struct timespec ts = { .tv_sec = wanted / NSEC_PER_SEC, .tv_nsec = wanted % NSEC_PER_SEC };

        if (agent_options.confined || !state_clock_is_off(clock_realtime_ns(), wanted))
                return;
        if (clock_settime(CLOCK_REALTIME, &ts) < 0)
                log_warn("set the clock: %s", strerror(errno));
}

static void apply_locked(const struct state_update *u)
{
        if (u->set_token) {
                free(state.token);
                state.token = u->token ? xstrdup(u->token) : NULL;
        }
        if (u->set_token_hash) {
                free(state.token_hash);
                state.token_hash = u->token_hash ? xstrdup(u->token_hash) : NULL;
        }
        state.host_owned = state.host_owned || u->by_host;
        if (u->env) {
                json_decref(state.env);
                state.env = json_deep_copy(u->env);
        }
        if (u->image_env) {
                json_decref(state.image_env);
                state.image_env = json_deep_copy(u->image_env);
        }
        if (u->default_user && *u->default_user)
                replace(&state.user, u->default_user);
        if (u->default_workdir && *u->default_workdir)
                replace(&state.workdir, u->default_workdir);
        if (u->sandbox_id && !streq(u->sandbox_id, state.sandbox_id)) {
                journal_reset();
                replace(&state.sandbox_id, u->sandbox_id);
        }
        if (u->template_id)
                replace(&state.template_id, u->template_id);
}

int state_apply(const struct state_update *update, struct error *err)
{
        int r = check_update(update, err);
        bool stale;

        if (r < 0)
                return r;
        pthread_mutex_lock(&lock);
        stale = update->ordered && update->time_ns && update->time_ns < state.newest_ns;
        if (!stale) {
                if (update->time_ns) {
                        state.newest_ns = update->time_ns;
                        set_clock(update->time_ns);
                }
                apply_locked(update);
        }
        pthread_mutex_unlock(&lock);
        if (!stale)
                state_write_files();
        return 0;
}

bool state_token_matches(const char *given)
{
        bool same;

        pthread_mutex_lock(&lock);
        same = !state.token || (given && str_equal_constant_time(state.token, given));
        pthread_mutex_unlock(&lock);
        return same;
}

static void hash_hex(const char *text, char ret[2 * SHA512_DIGEST_LENGTH + 1])
{
        unsigned char digest[SHA512_DIGEST_LENGTH];
        SHA512_CTX sha;

        /* The low-level interface: EVP would pull most of libcrypto into the static binary. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        SHA512_Init(&sha);
        SHA512_Update(&sha, text, strlen(text));
        SHA512_Final(digest, &sha);
#pragma GCC diagnostic pop
        hex_encode(digest, sizeof(digest), ret);
}

bool state_init_authorised(const char *token)
{
        char hash[2 * SHA512_DIGEST_LENGTH + 1];
        bool yes;

        hash_hex(token ? token : "", hash);
        pthread_mutex_lock(&lock);
        if (token && state.token && str_equal_constant_time(state.token, token))
                yes = true;
        else if (state.token_hash)
                yes = str_equal_constant_time(state.token_hash, hash);
        else
                yes = !state.token && !state.host_owned;
        pthread_mutex_unlock(&lock);
        return yes;
}

bool state_has_token(void)
{
        bool set;

        pthread_mutex_lock(&lock);
        set = state.token;
        pthread_mutex_unlock(&lock);
        return set;
}

static char *copy_of(char *const *member)
{
        char *copy;

        pthread_mutex_lock(&lock);
        copy = *member ? xstrdup(*member) : NULL;
        pthread_mutex_unlock(&lock);
        return copy;
}

char *state_token(void)
{
        return copy_of(&state.token);
}

char *state_default_user(void)
{
        char *user = copy_of(&state.user);

        return user ? user : xstrdup("root");
}

char *state_default_workdir(void)
{
        return copy_of(&state.workdir);
}

static json_t *copy_env(json_t *const *env)
{
        json_t *copy;

        pthread_mutex_lock(&lock);
        copy = *env ? json_deep_copy(*env) : json_object();
        pthread_mutex_unlock(&lock);
        return copy;
}

json_t *state_image_env(void)
{
        return copy_env(&state.image_env);
}

json_t *state_user_env(void)
{
        return copy_env(&state.env);
}

json_t *state_global_env(void)
{
        json_t *env;

        pthread_mutex_lock(&lock);
        env = state.env ? json_deep_copy(state.env) : json_object();
        json_object_set_new(env, "E2B_SANDBOX", json_string("true"));
        json_object_del(env, "E2B_SANDBOX_ID");
        json_object_del(env, "E2B_TEMPLATE_ID");
        json_object_del(env, "E2B_EVENTS_ADDRESS");
        if (state.sandbox_id)
                json_object_set_new(env, "E2B_SANDBOX_ID", json_string(state.sandbox_id));
        if (state.template_id)
                json_object_set_new(env, "E2B_TEMPLATE_ID", json_string(state.template_id));
        pthread_mutex_unlock(&lock);
        return env;
}

/* Plain writes: the directory is on tmpfs, and its readers are processes that start later. */
static void write_file(const char *name, const char *text, mode_t mode)
{
        CLEANUP_FREE char *path = path_join(RUN_DIR, name);
        CLEANUP_CLOSE int fd = -1;

        unlink(path);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd < 0 || fd_write_all(fd, text, strlen(text)) < 0)
                log_warn("write %s: %s", path, strerror(errno));
}

void state_write_files(void)
{
        CLEANUP_FREE char *sandbox = copy_of(&state.sandbox_id);
        CLEANUP_FREE char *template = copy_of(&state.template_id);

        if (agent_options.confined || agent_options.mode == MODE_INITRAMFS)
                return;
        if (mkdir(RUN_DIR, 0755) < 0 && errno != EEXIST) {
                log_warn("create %s: %s", RUN_DIR, strerror(errno));
                return;
        }
        write_file(".E2B_SANDBOX", "true", 0444);
        if (sandbox)
                write_file(".E2B_SANDBOX_ID", sandbox, 0644);
        if (template)
                write_file(".E2B_TEMPLATE_ID", template, 0644);
}
