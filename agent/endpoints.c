/* Health, metrics, variables, init, and the table of all plain endpoints. */
#include "endpoints.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "cgroup.h"
#include "journal.h"
#include "procfs.h"
#include "protojson.h"
#include "state.h"
#include "web.h"

#define INIT_BODY_MAX (4 * 1024 * 1024)
#define MIB (1024 * 1024)
#define TELEMETRY_MAX (64 * 1024) /* of entries */

static void reply_no_store(struct http_exchange *x, int status, const char *content_type, const char *body)
{
        struct http_headers headers = web_headers(x);
        size_t len = strlen(body);

        http_headers_add(&headers, "Cache-Control", "no-store");
        if (content_type)
                http_headers_add(&headers, "Content-Type", content_type);
        http_exchange_start(x, status, &headers, (int64_t)len);
        if (len > 0)
                http_exchange_write(x, body, len);
        http_exchange_end(x);
        http_headers_free(&headers);
}

static void handle_health(struct http_exchange *x)
{
        web_accept_plain(x);
        reply_no_store(x, 204, NULL, "");
}

/* Whole-guest busy share since the call before, 0 to 100. */
static double cpu_percent(void)
{
        static uint64_t last_total, last_busy;
        uint64_t total, busy;
        double share = 0;

        procfs_cpu(&total, &busy);
        if (total > last_total && busy >= last_busy)
                share = 100.0 * (double)(busy - last_busy) / (double)(total - last_total);
        last_total = total;
        last_busy = busy;
        return share > 100 ? 100 : share;
}

static void add_metrics(struct buf *b)
{
        uint64_t total = procfs_meminfo("MemTotal"), available = procfs_meminfo("MemAvailable");
        uint64_t used = total > available ? total - available : 0;
        struct statvfs fs = {};

        statvfs("/", &fs);
        buf_addf(b, "{\"ts\":%lld,\"cpu_count\":%ld,\"cpu_used_pct\":%.2f,", (long long)time(NULL),
                 sysconf(_SC_NPROCESSORS_ONLN), cpu_percent());
        buf_addf(b, "\"mem_total_mib\":%llu,\"mem_used_mib\":%llu,\"mem_total\":%llu,\"mem_used\":%llu,\"mem_cache\":%llu,",
                 (unsigned long long)(total / MIB), (unsigned long long)(used / MIB), (unsigned long long)total,
                 (unsigned long long)used, (unsigned long long)procfs_meminfo("Cached"));
        buf_addf(b, "\"disk_used\":%llu,\"disk_total\":%llu}",
                 (unsigned long long)(fs.f_blocks - fs.f_bavail) * fs.f_frsize,
                 (unsigned long long)fs.f_blocks * fs.f_frsize);
}

static void handle_metrics(struct http_exchange *x)
{
        CLEANUP_BUF struct buf b = {};

        add_metrics(&b);
        web_accept_plain(x);
        reply_no_store(x, 200, "application/json", buf_str(&b));
}

/* For the host alone (docs/agent-protocol.md): the metrics and what is new in the journal. */
static void handle_telemetry(struct http_exchange *x)
{
        const char *query = http_exchange_request(x)->query;
        CLEANUP_FREE char *number = query_get(query, "after", NULL), *epoch = query_get(query, "epoch", NULL);
        CLEANUP_BUF struct buf b = {};
        uint64_t after = 0;

        if (number && !str_to_u64(number, UINT64_MAX, &after)) {
                web_refuse(x, 400, "after must be the number of an entry");
                return;
        }
        buf_adds(&b, "{\"metrics\":");
        add_metrics(&b);
        buf_addc(&b, ',');
        journal_read(epoch, after, TELEMETRY_MAX, &b);
        buf_addc(&b, '}');
        web_accept_plain(x);
        reply_no_store(x, 200, "application/json", buf_str(&b));
}

static void handle_envs(struct http_exchange *x)
{
        CLEANUP_JSON json_t *env = state_global_env();
        CLEANUP_FREE char *text = json_text(env);

        web_accept_plain(x);
        reply_no_store(x, 200, "application/json", text);
}

static void reply_init(struct http_exchange *x, int status, const char *text)
{
        struct http_headers headers = web_headers(x);

        http_headers_add(&headers, "X-Envd-Version", ENVD_VERSION);
        if (status == 204)
                http_headers_add(&headers, "Cache-Control", "no-store");
        if (*text)
                http_headers_add(&headers, "Content-Type", "text/plain; charset=utf-8");
        http_exchange_start(x, status, &headers, (int64_t)strlen(text));
        if (*text)
                http_exchange_write(x, text, strlen(text));
        http_exchange_end(x);
        http_headers_free(&headers);
}

/* Reads the members of POST /init that this agent knows. */
static int read_init(const json_t *body, struct state_update *u, struct error *err)
{
        const char *timestamp = NULL;
        json_t *env = NULL;
        int r = proto_string(body, "accessToken", &u->token, err);

        u->set_token = true;
        u->ordered = true;
        if (r >= 0)
                r = proto_string(body, "timestamp", &timestamp, err);
        if (r >= 0 && timestamp && !rfc3339_parse(timestamp, &u->time_ns))
                r = error_set(err, ERROR_INVALID, "timestamp is no RFC 3339 time");
        if (r >= 0)
                r = proto_string(body, "defaultUser", &u->default_user, err);
        if (r >= 0)
                r = proto_string(body, "defaultWorkdir", &u->default_workdir, err);
        if (r >= 0)
                r = proto_map(body, "envVars", &env, err);
        u->env = env;
        return r;
}

static void init_body(struct http_exchange *x, const char *data, size_t len)
{
        CLEANUP_JSON json_t *body = NULL;
        struct state_update u = {};
        struct error err;
        int r = len > 0 ? proto_parse(data, len, &body, &err) : 0;

        if (!body)
                body = json_object();
        if (r >= 0)
                r = read_init(body, &u, &err);
        if (r < 0 || (u.token && !*u.token)) {
                reply_init(x, 400, "");
                return;
        }
        if (!state_init_authorised(u.token)) {
                reply_init(x, 401, u.token ? "access token validation failed" : "access token reset not authorized");
                return;
        }
        if (state_apply(&u, &err) < 0) {
                reply_init(x, 400, err.message);
                return;
        }
        freezer_thaw();
        reply_init(x, 204, "");
}

static void handle_init(struct http_exchange *x)
{
        web_collect(x, INIT_BODY_MAX, init_body);
}

const struct endpoint endpoints[] = {
        { "GET", "/health", handle_health },
        { "GET", "/metrics", handle_metrics },
        { "GET", "/envs", handle_envs },
        { "GET", "/telemetry", handle_telemetry },
        { "POST", "/init", handle_init },
        { "GET", "/files", handle_download },
        { "POST", "/files", handle_upload },
        { "POST", "/files/compose", handle_compose },
        {},
};
