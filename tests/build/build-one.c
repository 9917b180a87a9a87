/* Runs one template build without the API: `build-one DATA-DIR KIT-DIR INSECURE-REGISTRY BODY.json [TEMPLATE-VERSION]`.
 * The body is a trigger request (template-api 4.5); uploaded contexts lie in DATA-DIR/files/team/. With fromTemplate the
 * name is a build ID of the same data directory. The log goes to standard output, the outcome as JSON to its last line;
 * the exit status is 0 for ready and 1 for a failed build.
 */
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "build/build.h"
#include "build/context.h"
#include "vm/kit.h"
#include "vm/vm.h"

static sem_t ended;
static bool ready;
static int64_t begin;
static const char *data_dir;

static void on_log(void *data, const char *build_id, int level, const char *step, const char *message)
{
        static const char *const names[] = {"debug", "info", "warn", "error"};

        (void)data;
        (void)build_id;
        printf("%7.2f %-5s %-8s %s\n", (double)(clock_monotonic_ns() - begin) / 1e9, names[level], step ? step : "-", message);
        fflush(stdout);
}

static void on_started(void *data, const char *build_id)
{
        (void)data;
        printf("started %s\n", build_id);
}

static json_t *text_or_null(const char *s)
{
        return s ? json_string(s) : json_null();
}

/* What a driver keeps in its store; here beside the artifacts, for children. */
static int on_ready(void *data, const struct build_job *job, const struct build_outcome *o, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("%s/builds/%s/outcome.json", data_dir, job->build_id), *text = NULL;
        CLEANUP_JSON json_t *j = json_object();

        (void)data;
        json_object_set_new(j, "buildID", json_string(job->build_id));
        json_object_set_new(j, "context", build_context_to_json(&o->context));
        json_object_set_new(j, "startContext", build_context_to_json(&o->start_context));
        json_object_set(j, "imageEnv", o->image_env);
        json_object_set_new(j, "startCmd", text_or_null(o->start_cmd));
        json_object_set_new(j, "readyCmd", text_or_null(o->ready_cmd));
        json_object_set_new(j, "diskBytes", json_integer((json_int_t)o->disk_bytes));
        json_object_set_new(j, "envdVersion", json_string(o->envd_version));
        text = json_text(j);
        printf("%s\n", text);
        ready = file_write_atomic(path, text, strlen(text), 0600, err) >= 0;
        sem_post(&ended);
        return ready ? 0 : -1;
}

static void on_failed(void *data, const char *build_id, const char *reason, const char *step)
{
        CLEANUP_JSON json_t *j = json_object();
        CLEANUP_FREE char *text = NULL;

        (void)data;
        (void)build_id;
        json_object_set_new(j, "reason", json_string(reason));
        json_object_set_new(j, "step", text_or_null(step));
        text = json_text(j);
        printf("%s\n", text);
        sem_post(&ended);
}

static int read_parent(struct build_job *job, const char *build_id, struct error *err)
{
        CLEANUP_FREE char *dir = xasprintf("%s/builds/%s", data_dir, build_id), *path = path_join(dir, "outcome.json");
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        struct build_parent *p;
        int r = file_read(path, 1 << 20, &text, err);

        if (r >= 0)
                r = json_parse(text.data, text.len, &j, err);
        if (r < 0)
                return r;
        p = job->parent = xcalloc(1, sizeof(*p));
        p->build_id = xstrdup(build_id);
        p->dir = STEAL(dir);
        build_context_from_json(json_object_get(j, "context"), &p->context);
        build_context_from_json(json_object_get(j, "startContext"), &p->start_context);
        p->image_env = json_incref(json_object_get(j, "imageEnv"));
        p->start_cmd = xstrdup_or_null(json_str(j, "startCmd"));
        p->ready_cmd = xstrdup_or_null(json_str(j, "readyCmd"));
        return 0;
}

static int make_job(const char *body, int version, struct build_job **ret, struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        struct build_job *job = xcalloc(1, sizeof(*job));
        char id[UUID_LEN + 1], template_id[21];
        int r = file_read(body, 16 << 20, &text, err);

        if (r >= 0)
                r = json_parse(text.data, text.len, &j, err);
        if (r >= 0)
                r = build_plan_parse(j, &job->plan, err);
        if (r >= 0 && job->plan.from_template)
                r = read_parent(job, job->plan.from_template, err);
        random_uuid(id);
        random_id(template_id, 20);
        job->build_id = xstrdup(id);
        job->template_id = xstrdup(template_id);
        job->team_slug = xstrdup("team");
        job->template_version = version;
        job->vcpus = (unsigned)json_int(j, "cpuCount", 2);
        job->memory_mb = (unsigned)json_int(j, "memoryMB", 1024);
        job->disk_mb = (unsigned)json_int(j, "diskMB", 10240);
        *ret = job;
        return r;
}

static int run(char **argv, int version, struct error *err)
{
        CLEANUP_FREE char *cache = path_join(data_dir, "cache/oci"), *builds = path_join(data_dir, "builds");
        const char *insecure[] = {argv[3], NULL}, *backend = NULL;
        const struct build_events events = {.log = on_log, .started = on_started, .ready = on_ready, .failed = on_failed};
        struct build_settings s = {.data_dir = data_dir, .kit_root = argv[2], .network = VM_NETWORK_NAT, .max_builds = 1,
                                   .oci = {.cache_dir = cache, .insecure = insecure}, .step_cache_bytes = 20ULL << 30,
                                   .max_seconds = 3600};
        struct build_queue *q = NULL;
        struct build_job *job = NULL;
        struct kit *kit = NULL;
        int r = dir_make(builds, 0755, err);

        if (r >= 0)
                r = kit_open(argv[2], NULL, NULL, &kit, err);
        if (r >= 0)
                r = hypervisor_select(kit, "auto", data_dir, &backend, NULL, err);
        kit_free(kit);
        s.hypervisor = backend;
        if (r >= 0)
                r = make_job(argv[4], version, &job, err);
        if (r >= 0)
                r = build_queue_new(&s, &events, &q, err);
        if (r >= 0)
                r = build_queue_submit(q, job, err);
        if (r < 0)
                return r;
        sem_wait(&ended);
        build_queue_free(q);
        return 0;
}

int main(int argc, char **argv)
{
        struct error err = {};

        if (argc < 5) {
                fprintf(stderr, "usage: build-one DATA-DIR KIT-DIR INSECURE-REGISTRY BODY.json [20|21]\n");
                return 2;
        }
        umask(022);
        data_dir = argv[1];
        begin = clock_monotonic_ns();
        sem_init(&ended, 0, 0);
        if (run(argv, argc > 5 ? atoi(argv[5]) : 21, &err) < 0) {
                fprintf(stderr, "build-one: %s\n", err.message);
                return 2;
        }
        return ready ? 0 : 1;
}
