/* Options of `vmon serve`. An option that names a feature which this release does not have is refused at start, never
 * ignored: whoever gives --object-store would believe that builds are published.
 */
#include "cmd/options.h"

#include <arpa/inet.h>
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/limits.h"
#include "cmd/common.h"
#include "vm/vm.h"

#define CACHE_SHARE 10 /* per cent of the file system */
#define STEP_CACHE_MB_MAX (64ULL * 1024 * 1024)
#define POOL_DEFAULT 64
#define POOL_MAX 4096
#define POOL_SHARE 10 /* per cent of the memory */
#define HISTORY_BYTES (1024ULL << 20)
#define POOL_MB_MAX (64ULL * 1024 * 1024)

enum {
        OPT_DATA_DIR = 256, OPT_LISTEN, OPT_CLUSTER_LISTEN, OPT_PUBLIC_URL, OPT_DOMAIN, OPT_TLS_CERT, OPT_TLS_KEY, OPT_KIT_DIR, OPT_STORE,
        OPT_NODE_NAME, OPT_ADVERTISE, OPT_CLUSTER_TOKEN_FILE, OPT_OBJECT_STORE, OPT_REGISTRY_MIRROR, OPT_INSECURE_REGISTRY,
        OPT_MAX_BUILDS, OPT_BUILD_SECONDS, OPT_READY_SECONDS, OPT_STEP_CACHE_MB, OPT_IMAGE_CACHE_MB, OPT_HYPERVISOR, OPT_CPU_BASELINE, OPT_NETWORK, OPT_POOL, OPT_POOL_MB, OPT_HISTORY_MB, OPT_LOG_LEVEL, OPT_LOG_FORMAT,
};

static const struct argp_option options[] = {
        { "data-dir", OPT_DATA_DIR, "DIR", 0, "everything vmon keeps (default /var/lib/vmon as root)", 0 },
        { "listen", OPT_LISTEN, "ADDR:PORT", 0, "public API and sandbox traffic (default 127.0.0.1:3000)", 0 },
        { "cluster-listen", OPT_CLUSTER_LISTEN, "ADDR:PORT", 0, "vmon admin (default 127.0.0.1:7947)", 0 },
        { "public-url", OPT_PUBLIC_URL, "URL", 0, "what clients reach; upload links are made from it", 0 },
        { "domain", OPT_DOMAIN, "NAME", 0, "base domain of sandbox host names", 0 },
        { "tls-cert", OPT_TLS_CERT, "FILE", 0, "serve TLS with this certificate chain (PEM)", 0 },
        { "tls-key", OPT_TLS_KEY, "FILE", 0, "its private key (PEM)", 0 },
        { "kit-dir", OPT_KIT_DIR, "DIR", 0, "the guest kit (default DATA/kit)", 0 },
        { "store", OPT_STORE, "URL", 0, "where records are kept (default sqlite:DATA/vmon.db)", 0 },
        { "node-name", OPT_NODE_NAME, "NAME", 0, "name of this node (default: the host's)", 0 },
        { "advertise", OPT_ADVERTISE, "URL", 0, "how other nodes reach this one (not in this release)", 0 },
        { "cluster-token-file", OPT_CLUSTER_TOKEN_FILE, "FILE", 0, "default DATA/cluster-token", 0 },
        { "object-store", OPT_OBJECT_STORE, "URL", 0, "publish builds there (not in this release)", 0 },
        { "registry-mirror", OPT_REGISTRY_MIRROR, "URL", 0, "tried first for anonymous docker.io pulls", 0 },
        { "insecure-registry", OPT_INSECURE_REGISTRY, "HOST[:PORT]", 0, "spoken to in plain http; may be repeated", 0 },
        { "max-builds", OPT_MAX_BUILDS, "N", 0, "builds that run at once (default 2)", 0 },
        { "build-seconds", OPT_BUILD_SECONDS, "N", 0, "time that a build may take (default 3600)", 0 },
        { "ready-seconds", OPT_READY_SECONDS, "N", 0, "time that a template may take to become ready (default 600)", 0 },
        { "step-cache-mb", OPT_STEP_CACHE_MB, "N", 0, "disk for cached layers (default a tenth of the file system)", 0 },
        { "image-cache-mb", OPT_IMAGE_CACHE_MB, "N", 0, "disk for cached image layers (default a tenth of the file system)", 0 },
        { "hypervisor", OPT_HYPERVISOR, "auto|kvm|tcg", 0, "default auto: kvm where a probe boot works", 0 },
        { "cpu-baseline", OPT_CPU_BASELINE, "MODEL", 0, "named CPU model of guests", 0 },
        { "network", OPT_NETWORK, "nat|user", 0, "default nat as root, else user", 0 },
        { "pool", OPT_POOL, "N", 0, "sandboxes kept ready, at most (default 64; 0: none)", 0 },
        { "pool-mb", OPT_POOL_MB, "N", 0, "memory for them (default a tenth of the host's)", 0 },
        { "history-mb", OPT_HISTORY_MB, "N", 0, "disk for logs and metrics of sandboxes (default 1024)", 0 },
        { "log-level", OPT_LOG_LEVEL, "LEVEL", 0, "debug, info, warn or error (default info)", 0 },
        { "log-format", OPT_LOG_FORMAT, "text|json", 0, "default text", 0 },
        {},
};

bool serve_address_parse(const char *s, struct serve_address *ret)
{
        struct serve_address a = {};
        unsigned char binary[sizeof(struct in6_addr)];
        uint64_t port;
        const char *colon = strrchr(s, ':');
        if (!colon || !str_to_u64(colon + 1, 65535, &port))
                return false;
        bool bracketed = s[0] == '[' && colon - s >= 2 && colon[-1] == ']';
        const char *start = s + bracketed;
        size_t len = colon - start - bracketed;
        if (len == 0 || len >= sizeof a.host)
                return false;
        memcpy(a.host, start, len);
        if (inet_pton(bracketed ? AF_INET6 : AF_INET, a.host, binary) != 1)
                return false;
        a.port = (int)port;
        *ret = a;
        return true;
}

static void set(char **field, const char *value)
{
        free(*field);
        *field = xstrdup(value);
}

/* Registries may also come as one comma-separated list: an environment variable cannot be repeated. */
static void add_registries(struct serve_options *o, char *list)
{
        size_t n = 0;
        char *save = NULL;
        while (o->insecure_registries && o->insecure_registries[n])
                n++;
        for (char *r = strtok_r(list, ", ", &save); r; r = strtok_r(NULL, ", ", &save)) {
                o->insecure_registries = xreallocarray(o->insecure_registries, n + 2, sizeof *o->insecure_registries);
                o->insecure_registries[n++] = xstrdup(r);
                o->insecure_registries[n] = NULL;
        }
}

static uint64_t number(struct argp_state *state, const char *name, const char *arg, uint64_t min, uint64_t max)
{
        uint64_t v = 0;
        if (!str_to_u64(arg, max, &v) || v < min)
                argp_error(state, "--%s must be a number from %llu to %llu, not '%s'", name, (unsigned long long)min, (unsigned long long)max, arg);
        return v;
}

static void address(struct argp_state *state, const char *name, const char *arg, struct serve_address *ret)
{
        if (!serve_address_parse(arg, ret))
                argp_error(state, "--%s must be a numeric address with a port, such as 127.0.0.1:3000 or [::1]:3000, not '%s'", name, arg);
}

static const char *one_of(struct argp_state *state, const char *name, const char *arg, const char *const *words)
{
        for (size_t i = 0; words[i]; i++)
                if (streq(arg, words[i]))
                        return words[i];
        argp_error(state, "--%s does not know '%s' (see --help)", name, arg);
        return words[0];
}

static void not_here(struct argp_state *state, const char *name, const char *mend)
{
        argp_error(state, "--%s names a feature that this release does not have yet: %s", name, mend);
}

static int parse_network(struct argp_state *state, const char *arg)
{
        static const char *const words[] = { "nat", "user", NULL };
        return streq(one_of(state, "network", arg, words), "nat") ? VM_NETWORK_NAT : VM_NETWORK_USER;
}

static void parse_log(int key, struct argp_state *state, const char *arg, struct serve_options *o)
{
        static const char *const formats[] = { "text", "json", NULL };
        if (key == OPT_LOG_FORMAT)
                o->log_json = streq(one_of(state, "log-format", arg, formats), "json");
        else if (!log_level_parse(arg, &o->log_level))
                argp_error(state, "--log-level must be debug, info, warn or error, not '%s'", arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
        static const char *const hypervisors[] = { "auto", "kvm", "tcg", NULL };
        struct serve_options *o = state->input;
        switch (key) {
        case OPT_DATA_DIR: set(&o->data_dir, arg); return 0;
        case OPT_LISTEN: address(state, "listen", arg, &o->listen); return 0;
        case OPT_CLUSTER_LISTEN: address(state, "cluster-listen", arg, &o->cluster_listen); return 0;
        case OPT_PUBLIC_URL:
                if (!str_starts(arg, "http://") && !str_starts(arg, "https://"))
                        argp_error(state, "--public-url must begin with http:// or https://, not '%s'", arg);
                set(&o->public_url, arg);
                return 0;
        case OPT_DOMAIN: set(&o->domain, arg); return 0;
        case OPT_TLS_CERT: set(&o->tls_cert, arg); return 0;
        case OPT_TLS_KEY: set(&o->tls_key, arg); return 0;
        case OPT_KIT_DIR: set(&o->kit_dir, arg); return 0;
        case OPT_STORE:
                if (!str_starts(arg, "sqlite:"))
                        not_here(state, "store", "use sqlite:PATH");
                set(&o->store_url, arg);
                return 0;
        case OPT_NODE_NAME: set(&o->node_name, arg); return 0;
        case OPT_ADVERTISE: not_here(state, "advertise", "this node serves alone"); return 0;
        case OPT_CLUSTER_TOKEN_FILE: set(&o->cluster_token_file, arg); return 0;
        case OPT_OBJECT_STORE: not_here(state, "object-store", "builds stay in the data directory"); return 0;
        case OPT_REGISTRY_MIRROR: set(&o->registry_mirror, arg); return 0;
        case OPT_INSECURE_REGISTRY: add_registries(o, arg); return 0;
        case OPT_MAX_BUILDS: o->max_builds = (unsigned)number(state, "max-builds", arg, 1, MAX_BUILDS_MAX); return 0;
        case OPT_BUILD_SECONDS: o->build_seconds = (unsigned)number(state, "build-seconds", arg, 1, BUILD_SECONDS_LIMIT); return 0;
        case OPT_READY_SECONDS: o->ready_seconds = (unsigned)number(state, "ready-seconds", arg, 1, BUILD_SECONDS_LIMIT); return 0;
        case OPT_STEP_CACHE_MB: o->step_cache_bytes = number(state, "step-cache-mb", arg, 1, STEP_CACHE_MB_MAX) << 20; return 0;
        case OPT_IMAGE_CACHE_MB: o->image_cache_bytes = number(state, "image-cache-mb", arg, 1, STEP_CACHE_MB_MAX) << 20; return 0;
        case OPT_HYPERVISOR: o->hypervisor = one_of(state, "hypervisor", arg, hypervisors); return 0;
        case OPT_CPU_BASELINE: set(&o->cpu_baseline, arg); return 0;
        case OPT_NETWORK: o->network = parse_network(state, arg); return 0;
        case OPT_POOL: o->pool = (unsigned)number(state, "pool", arg, 0, POOL_MAX); return 0;
        case OPT_POOL_MB: o->pool_bytes = number(state, "pool-mb", arg, 1, POOL_MB_MAX) << 20; return 0;
        case OPT_HISTORY_MB: o->history_bytes = number(state, "history-mb", arg, 1, STEP_CACHE_MB_MAX) << 20; return 0;
        case OPT_LOG_LEVEL:
        case OPT_LOG_FORMAT: parse_log(key, state, arg, o); return 0;
        case ARGP_KEY_ARG: argp_error(state, "'%s' is not an option", arg); return 0;
        case ARGP_KEY_END:
                if (!o->tls_cert != !o->tls_key)
                        argp_error(state, "--tls-cert and --tls-key belong together: give both, or neither");
                return 0;
        default: return ARGP_ERR_UNKNOWN;
        }
}

/* What follows from the data directory and the machine. */
static void fill_defaults(struct serve_options *o)
{
        char host[256] = "node";
        if (!o->data_dir)
                o->data_dir = cmd_default_data_dir();
        if (!o->kit_dir)
                o->kit_dir = path_join(o->data_dir, "kit");
        if (!o->store_url)
                o->store_url = xasprintf("sqlite:%s/vmon.db", o->data_dir);
        if (!o->cluster_token_file)
                o->cluster_token_file = path_join(o->data_dir, "cluster-token");
        if (!o->node_name) {
                gethostname(host, sizeof host - 1);
                o->node_name = xstrdup(host);
        }
        if (!o->insecure_registries)
                o->insecure_registries = xcalloc(1, sizeof *o->insecure_registries);
}

/* Paths are handed to other processes, which may have another working directory. */
static void make_absolute(char **path)
{
        CLEANUP_FREE char *cwd = NULL;
        if ((*path)[0] == '/' || !(cwd = getcwd(NULL, 0)))
                return;
        char *absolute = path_join(cwd, *path);
        free(*path);
        *path = absolute;
}

/* A cache's default. The directory may not be there yet; its file system's size is then taken from "/". */
static uint64_t share_of_disk(const char *data_dir)
{
        struct statvfs s;
        if (statvfs(data_dir, &s) < 0 && statvfs("/", &s) < 0)
                return 0;
        return (uint64_t)s.f_blocks * s.f_frsize / 100 * CACHE_SHARE;
}

static uint64_t share_of_memory(void)
{
        long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
        return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size / 100 * POOL_SHARE : 0;
}

int serve_options_parse(int argc, char **argv, struct serve_options *ret)
{
        const struct argp argp = { options, parse, NULL, "The vmon server: public API, builds and sandboxes of this node.", NULL, NULL, NULL };
        struct serve_options o = {
                .listen = { "127.0.0.1", 3000 },
                .cluster_listen = { "127.0.0.1", 7947 },
                .max_builds = 2,
                .pool = POOL_DEFAULT,
                .history_bytes = HISTORY_BYTES,
                .build_seconds = BUILD_MAX_SECONDS,
                .ready_seconds = BUILD_READY_SECONDS,
                .hypervisor = "auto",
                .network = geteuid() == 0 ? VM_NETWORK_NAT : VM_NETWORK_USER,
                .log_level = LOG_LEVEL_INFO,
        };
        if (cmd_parse(&argp, argc, argv, &o) != 0) {
                serve_options_free(&o);
                return 2;
        }
        fill_defaults(&o);
        make_absolute(&o.data_dir);
        make_absolute(&o.kit_dir);
        if (o.step_cache_bytes == 0)
                o.step_cache_bytes = share_of_disk(o.data_dir);
        if (o.image_cache_bytes == 0)
                o.image_cache_bytes = share_of_disk(o.data_dir);
        if (o.pool_bytes == 0)
                o.pool_bytes = share_of_memory();
        *ret = o;
        return 0;
}

void serve_options_free(struct serve_options *o)
{
        for (size_t i = 0; o->insecure_registries && o->insecure_registries[i]; i++)
                free(o->insecure_registries[i]);
        free(o->insecure_registries);
        free(o->data_dir);
        free(o->public_url);
        free(o->domain);
        free(o->tls_cert);
        free(o->tls_key);
        free(o->kit_dir);
        free(o->store_url);
        free(o->node_name);
        free(o->cluster_token_file);
        free(o->registry_mirror);
        free(o->cpu_baseline);
        *o = (struct serve_options){};
}
