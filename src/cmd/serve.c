/* `vmon serve`: the driver and the node in one process (docs/architecture.md).
 *
 * One loop thread owns both listeners; requests for the API go to the dispatcher's workers, sandbox traffic goes through the
 * proxy, decided request by request, as one connection carries both. Builds run on the queue's threads. The parts are made
 * from the bottom up by open_*() and torn down in reverse; whatever fails on the way up is told in one line and the process
 * ends with status 1.
 *
 * SIGTERM or SIGINT stops accepting and lets requests finish, for STOP_GRACE_S at most (a command's output stream may last
 * for hours); a second signal cuts that short. Running builds are cancelled. Sandboxes belong to their own supervisors and
 * live on; the next start adopts them.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <uv.h>

#include "api/admin.h"
#include "api/admin-node.h"
#include "api/admin-store.h"
#include "api/api.h"
#include "api/health.h"
#include "api/request-rate.h"
#include "api/sandboxes.h"
#include "api/templates.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/build.h"
#include "cluster/housekeeping.h"
#include "cmd/commands.h"
#include "cmd/data_dir.h"
#include "cmd/notify.h"
#include "cmd/options.h"
#include "http/server.h"
#include "http/tls.h"
#include "sandbox/proxy.h"
#include "sandbox/sandbox.h"
#include "store/records.h"
#include "store/secret.h"
#include "store/store.h"
#include "vm/kit.h"
#include "vm/vm.h"

#define API_WORKERS 32
#define CLUSTER_WORKERS 4
#define POOL_THREADS "32" /* libuv's own pool: dials of the traffic proxy */
#define STOP_GRACE_S 20
#define IMAGE_SAFE_SECONDS 600 /* beyond the longest build */

struct server {
        struct serve_options options;
        int lock_fd;
        unsigned char root_secret[SECRET_LEN];
        char *cluster_token;
        char *public_url;
        pthread_mutex_t backend_lock;
        const char *backend; /* NULL while there is no kit; see need_backend() */
        void *tls;           /* or NULL */
        struct store *store;
        struct records *records;
        struct template_service *templates;
        struct build_queue *queue;
        struct sandbox_manager *sandboxes;
        struct sandboxes_api sandboxes_api;
        struct housekeeping *housekeeping;
        struct admin_node admin_node;
        struct admin_store admin_store;
        struct request_rate *rate;
        uv_loop_t loop;
        struct api *api, *cluster_api;
        struct proxy *proxy;
        struct http_server *listener, *cluster_listener; /* NULL when closed: the engine frees them */
        uv_signal_t signals[2];
        uv_timer_t grace;
        bool stopping, loop_made;
};

/* Directory, lock, secrets, store. */
static int open_store(struct server *s, struct error *err)
{
        CLEANUP_FREE char *secret = path_join(s->options.data_dir, "root-secret");
        int r = data_dir_open(s->options.data_dir, &s->lock_fd, err);
        if (r == 0)
                r = secret_load(secret, s->root_secret, err);
        if (r == 0)
                r = cluster_token_load(s->options.cluster_token_file, &s->cluster_token, err);
        if (r == 0)
                r = store_open(s->options.store_url, &s->store, err);
        if (r == 0)
                r = records_open(s->store, &s->records, err);
        if (r < 0)
                return r;
        records_set_secret(s->records, s->root_secret);
        return records_check_secret(s->records, err);
}

static int make_default_team(struct server *s, struct error *err)
{
        CLEANUP_FREE char *key = NULL;
        int r = default_team_ensure(s->records, s->options.data_dir, &key, err);
        if (r == 0 && key) {
                /* The one time that it is shown; not through the log, which may be kept. */
                fprintf(stderr, "vmon: API key of team 'default' (also in %s/default-key): %s\n", s->options.data_dir, key);
                explicit_bzero(key, strlen(key));
        }
        return r;
}

/* The kit that is current now, and with the first one the backend. */
static int open_kit(struct server *s, struct kit **ret, struct error *err)
{
        struct utsname machine;
        uname(&machine);
        return kit_open(s->options.kit_dir, machine.machine, NULL, ret, err);
}

static int choose_backend(struct server *s, const struct kit *kit, struct error *err)
{
        CLEANUP_FREE char *cache = path_join(s->options.data_dir, "cache"), *reason = NULL;
        int r = hypervisor_select(kit, s->options.hypervisor, cache, &s->backend, &reason, err);
        if (r == 0)
                log_info("hypervisor: %s (%s); kit %.12s", s->backend, reason ? reason : "as asked", kit->version);
        return r;
}

/* Asked when a build or a sandbox is to be started: a kit that was prepared after the start is found then. ERROR_UNAVAILABLE
 * with the mend while there is no whole one. Any thread. */
static int need_backend(void *data, const char **ret, struct error *err)
{
        struct server *s = data;
        CLEANUP(cleanup_kit) struct kit *kit = NULL;
        int r = open_kit(s, &kit, err);
        if (r < 0)
                return r;
        pthread_mutex_lock(&s->backend_lock);
        if (!s->backend)
                r = choose_backend(s, kit, err);
        if (r == 0)
                *ret = s->backend;
        pthread_mutex_unlock(&s->backend_lock);
        return r;
}

static void log_kit_line(const char *line)
{
        log_info("kit: %s", line);
}

/* Without a kit the server runs, so that templates can be looked at and keys made, but starts no machine. */
static int prepare_kit(struct server *s, struct error *err)
{
        CLEANUP(cleanup_kit) struct kit *kit = NULL;
        struct error why = {};
        if (kit_add_user(s->options.kit_dir, s->options.data_dir, &why) < 0)
                log_warn("%s; 'vmon kit' will keep all versions, or remove one that is needed here", why.message);
        else if (kit_collect(s->options.kit_dir, NULL, false, log_kit_line, &why) < 0)
                log_warn("%s", why.message);
        if (open_kit(s, &kit, &why) < 0) {
                log_warn("nothing can be built or started here: %s", why.message);
                return 0;
        }
        return choose_backend(s, kit, err);
}

static void warn_about_network(const struct server *s)
{
        if (s->options.network == VM_NETWORK_USER)
                log_warn("network 'user' is for development: sandboxes can reach services on this host's loopback interface; run as root "
                         "with --network nat to separate them");
}

static int interrupted_builds(struct server *s, struct error *err)
{
        int n = records_builds_interrupted(s->records, "the build was interrupted: the server was stopped or restarted while it ran; start it again", err);
        if (n > 0)
                log_info("%d builds were cut off by the last stop", n);
        return n < 0 ? n : 0;
}

static int open_builds(struct server *s, struct error *err)
{
        const struct template_settings templates = {
                .records = s->records,
                .data_dir = s->options.data_dir,
                .public_url = s->public_url,
                .root_secret = s->root_secret,
                .node = s->options.node_name,
                .need_backend = need_backend,
                .need_backend_data = s,
        };
        CLEANUP_FREE char *oci_cache = path_join(s->options.data_dir, "cache/oci");
        const struct build_settings settings = {
                .data_dir = s->options.data_dir,
                .kit_root = s->options.kit_dir,
                .hypervisor = s->options.hypervisor,
                .cpu_model = s->options.cpu_baseline,
                .network = s->options.network,
                .oci = { .cache_dir = oci_cache, .insecure = (const char *const *)s->options.insecure_registries, .mirror = s->options.registry_mirror },
                .max_builds = s->options.max_builds,
                .step_cache_bytes = s->options.step_cache_bytes,
                .max_seconds = s->options.build_seconds,
                .ready_seconds = s->options.ready_seconds,
        };
        int r = interrupted_builds(s, err);
        if (r == 0)
                r = template_service_new(&templates, &s->templates, err);
        if (r < 0)
                return r;
        struct build_events events = template_service_events(s->templates);
        r = build_queue_new(&settings, &events, &s->queue, err);
        if (r == 0)
                template_service_set_queue(s->templates, s->queue);
        return r;
}

static int open_sandboxes(struct server *s, struct error *err)
{
        const struct sandbox_settings settings = {
                .data_dir = s->options.data_dir,
                .kit_root = s->options.kit_dir,
                .need_backend = need_backend,
                .need_backend_data = s,
                .network = s->options.network,
                .root_secret = s->root_secret,
                .records = s->records,
                .node = s->options.node_name,
                .pool_max = s->options.pool,
                .pool_bytes = s->options.pool_bytes,
                .history_bytes = s->options.history_bytes,
        };
        int r = sandbox_manager_new(&settings, &s->sandboxes, err);
        s->sandboxes_api = (struct sandboxes_api){ .manager = s->sandboxes, .records = s->records, .data_dir = s->options.data_dir };
        return r;
}

static bool build_in_use(void *data, const char *build_id)
{
        struct server *s = data;
        return sandbox_build_used(s->sandboxes, build_id) || template_service_builds_on(s->templates, build_id) ||
               build_queue_uses(s->queue, build_id);
}

static void forget_build(void *data, const char *build_id)
{
        struct server *s = data;
        sandbox_build_forget(s->sandboxes, build_id);
}

static int open_housekeeping(struct server *s, struct error *err)
{
        const struct housekeeping_settings settings = {
                .data_dir = s->options.data_dir, .records = s->records, .in_use = build_in_use, .forget = forget_build, .data = s,
                .image_cache_bytes = s->options.image_cache_bytes, .image_safe_seconds = s->options.build_seconds + IMAGE_SAFE_SECONDS
        };
        int r = housekeeping_new(&settings, &s->housekeeping, err);
        s->admin_node = (struct admin_node){
                .name = s->options.node_name,
                .data_dir = s->options.data_dir,
                .kit_dir = s->options.kit_dir,
                .records = s->records,
                .sandboxes = s->sandboxes,
                .housekeeping = s->housekeeping,
                .need_backend = need_backend,
                .need_backend_data = s,
        };
        return r;
}

static int authenticate(void *data, const char *key, void **ret_team, bool *ret_blocked, struct error *err)
{
        struct server *s = data;
        struct team *team = NULL;
        int r = records_key_team(s->records, key, &team, err);
        if (r < 0)
                return r;
        if (!request_rate_take(s->rate, team->id, team->max_requests_per_second, clock_monotonic_ns())) {
                r = error_set(err, ERROR_LIMIT, "Rate limit exceeded, please try again later: the team may make %u requests a second",
                              team->max_requests_per_second);
                team_free(team);
                return r;
        }
        *ret_blocked = team->blocked;
        if (team->blocked && team->blocked_reason && *team->blocked_reason)
                error_set(err, ERROR_FORBIDDEN, "team is blocked: %s", team->blocked_reason);
        *ret_team = team;
        return 0;
}

static void release_team(void *data, void *team)
{
        (void)data;
        team_free(team);
}

static void audit(void *data, const struct api_request *request, const char *action, int status, const char *error)
{
        struct server *s = data;
        admin_store_audit(&s->admin_store, request, action, status, error);
}

static void snapshot(void *data, bool begin)
{
        struct server *s = data;
        if (begin)
                records_snapshot_begin(s->records);
        else
                records_snapshot_end(s->records);
}

static int open_api(struct server *s, struct error *err)
{
        s->rate = request_rate_new();
        s->admin_store = (struct admin_store){ .records = s->records, .store = s->store, .node = s->options.node_name };
        const struct api_hooks hooks = { .authenticate = authenticate, .release_team = release_team, .audit = audit, .snapshot = snapshot,
                                         .cluster_token = s->cluster_token, .data = s };
        int r = api_new(&s->loop, API_WORKERS, &hooks, &s->api);
        if (r == 0)
                r = api_new(&s->loop, CLUSTER_WORKERS, &hooks, &s->cluster_api);
        if (r == 0)
                r = proxy_new(&s->loop, s->sandboxes, &s->proxy);
        if (r < 0)
                return error_errno(err, r, "start the API");
        api_health_routes(s->api);
        api_health_routes(s->cluster_api);
        api_admin_routes(s->cluster_api, s->records);
        api_admin_node_routes(s->cluster_api, &s->admin_node);
        api_admin_store_routes(s->cluster_api, &s->admin_store);
        api_templates_routes(s->api, s->templates);
        api_sandboxes_routes(s->api, &s->sandboxes_api);
        return 0;
}

static void handle_public(struct http_exchange *x, void *data)
{
        struct server *s = data;
        if (proxy_wants(http_exchange_request(x)))
                proxy_handle(s->proxy, x);
        else
                api_dispatch(s->api, x);
}

static void handle_cluster(struct http_exchange *x, void *data)
{
        struct server *s = data;
        api_dispatch(s->cluster_api, x);
}

/* The sockets are bound early, so that an address in use is told before anything is touched; nobody is answered until the
 * loop runs, when all parts are there. */
static int open_listeners(struct server *s, struct error *err)
{
        if (s->options.tls_cert) {
                int t = http_tls_context_new(s->options.tls_cert, s->options.tls_key, &s->tls, err);
                if (t < 0)
                        return t;
        }
        const struct http_server_options public = {
                .handler = handle_public, .data = s, .ssl_ctx = s->tls, .transport = s->tls ? &http_tls_transport : NULL
        };
        const struct http_server_options cluster = { .handler = handle_cluster, .data = s };
        const struct serve_address *a = &s->options.listen, *c = &s->options.cluster_listen;
        int r = http_server_new(&s->loop, a->host, a->port, &public, &s->listener, err);
        if (r < 0)
                return error_wrap(err, r, "--listen");
        r = http_server_new(&s->loop, c->host, c->port, &cluster, &s->cluster_listener, err);
        if (r < 0)
                return error_wrap(err, r, "--cluster-listen");
        bool v6 = strchr(a->host, ':') != NULL;
        s->public_url = s->options.public_url
                                ? xstrdup(s->options.public_url)
                                : xasprintf("%s://%s%s%s:%d", s->tls ? "https" : "http", v6 ? "[" : "", a->host, v6 ? "]" : "", http_server_port(s->listener));
        for (size_t n = strlen(s->public_url); n > 0 && s->public_url[n - 1] == '/'; n--)
                s->public_url[n - 1] = '\0';
        return 0;
}

static void stop_loop_when_closed(struct server *s)
{
        if (!s->listener && !s->cluster_listener)
                uv_stop(&s->loop);
}

static void listener_closed(void *data)
{
        struct server *s = data;
        s->listener = NULL;
        stop_loop_when_closed(s);
}

static void cluster_listener_closed(void *data)
{
        struct server *s = data;
        s->cluster_listener = NULL;
        stop_loop_when_closed(s);
}

static void close_listeners(struct server *s, void (*how)(struct http_server *, void (*)(void *), void *))
{
        if (s->listener)
                how(s->listener, listener_closed, s);
        if (s->cluster_listener)
                how(s->cluster_listener, cluster_listener_closed, s);
}

static void cut_short(struct server *s)
{
        log_info("closing the connections that are left");
        close_listeners(s, http_server_close);
}

static void grace_over(uv_timer_t *timer)
{
        cut_short(timer->data);
}

static void on_signal(uv_signal_t *handle, int number)
{
        struct server *s = handle->data;
        (void)number;
        if (s->stopping) {
                cut_short(s);
                return;
        }
        s->stopping = true;
        log_info("stopping: no new requests; sandboxes live on");
        service_notify("STOPPING=1");
        uv_timer_start(&s->grace, grace_over, STOP_GRACE_S * 1000, 0);
        close_listeners(s, http_server_stop);
}

static int open_loop(struct server *s, struct error *err)
{
        static const int numbers[] = { SIGTERM, SIGINT };
        int r = uv_loop_init(&s->loop);
        if (r < 0)
                return error_errno(err, r, "start the event loop");
        s->loop_made = true;
        for (size_t i = 0; i < 2; i++) {
                uv_signal_init(&s->loop, &s->signals[i]);
                s->signals[i].data = s;
                uv_signal_start(&s->signals[i], on_signal, numbers[i]);
        }
        uv_timer_init(&s->loop, &s->grace);
        s->grace.data = s;
        return 0;
}

static int open_all(struct server *s, struct error *err)
{
        int r = open_store(s, err);
        if (r == 0)
                r = open_loop(s, err);
        if (r == 0)
                r = open_listeners(s, err);
        if (r == 0)
                r = make_default_team(s, err);
        if (r == 0)
                r = prepare_kit(s, err);
        if (r == 0)
                r = open_sandboxes(s, err);
        if (r == 0)
                r = open_builds(s, err);
        if (r == 0)
                r = open_housekeeping(s, err);
        if (r == 0)
                r = open_api(s, err);
        return r;
}

static void run(struct server *s)
{
        const char *host = s->options.listen.host;
        bool v6 = strchr(host, ':') != NULL;
        warn_about_network(s);
        fprintf(stderr, "vmon: listening on %s://%s%s%s:%d\n", s->tls ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "", http_server_port(s->listener));
        int r = service_notify("READY=1");
        if (r < 0)
                log_warn("systemd could not be told that the server is ready: %s", strerror(-r));
        uv_run(&s->loop, UV_RUN_DEFAULT); /* until both listeners are closed */
}

/* A start that failed leaves listeners that never ran. */
static void close_unused_listeners(struct server *s)
{
        if (!s->listener && !s->cluster_listener)
                return;
        close_listeners(s, http_server_close);
        uv_run(&s->loop, UV_RUN_DEFAULT);
}

static void close_loop(struct server *s)
{
        if (!s->loop_made)
                return;
        for (size_t i = 0; i < 2; i++)
                uv_close((uv_handle_t *)&s->signals[i], NULL);
        uv_close((uv_handle_t *)&s->grace, NULL);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        if (uv_loop_close(&s->loop) < 0)
                log_debug("the event loop still had work");
}

static void close_all(struct server *s)
{
        close_unused_listeners(s);
        api_free(s->api);
        api_free(s->cluster_api);
        proxy_free(s->proxy);
        s->rate = request_rate_free(s->rate);
        housekeeping_free(s->housekeeping);
        build_queue_free(s->queue);
        template_service_free(s->templates);
        sandbox_manager_free(s->sandboxes);
        close_loop(s);
        http_tls_context_free(s->tls);
        records_close(s->records);
        store_close(s->store);
        explicit_bzero(s->root_secret, sizeof s->root_secret);
        if (s->cluster_token)
                explicit_bzero(s->cluster_token, strlen(s->cluster_token));
        free(s->cluster_token);
        free(s->public_url);
        if (s->lock_fd >= 0)
                close(s->lock_fd);
        serve_options_free(&s->options);
}

/* A machine's supervisor, its sockets and every connection take descriptors. */
static void raise_limits(void)
{
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_cur = files.rlim_max;
                setrlimit(RLIMIT_NOFILE, &files);
        }
}

int cmd_serve(int argc, char **argv)
{
        struct server s = { .lock_fd = -1, .backend_lock = PTHREAD_MUTEX_INITIALIZER };
        struct error err = {};
        int status = serve_options_parse(argc, argv, &s.options);
        if (status != 0)
                return status;
        log_setup(s.options.log_level, s.options.log_json);
        setenv("UV_THREADPOOL_SIZE", POOL_THREADS, 0);
        signal(SIGPIPE, SIG_IGN);
        umask(022);
        raise_limits();
        int r = open_all(&s, &err);
        if (r < 0)
                fprintf(stderr, "vmon serve: %s\n", err.message);
        else
                run(&s);
        close_all(&s);
        if (r == 0)
                log_info("stopped");
        return r < 0 ? 1 : 0;
}
