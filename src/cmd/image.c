/* `vmon image`: the blob cache by hand. Credentials come from a file, never from the command line, where every user of
 * the machine could read them.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "cmd/commands.h"
#include "cmd/common.h"
#include "oci/import.h"
#include "oci/oci.h"
#include "oci/record.h"

#define INSECURE_MAX 64
#define AUTH_FILE_MAX (256U << 10)

struct options {
        const char *data_dir, *arch, *auth_file, *mirror, *name;
        const char *insecure[INSECURE_MAX + 1];
        size_t insecure_count;
        uint64_t timeout;
        bool json;
        const char *words[2]; /* the action and its argument */
        size_t word_count;
        const char *cache_dir;
        struct oci_options oci;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
        interrupted = number;
}

static bool cancelled(void *data)
{
        (void)data;
        return interrupted != 0;
}

static void print_line(void *data, int level, const char *message)
{
        (void)data;
        if (level > 0)
                fprintf(stderr, "vmon image: %s\n", message);
}

/* The environment holds several hosts with commas between them. */
static bool add_insecure(struct options *o, const char *arg)
{
        CLEANUP_FREE char *copy = xstrdup(arg);
        char *save = NULL;

        for (char *host = strtok_r(copy, ",", &save); host; host = strtok_r(NULL, ",", &save)) {
                if (o->insecure_count == INSECURE_MAX)
                        return false;
                o->insecure[o->insecure_count++] = xstrdup(host);
        }
        return true;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
        struct options *o = state->input;

        switch (key) {
        case 'd':
                o->data_dir = arg;
                return 0;
        case 'i':
                if (!add_insecure(o, arg))
                        argp_error(state, "more than %d insecure registries", INSECURE_MAX);
                return 0;
        case 'm':
                o->mirror = arg;
                return 0;
        case 'a':
                o->arch = arg;
                return 0;
        case 'c':
                o->auth_file = arg;
                return 0;
        case 'n':
                o->name = arg;
                return 0;
        case 't':
                if (!str_to_u64(arg, 3600, &o->timeout) || o->timeout == 0)
                        argp_error(state, "--registry-timeout must be 1 to 3600 seconds");
                return 0;
        case 'j':
                o->json = true;
                return 0;
        case ARGP_KEY_ARG:
                if (o->word_count == 2)
                        argp_error(state, "unexpected argument \"%s\"", arg);
                o->words[o->word_count++] = arg;
                return 0;
        case ARGP_KEY_END:
                if (o->word_count == 0)
                        argp_error(state, "say what to do: pull, import, ls or rm");
                return 0;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static const struct argp_option options[] = {
        {"data-dir", 'd', "DIR", 0, "Data directory (default: /var/lib/vmon as root)", 0},
        {"insecure-registry", 'i', "HOST[:PORT]", 0, "Speak plain http to this registry; may be repeated", 0},
        {"registry-mirror", 'm', "URL", 0, "Ask this mirror first for anonymous docker.io images", 0},
        {"registry-timeout", 't', "SECONDS", 0, "Give a silent connection up after this time (default: 30)", 0},
        {"arch", 'a', "ARCH", 0, "x86_64 or aarch64 (default: this machine's)", 0},
        {"auth-file", 'c', "FILE", 0, "Credentials: a JSON object as in fromImageRegistry", 0},
        {"name", 'n', "REF", 0, "import: the reference to keep the image under (default: its own)", 0},
        {"json", 'j', NULL, 0, "Print JSON", 0},
        {},
};
static const struct argp argp = {
        options, parse, "pull REF\nimport FILE-OR-DIR\nls\nrm REF",
        "The cache of image blobs by hand.\v"
        "pull downloads an image and prints its bytes, layers and seconds. import takes an OCI layout (a directory or a "
        "tar of one) or a docker save archive; its reference is then served from the cache instead of a registry, until "
        "rm. ls lists what the cache holds by name, rm removes an image and the blobs that no other one needs.",
        NULL, NULL, NULL};

static int fail(const struct error *err)
{
        fprintf(stderr, "vmon image: %s\n", err->message);
        return 1;
}

static int read_auth(const char *path, struct oci_auth *ret, struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        CLEANUP_JSON json_t *j = NULL;
        int r;

        if (!path)
                return 0;
        r = file_read(path, AUTH_FILE_MAX, &text, err);
        if (r == 0)
                r = json_parse(buf_str(&text), text.len, &j, err);
        if (text.data)
                explicit_bzero(text.data, text.len);
        if (r == 0)
                r = oci_auth_parse(j, ret, err);
        return r < 0 ? error_wrap(err, r, "--auth-file %s", path) : 0;
}

static const char *machine(const struct options *o)
{
        static struct utsname u;

        if (o->arch)
                return o->arch;
        uname(&u);
        return u.machine;
}

static void print_pull(const struct options *o, const struct oci_image *image, double seconds)
{
        CLEANUP_JSON json_t *j = NULL;
        CLEANUP_FREE char *text = NULL;

        if (!o->json) {
                printf("%s: %s linux/%s, %llu bytes in %zu layers, %.3f s\n", image->reference, image->digest,
                       image->architecture, (unsigned long long)image->total_size, image->layer_count, seconds);
                return;
        }
        j = json_pack("{s:s, s:s, s:s, s:I, s:i, s:f}", "reference", image->reference, "digest", image->digest,
                      "architecture", image->architecture, "bytes", (json_int_t)image->total_size, "layers",
                      (int)image->layer_count, "seconds", seconds);
        text = json_text(j);
        puts(text);
}

static int pull(struct options *o)
{
        __attribute__((cleanup(oci_auth_free))) struct oci_auth auth = {};
        __attribute__((cleanup(oci_image_free))) struct oci_image image = {};
        const struct oci_progress progress = { .log = print_line, .cancelled = cancelled };
        int64_t began = clock_monotonic_ns();
        struct error err = {};

        if (read_auth(o->auth_file, &auth, &err) < 0 ||
            oci_resolve(&o->oci, o->words[1], machine(o), &auth, &progress, &image, &err) < 0 ||
            oci_fetch(&o->oci, &image, &auth, &progress, &err) < 0)
                return fail(&err);
        print_pull(o, &image, (double)(clock_monotonic_ns() - began) / (double)NSEC_PER_SEC);
        return 0;
}

static int import(struct options *o)
{
        __attribute__((cleanup(oci_image_free))) struct oci_image image = {};
        int64_t began = clock_monotonic_ns();
        struct error err = {};

        if (oci_import(&o->oci, o->words[1], o->name, machine(o), &image, &err) < 0)
                return fail(&err);
        print_pull(o, &image, (double)(clock_monotonic_ns() - began) / (double)NSEC_PER_SEC);
        return 0;
}

static json_t *record_json(const struct image_record *r)
{
        return json_pack("{s:s, s:s, s:s, s:I, s:i, s:b}", "reference", r->reference, "digest", r->digest, "architecture",
                         r->architecture, "bytes", (json_int_t)r->size, "layers", (int)r->layer_count, "imported",
                         r->imported);
}

static void print_records(const struct options *o, const struct image_record *list, size_t n)
{
        CLEANUP_JSON json_t *all = json_array();
        CLEANUP_FREE char *text = NULL;

        for (size_t i = 0; i < n; i++) {
                json_array_append_new(all, record_json(&list[i]));
                if (!o->json)
                        printf("%-50s %.19s %-6s %6.1f MB %3zu layers%s\n", list[i].reference, list[i].digest,
                               list[i].architecture, (double)list[i].size / 1e6, list[i].layer_count,
                               list[i].imported ? " (imported)" : "");
        }
        if (!o->json)
                return;
        text = json_text(all);
        puts(text);
}

static int by_reference(const void *a, const void *b)
{
        return strcmp(((const struct image_record *)a)->reference, ((const struct image_record *)b)->reference);
}

static int list(struct options *o)
{
        struct image_record *records = NULL;
        struct error err = {};
        size_t n = 0;

        if (image_record_list(o->cache_dir, &records, &n, &err) < 0)
                return fail(&err);
        if (n)
                qsort(records, n, sizeof(*records), by_reference);
        print_records(o, records, n);
        for (size_t i = 0; i < n; i++)
                image_record_free(&records[i]);
        free(records);
        return 0;
}

static int removal(struct options *o)
{
        __attribute__((cleanup(oci_reference_free))) struct oci_reference ref = {};
        CLEANUP_FREE char *name = NULL;
        struct error err = {};
        uint64_t freed = 0;
        int r = oci_reference_parse(o->words[1], &ref, &err);

        if (r < 0)
                return fail(&err);
        name = reference_text(&ref);
        r = image_record_remove(o->cache_dir, name, &freed, &err);
        if (r == -ENOENT) {
                fprintf(stderr, "vmon image: the cache holds no image '%s'; see vmon image ls\n", name);
                return 1;
        }
        if (r < 0)
                return fail(&err);
        printf(o->json ? "{\"reference\":\"%s\",\"freedBytes\":%llu}\n" : "removed %s, %llu bytes freed\n", name,
               (unsigned long long)freed);
        return 0;
}

static const struct {
        const char *name;
        bool argument;
        int (*run)(struct options *o);
} actions[] = {
        {"pull", true, pull},
        {"import", true, import},
        {"ls", false, list},
        {"rm", true, removal},
};

static int dispatch(struct options *o)
{
        for (size_t i = 0; i < sizeof(actions) / sizeof(*actions); i++) {
                if (!streq(o->words[0], actions[i].name))
                        continue;
                if (actions[i].argument == (o->word_count == 2))
                        return actions[i].run(o);
                fprintf(stderr, "vmon image: %s takes %s; see vmon image --help\n", actions[i].name,
                        actions[i].argument ? "one argument" : "no argument");
                return 2;
        }
        fprintf(stderr, "vmon image: unknown action \"%s\"; see vmon image --help\n", o->words[0]);
        return 2;
}

int cmd_image(int argc, char **argv)
{
        struct options o = {};
        const struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESETHAND };
        CLEANUP_FREE char *data_dir = NULL, *cache_dir = NULL;
        int status;

        if (cmd_parse(&argp, argc, argv, &o) != 0)
                return 2;
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        data_dir = o.data_dir ? xstrdup(o.data_dir) : cmd_default_data_dir();
        o.cache_dir = cache_dir = path_join(data_dir, "cache/oci");
        o.oci = (struct oci_options){
                .cache_dir = cache_dir,
                .insecure = o.insecure,
                .mirror = o.mirror,
                .stall_seconds = (unsigned)o.timeout,
        };
        status = dispatch(&o);
        for (size_t i = 0; i < o.insecure_count; i++)
                free((char *)o.insecure[i]);
        return status;
}
