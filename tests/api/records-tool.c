/* Takes the place of a builder in tests of the API that start no VM: it opens the store of a running `vmon serve` as another
 * driver of a cluster would, and reports through the same functions (store/records.h) what a build does.
 *
 *   records-tool DATA_DIR     one JSON object a line on stdin, one on stdout for each
 *
 *   {"op": "start", "build": ID}                                 waiting -> building
 *   {"op": "ready", "build": ID}                                 building -> ready; the tags move
 *   {"op": "fail", "build": ID, "reason": TEXT, "step": TEXT}    -> error
 *   {"op": "log", "build": ID, "entries": [{"time_ms", "level", "step", "message"}]}
 *
 * An answer is {} or {"error": TEXT}.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/records.h"


static int open_records(const char *dir, struct store **ret_store, struct records **ret, struct error *err)
{
        CLEANUP_FREE char *url = xasprintf("sqlite:%s/vmon.db", dir), *path = xasprintf("%s/root-secret", dir);
        unsigned char root[SECRET_LEN];
        int r = secret_load(path, root, err);

        if (r >= 0)
                r = store_open(url, ret_store, err);
        if (r >= 0)
                r = records_open(*ret_store, ret, err);
        if (r >= 0)
                records_set_secret(*ret, root);
        return r;
}

static int op_ready(struct records *records, const char *build, struct error *err)
{
        struct build_record result = { .id = (char *)build,
                                       .envd_version = (char *)"0.5.20",
                                       .default_user = (char *)"user",
                                       .context_user = (char *)"user",
                                       .node = (char *)"test" };

        return records_build_ready(records, &result, err);
}

static int op_log(struct records *records, const char *build, const json_t *entries, struct error *err)
{
        size_t count = json_array_size(entries), i;
        struct log_entry *list = xcalloc(count + 1, sizeof(*list));
        const json_t *e;
        int r;

        json_array_foreach(entries, i, e)
                list[i] = (struct log_entry){ json_int(e, "time_ms", 1) * NSEC_PER_MSEC, (int)json_int(e, "level", 1),
                                              (char *)json_str(e, "step"), (char *)json_str(e, "message") };
        r = records_log_append(records, build, list, count, err);
        free(list);
        return r;
}

static int run(struct records *records, const json_t *j, struct error *err)
{
        const char *op = json_str(j, "op"), *build = json_str(j, "build");

        if (!op || !build)
                return error_set(err, ERROR_INVALID, "op and build are needed");
        if (streq(op, "start"))
                return records_build_start(records, build, err);
        if (streq(op, "ready"))
                return op_ready(records, build, err);
        if (streq(op, "fail"))
                return records_build_fail(records, build, json_str(j, "reason"), json_str(j, "step"), err);
        if (streq(op, "log"))
                return op_log(records, build, json_object_get(j, "entries"), err);
        return error_set(err, ERROR_INVALID, "unknown op %s", op);
}

static void answer(struct records *records, const char *line, size_t len)
{
        CLEANUP_JSON json_t *j = NULL, *out = json_object();
        CLEANUP_FREE char *text = NULL;
        struct error err = {};

        if (json_parse(line, len, &j, &err) < 0 || run(records, j, &err) < 0)
                json_object_set_new(out, "error", json_string(err.message));
        text = json_text(out);
        puts(text);
        fflush(stdout);
}

int main(int argc, char **argv)
{
        CLEANUP_FREE char *line = NULL;
        struct store *store = NULL;
        struct records *records = NULL;
        struct error err = {};
        size_t size = 0;
        ssize_t len;

        if (argc != 2 || open_records(argv[1], &store, &records, &err) < 0) {
                fprintf(stderr, "records-tool: %s\n", argc == 2 ? err.message : "one argument: the data directory");
                return 1;
        }
        while ((len = getline(&line, &size, stdin)) > 0)
                answer(records, line, (size_t)len);
        records_close(records);
        store_close(store);
        return 0;
}
