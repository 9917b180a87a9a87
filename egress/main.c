/* Start, confinement and end; egress.h has the whole story. */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "egress.h"
#include "vm/fdpass.h"
#include "vm/net.h"
#include "vm/net_domain.h"

#define CONFIG_TIMEOUT_MS 10000
#define BACKLOG 128
/* Two a connection, and the loop's, the resolver's and the standard ones. */
#define NOFILE_MAX (2 * EGRESS_CONNECTIONS_MAX + 64)

static uv_tcp_t listener;
static uv_pipe_t control;
static const char **domains;
static bool draining;

static _Noreturn void fail(const char *what)
{
        fprintf(stderr, "vmon-egress: %s\n", what);
        exit(1);
}

/* No file may be written, no process started, nothing regained; the network is the guest's namespace. */
static void confine(uid_t uid, pid_t parent)
{
        const struct {
                int what;
                rlim_t value;
        } limits[] = {{RLIMIT_CORE, 0}, {RLIMIT_FSIZE, 0}, {RLIMIT_NPROC, 0}, {RLIMIT_NOFILE, NOFILE_MAX}, {RLIMIT_MEMLOCK, 0}, {RLIMIT_MSGQUEUE, 0}};

        for (size_t i = 0; i < sizeof(limits) / sizeof(*limits); i++) {
                struct rlimit l = {limits[i].value, limits[i].value};

                if (setrlimit((__rlimit_resource_t)limits[i].what, &l) < 0)
                        fail("set limits");
        }
        if (uid == 0 || setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
                fail("become a user who may nothing");
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                fail("prctl");
        if (getppid() != parent)
                exit(0);
}

static void read_domains(const json_t *list)
{
        char pattern[NET_DOMAIN_MAX];
        size_t count = 0, i;
        const json_t *one;

        domains = xcalloc(json_array_size(list) + 1, sizeof(*domains));
        json_array_foreach(list, i, one)
                if (json_is_string(one) && net_parse_domain(json_string_value(one), pattern))
                        domains[count++] = xstrdup(pattern);
}

static void none_left(void)
{
        if (draining)
                exit(0);
}

static void on_connection(uv_stream_t *stream, int status)
{
        if (status >= 0)
                connection_accept(stream, domains);
}

static void give_byte(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
        static char byte;

        (void)handle;
        (void)suggested;
        *buf = uv_buf_init(&byte, 1);
}

static void on_control(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        (void)stream;
        (void)buf;
        if (n >= 0 || draining)
                return;
        draining = true;
        uv_read_stop(stream);
        uv_close((uv_handle_t *)&listener, NULL);
        if (connection_count() == 0)
                exit(0);
}

int main(void)
{
        uv_loop_t *loop = uv_default_loop();
        CLEANUP_BUF struct buf line = {};
        CLEANUP_JSON json_t *config = NULL;
        struct error err = {};
        pid_t parent = getppid();
        char resolver[NET_ADDRESS_MAX];

        signal(SIGPIPE, SIG_IGN);
        if (line_receive(EGRESS_FD_CONTROL, &line, CONFIG_TIMEOUT_MS, &config, NULL) < 0)
                fail("started by hand? It is run by vmon-shim, with its configuration on a descriptor");
        confine((uid_t)json_int(config, "uid", 0), parent);
        read_domains(json_object_get(config, "domains"));
        snprintf(resolver, sizeof(resolver), "%s", json_str(config, "resolver") ?: "");
        if (resolver_open(loop, resolver, &err) < 0)
                fail(err.message);
        connection_none_left = none_left;
        uv_tcp_init(loop, &listener);
        uv_pipe_init(loop, &control, 0);
        if (uv_tcp_open(&listener, EGRESS_FD_LISTENER) < 0 || uv_listen((uv_stream_t *)&listener, BACKLOG, on_connection) < 0 ||
            uv_pipe_open(&control, EGRESS_FD_CONTROL) < 0 || uv_read_start((uv_stream_t *)&control, give_byte, on_control) < 0)
                fail("listen");
        uv_run(loop, UV_RUN_DEFAULT);
        return 0;
}
