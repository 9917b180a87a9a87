/* vmon admin: a thin client of the driver's cluster listener (src/api/admin.h). Each command is one or two requests; listings are
 * tables, or what the driver said with --json. A new key goes to stdout alone, so that KEY=$(vmon admin create-key TEAM) works.
 */
#include <argp.h>
#include <curl/curl.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "cmd/admin.h"
#include "cmd/commands.h"
#include "cmd/common.h"
#include "http/message.h"

#define TOKEN_MAX 4096
#define ANSWER_MAX (64 << 20)
#define TIMEOUT_SECONDS 600L /* a backup may take minutes */
#define EXIT_USAGE 2

enum { OPT_URL = 0x100, OPT_TOKEN_FILE, OPT_DATA_DIR, OPT_JSON, OPT_SLUG, OPT_SYSTEM, OPT_REASON, OPT_DRY_RUN, OPT_TIMEOUT, OPT_COUNT, OPT_LIMIT };

static const char *const limit_keys[] = { "max_vcpus", "max_memory_mb", "max_disk_mb", "max_concurrent_builds", "max_sandboxes",
                                          "max_sandbox_hours", "max_context_mb", "max_contexts_mb", "max_log_mb", "max_requests_per_second" };
#define LIMITS (int)(sizeof(limit_keys) / sizeof(*limit_keys))

static const struct argp_option options[] = {
        { "cluster-url", OPT_URL, "URL", 0, "the driver's cluster listener (http://127.0.0.1:7947)", 1 },
        { "cluster-token-file", OPT_TOKEN_FILE, "FILE", 0, "its token (DATA/cluster-token; or VMON_CLUSTER_TOKEN)", 1 },
        { "data-dir", OPT_DATA_DIR, "DIR", 0, "where cluster-token is looked for", 1 },
        { "json", OPT_JSON, 0, 0, "print JSON", 1 },
        { "slug", OPT_SLUG, "SLUG", 0, "create-team: its namespace; made from the name by default", 2 },
        { "system", OPT_SYSTEM, 0, 0, "create-team: a system team", 2 },
        { "reason", OPT_REASON, "TEXT", 0, "block-team: what its users are told", 2 },
        { "dry-run", OPT_DRY_RUN, 0, 0, "gc: only tell what would be removed; restore: only check", 2 },
        { "timeout", OPT_TIMEOUT, "SECONDS", 0, "drain: give up waiting then (default: never)", 2 },
        { "limit", OPT_COUNT, "N", 0, "audit: so many of the newest entries (100)", 2 },
        { "max-vcpus", OPT_LIMIT + 0, "N", 0, "create-team, set-limits: limits of the team", 3 },
        { "max-memory-mb", OPT_LIMIT + 1, "N", 0, 0, 3 },
        { "max-disk-mb", OPT_LIMIT + 2, "N", 0, 0, 3 },
        { "max-concurrent-builds", OPT_LIMIT + 3, "N", 0, 0, 3 },
        { "max-sandboxes", OPT_LIMIT + 4, "N", 0, 0, 3 },
        { "max-sandbox-hours", OPT_LIMIT + 5, "N", 0, 0, 3 },
        { "max-context-mb", OPT_LIMIT + 6, "N", 0, 0, 3 },
        { "max-contexts-mb", OPT_LIMIT + 7, "N", 0, 0, 3 },
        { "max-log-mb", OPT_LIMIT + 8, "N", 0, 0, 3 },
        { "max-requests-per-second", OPT_LIMIT + 9, "N", 0, 0, 3 },
        {},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
        struct admin *a = state->input;
        uint64_t number;

        if (key >= OPT_LIMIT && key < OPT_LIMIT + LIMITS) {
                if (!str_to_u64(arg, INT32_MAX, &number))
                        argp_error(state, "'%s' is not a number", arg);
                json_object_set_new(a->body, limit_keys[key - OPT_LIMIT], json_integer((json_int_t)number));
                return 0;
        }
        switch (key) {
        case OPT_URL:
                a->url = arg;
                return 0;
        case OPT_TOKEN_FILE:
                a->token_file = arg;
                return 0;
        case OPT_DATA_DIR:
                a->data_dir = arg;
                return 0;
        case OPT_JSON:
                a->json = true;
                return 0;
        case OPT_SLUG:
                return json_object_set_new(a->body, "slug", json_string(arg));
        case OPT_SYSTEM:
                return json_object_set_new(a->body, "system", json_true());
        case OPT_REASON:
                return json_object_set_new(a->body, "blocked_reason", json_string(arg));
        case OPT_TIMEOUT:
                if (!str_to_u64(arg, INT32_MAX, &number))
                        argp_error(state, "'%s' is not a number", arg);
                a->timeout_s = (unsigned)number;
                return 0;
        case OPT_COUNT:
                if (!str_to_u64(arg, INT32_MAX, &number))
                        argp_error(state, "'%s' is not a number", arg);
                return json_object_set_new(a->body, "limit", json_integer((json_int_t)number));
        case OPT_DRY_RUN:
                a->dry_run = true;
                return json_object_set_new(a->body, "dryRun", json_true());
        case ARGP_KEY_ARG:
                if (a->word_count == 3)
                        argp_error(state, "too many arguments");
                a->words[a->word_count++] = arg;
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

/* Talking to the driver */

static size_t take_answer(char *data, size_t size, size_t count, void *userdata)
{
        struct buf *b = userdata;

        if (b->len + size * count > ANSWER_MAX)
                return 0;
        buf_add(b, data, size * count);
        return size * count;
}

char *admin_data_dir(const struct admin *a)
{
        return a->data_dir ? xstrdup(a->data_dir) : cmd_default_data_dir();
}

static int load_token(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *dir = admin_data_dir(a);
        CLEANUP_FREE char *path = a->token_file ? xstrdup(a->token_file) : path_join(dir, "cluster-token");
        CLEANUP_BUF struct buf b = {};
        const char *token = getenv("VMON_CLUSTER_TOKEN");
        int r;

        if (token && *token) {
                a->token = xstrdup(token);
                return 0;
        }
        r = file_read(path, TOKEN_MAX, &b, err);
        if (r < 0)
                return error_wrap(err, r, "read the cluster token (give --data-dir or --cluster-token-file)");
        a->token = xstrdup(str_trim(b.data ? b.data : (char *)""));
        return 0;
}

/* The answer's body as JSON (NULL when empty), or with `text` as one string. A status of 400 and above becomes an error with the driver's message. */
static int take_result(long status, const struct buf *b, bool text, json_t **ret, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        const char *message;

        if (text && status < 400) {
                *ret = json_stringn(b->data ? b->data : "", b->len);
                return 0;
        }
        if (b->len > 0 && json_parse(b->data, b->len, &j, err) < 0)
                return error_set(err, ERROR_UNAVAILABLE, "the driver's answer is no JSON: is this its cluster listener?");
        message = json_is_object(j) ? json_str(j, "message") : NULL;
        if (status == 401)
                return error_set(err, ERROR_UNAUTHORISED, "the driver refuses the cluster token; give the right one by --data-dir, "
                                                          "--cluster-token-file or VMON_CLUSTER_TOKEN");
        if (status >= 400)
                return error_set(err, status == 404 ? ERROR_NOT_FOUND : ERROR_INVALID, "%s", message ? message : http_status_text((int)status));
        *ret = STEAL(j);
        return 0;
}

/* For the audit log. */
static const char *user_name(void)
{
        const struct passwd *p = getpwuid(getuid());

        return p ? p->pw_name : "unknown";
}

int admin_call(struct admin *a, const char *method, const char *path, const json_t *body, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *url = xasprintf("%s%s", a->url, path), *text = body ? json_text(body) : NULL;
        CLEANUP_FREE char *authorization = xasprintf("Authorization: Bearer %s", a->token);
        CLEANUP_FREE char *actor = xasprintf("X-Vmon-Actor: %s", user_name());
        CLEANUP_BUF struct buf answer = {};
        struct curl_slist *headers = curl_slist_append(NULL, authorization);
        CURL *c = curl_easy_init();
        long status = 0;
        CURLcode code;

        headers = curl_slist_append(headers, "Content-Type: application/json");
        headers = curl_slist_append(headers, actor);
        curl_easy_setopt(c, CURLOPT_URL, url);
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
        curl_easy_setopt(c, CURLOPT_TIMEOUT, TIMEOUT_SECONDS);
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_answer);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, &answer);
        if (text)
                curl_easy_setopt(c, CURLOPT_POSTFIELDS, text);
        code = curl_easy_perform(c);
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
        curl_slist_free_all(headers);
        curl_easy_cleanup(c);
        if (code != CURLE_OK)
                return error_set(err, ERROR_UNAVAILABLE, "reach the driver at %s: %s; is 'vmon serve' running, or is --cluster-url wrong?",
                                 a->url, curl_easy_strerror(code));
        return take_result(status, &answer, a->text, ret, err);
}

static char *team_path(const struct admin *a, const char *rest)
{
        CLEANUP_FREE char *team = url_encode(a->words[1], false);

        return xasprintf("/cluster/teams/%s%s", team, rest);
}

/* Printing */

void admin_print_json(const json_t *j)
{
        json_dumpf(j, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
        putchar('\n');
}

/* One line a row; `columns` is NULL-terminated. */
static void print_table(const json_t *rows, const char *const *columns)
{
        json_t *row;
        size_t i;

        for (size_t c = 0; columns[c]; c++)
                printf("%s%s", c ? "\t" : "", columns[c]);
        putchar('\n');
        json_array_foreach(rows, i, row) {
                for (size_t c = 0; columns[c]; c++) {
                        const json_t *v = json_object_get(row, columns[c]);
                        CLEANUP_FREE char *text = json_is_string(v) ? xstrdup(json_string_value(v)) : v ? json_text(v) : xstrdup("-");

                        printf("%s%s", c ? "\t" : "", text);
                }
                putchar('\n');
        }
}

int admin_list(struct admin *a, const char *path, const char *const *columns, struct error *err)
{
        CLEANUP_JSON json_t *rows = NULL;
        int r = admin_call(a, "GET", path, NULL, &rows, err);

        if (r < 0)
                return r;
        if (a->json)
                admin_print_json(rows);
        else
                print_table(rows, columns);
        return 0;
}

/* Commands */

static int create_team(struct admin *a, struct error *err)
{
        CLEANUP_JSON json_t *team = NULL;
        int r;

        json_object_set_new(a->body, "name", json_string(a->words[1]));
        r = admin_call(a, "POST", "/cluster/teams", a->body, &team, err);
        if (r < 0)
                return r;
        if (a->json)
                admin_print_json(team);
        else
                printf("created team %s (%s)\n", json_str(team, "slug"), json_str(team, "id"));
        return 0;
}

static int change_team(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *path = team_path(a, "");
        CLEANUP_JSON json_t *team = NULL;
        int r = admin_call(a, "PATCH", path, a->body, &team, err);

        if (r == 0 && a->json)
                admin_print_json(team);
        return r;
}

static int set_system(struct admin *a, struct error *err)
{
        json_object_set_new(a->body, "system", json_boolean(streq(a->words[0], "set-system")));
        return change_team(a, err);
}

static int block_team(struct admin *a, struct error *err)
{
        json_object_set_new(a->body, "blocked", json_boolean(streq(a->words[0], "block-team")));
        return change_team(a, err);
}

static int set_limits(struct admin *a, struct error *err)
{
        if (json_object_size(a->body) == 0)
                return error_set(err, ERROR_INVALID, "give at least one limit, such as --max-vcpus 4");
        return change_team(a, err);
}

static int delete_team(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *path = team_path(a, "");
        CLEANUP_JSON json_t *none = NULL;

        return admin_call(a, "DELETE", path, NULL, &none, err);
}

static int list_teams(struct admin *a, struct error *err)
{
        static const char *const columns[] = { "slug", "name", "id", "system", "blocked", "max_vcpus", "max_memory_mb", "max_disk_mb",
                                               "max_concurrent_builds", "max_sandboxes", "max_sandbox_hours", "max_context_mb",
                                               "max_contexts_mb", "max_log_mb", "max_requests_per_second", NULL };

        return admin_list(a, "/cluster/teams", columns, err);
}

static int create_key(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *path = team_path(a, "/keys");
        CLEANUP_JSON json_t *key = NULL;
        int r = admin_call(a, "POST", path, NULL, &key, err);

        if (r < 0)
                return r;
        if (a->json)
                admin_print_json(key);
        else
                puts(json_str(key, "key"));
        return 0;
}

static int revoke_key(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *id = url_encode(a->words[1], false), *path = xasprintf("/cluster/keys/%s", id);
        CLEANUP_JSON json_t *none = NULL;

        return admin_call(a, "DELETE", path, NULL, &none, err);
}

static int list_keys(struct admin *a, struct error *err)
{
        static const char *const columns[] = { "id", "hint", "createdAt", NULL };
        CLEANUP_FREE char *path = team_path(a, "/keys");

        return admin_list(a, path, columns, err);
}

static int list_builds(struct admin *a, struct error *err)
{
        static const char *const columns[] = { "buildID", "templateID", "status", "createdAt", "tags", "node", NULL };

        return admin_list(a, "/cluster/builds", columns, err);
}

static int list_nodes(struct admin *a, struct error *err)
{
        static const char *const columns[] = { "name", "status", "backend", "kit", "sandboxes", "builds", "diskFreeMB", "version", "reason", NULL };

        return admin_list(a, "/cluster/nodes", columns, err);
}

static int list_sandboxes(struct admin *a, struct error *err)
{
        static const char *const columns[] = { "sandboxID", "state", "templateID", "alias", "buildID", "team", "cpuCount", "memoryMB", "startedAt", "endAt", NULL };

        return admin_list(a, "/cluster/sandboxes", columns, err);
}

static int kill_sandbox(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *id = url_encode(a->words[1], false), *path = xasprintf("/cluster/sandboxes/%s", id);
        CLEANUP_JSON json_t *none = NULL;

        return admin_call(a, "DELETE", path, NULL, &none, err);
}

/* Bytes of a guest: what could steer a terminal is left out. */
static void print_console(const char *text)
{
        for (const char *p = text; *p; p++)
                if ((unsigned char)*p >= ' ' || *p == '\n' || *p == '\t')
                        putchar(*p);
}

static int show_console(struct admin *a, struct error *err)
{
        CLEANUP_FREE char *id = url_encode(a->words[1], false), *path = xasprintf("/cluster/vms/%s/console", id);
        CLEANUP_JSON json_t *text = NULL;
        int r;

        a->text = true;
        r = admin_call(a, "GET", path, NULL, &text, err);
        if (r == 0 && json_is_string(text))
                print_console(json_string_value(text));
        return r;
}

static int collect_garbage(struct admin *a, struct error *err)
{
        static const char *const columns[] = { "kind", "name", "bytes", "reason", NULL };
        CLEANUP_JSON json_t *result = NULL;
        int r = admin_call(a, "POST", "/cluster/gc", a->body, &result, err);

        if (r < 0)
                return r;
        if (a->json) {
                admin_print_json(result);
                return 0;
        }
        print_table(json_object_get(result, "items"), columns);
        printf("%s %zu items, %lld MB\n", json_bool(result, "dryRun", false) ? "would remove" : "removed",
               json_array_size(json_object_get(result, "items")), (long long)json_int(result, "bytes", 0) >> 20);
        return 0;
}

static const struct {
        const char *name;
        int arguments;
        int (*run)(struct admin *a, struct error *err);
} commands[] = {
        { "create-team", 1, create_team }, { "set-system", 1, set_system },    { "unset-system", 1, set_system },
        { "set-limits", 1, set_limits },   { "block-team", 1, block_team },    { "unblock-team", 1, block_team },
        { "delete-team", 1, delete_team }, { "list-teams", 0, list_teams },    { "create-key", 1, create_key },
        { "revoke-key", 1, revoke_key },   { "list-keys", 1, list_keys },      { "list-builds", 0, list_builds },
        { "list-nodes", 0, list_nodes },   { "list-sandboxes", 0, list_sandboxes }, { "kill-sandbox", 1, kill_sandbox },
        { "console", 1, show_console },    { "gc", 0, collect_garbage },       { "cordon", 1, admin_cordon },
        { "uncordon", 1, admin_cordon },   { "drain", 1, admin_drain },        { "backup", 1, admin_backup },
        { "audit", 0, admin_audit },       { "restore", 1, admin_restore },
};

static const char doc[] = "Teams, keys, limits, sandboxes and housekeeping of a running driver.\v"
                          "Commands:\n"
                          "  create-team NAME [--slug S] [--system] [limits]\n"
                          "  set-system TEAM, unset-system TEAM\n"
                          "  set-limits TEAM [limits]\n"
                          "  block-team TEAM [--reason TEXT], unblock-team TEAM, delete-team TEAM\n"
                          "  list-teams\n"
                          "  create-key TEAM (prints the key), revoke-key ID, list-keys TEAM\n"
                          "  list-builds, list-nodes, list-sandboxes\n"
                          "  kill-sandbox ID\n"
                          "  console ID (the last output of a sandbox's, or a running build's, console)\n"
                          "  gc [--dry-run] (removes the artifacts that nothing uses now, instead of within a minute)\n"
                          "  cordon NODE, uncordon NODE (it takes no new builds and sandboxes)\n"
                          "  drain NODE [--timeout SECONDS] (cordons it and waits until nothing runs there)\n"
                          "  backup FILE (the driver's records, to a new file on its host)\n"
                          "  restore FILE [--dry-run] (without a server: into a data directory that has no records)\n"
                          "  audit [--limit N] (who changed what)\n"
                          "TEAM is a slug or an ID.";

static int run(struct admin *a)
{
        struct error err = {};

        for (size_t i = 0; a->word_count > 0 && i < sizeof(commands) / sizeof(*commands); i++) {
                if (!streq(a->words[0], commands[i].name))
                        continue;
                if (a->word_count - 1 != commands[i].arguments)
                        break;
                if ((streq(a->words[0], "restore") || load_token(a, &err) == 0) && commands[i].run(a, &err) == 0)
                        return 0;
                fprintf(stderr, "vmon admin %s: %s\n", a->words[0], err.message);
                return 1;
        }
        fputs("vmon admin: unknown command or wrong number of arguments; 'vmon admin --help' lists the commands\n", stderr);
        return EXIT_USAGE;
}

int cmd_admin(int argc, char **argv)
{
        const struct argp argp = { options, parse_option, "COMMAND [TEAM|ID|NODE|FILE]", doc };
        CLEANUP_JSON json_t *body = json_object();
        struct admin a = { .url = "http://127.0.0.1:7947", .body = body };
        int r;

        if (cmd_parse(&argp, argc, argv, &a) != 0)
                return EXIT_USAGE;
        curl_global_init(CURL_GLOBAL_DEFAULT);
        r = run(&a);
        if (a.token)
                explicit_bzero(a.token, strlen(a.token));
        free(a.token);
        curl_global_cleanup();
        return r;
}
