/* `vmon doctor`: what this host has and lacks, each line with the mend.
 *
 * Theory of operation: checks (doctor_host.c, doctor_guest.c) only look and append findings; nothing is changed, apart
 * from the cached verdict of a KVM probe boot. The exit status is 1 when something fails that vmon cannot do without.
 */
#include "cmd/doctor.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cmd/commands.h"
#include "cmd/common.h"

void findings_add(struct findings *f, const char *name, enum finding_state state, char *detail, char *mend)
{
        f->items = xreallocarray(f->items, f->n + 1, sizeof(*f->items));
        f->items[f->n++] = (struct finding){name, state, detail, mend};
}

void findings_free(struct findings *f)
{
        for (size_t i = 0; i < f->n; i++) {
                free(f->items[i].detail);
                free(f->items[i].mend);
        }
        free(f->items);
        *f = (struct findings){};
}

struct options {
        const char *data_dir, *kit_dir;
        bool json;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
        struct options *o = state->input;

        switch (key) {
        case 'd':
                o->data_dir = arg;
                return 0;
        case 'k':
                o->kit_dir = arg;
                return 0;
        case 'j':
                o->json = true;
                return 0;
        case ARGP_KEY_ARG:
                argp_error(state, "unexpected argument \"%s\"", arg);
                return EINVAL;
        default:
                return ARGP_ERR_UNKNOWN;
        }
}

static const struct argp_option options[] = {
        {"data-dir", 'd', "DIR", 0, "Data directory (default: /var/lib/vmon as root)", 0},
        {"kit-dir", 'k', "DIR", 0, "Where kits are kept (default: DATA-DIR/kit)", 0},
        {"json", 'j', NULL, 0, "Print one JSON object", 0},
        {},
};
static const struct argp argp = {options, parse, NULL, "Tell what this host has and lacks, with the mend for each lack.",
                                 NULL, NULL, NULL};

static const char *const state_names[] = {"ok", "warn", "fail"};

static void print_text(const struct findings *f)
{
        for (size_t i = 0; i < f->n; i++) {
                const struct finding *item = &f->items[i];

                printf("%-4s  %-12s %s\n", state_names[item->state], item->name, item->detail);
                if (item->mend)
                        printf("      %-12s -> %s\n", "", item->mend);
        }
}

static void print_json(const struct findings *f, bool usable)
{
        CLEANUP_JSON json_t *list = json_array();
        CLEANUP_JSON json_t *all = NULL;
        CLEANUP_FREE char *text = NULL;

        for (size_t i = 0; i < f->n; i++) {
                const struct finding *item = &f->items[i];

                json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:s?}", "name", item->name, "state",
                                                      state_names[item->state], "detail", item->detail, "mend",
                                                      item->mend));
        }
        all = json_pack("{s:b,s:O}", "usable", usable, "findings", list);
        text = json_text(all);
        puts(text);
}

static bool usable(const struct findings *f)
{
        for (size_t i = 0; i < f->n; i++)
                if (f->items[i].state == FINDING_FAIL)
                        return false;
        return true;
}

int cmd_doctor(int argc, char **argv)
{
        CLEANUP_FREE char *default_data = cmd_default_data_dir(), *default_kit = NULL;
        struct options o = {};
        struct doctor d = {};
        bool good;

        if (cmd_parse(&argp, argc, argv, &o) != 0)
                return 2;
        d.data_dir = o.data_dir ? o.data_dir : default_data;
        default_kit = path_join(d.data_dir, "kit");
        d.kit_dir = o.kit_dir ? o.kit_dir : default_kit;
        doctor_check_programs(&d);
        doctor_check_guest(&d);
        doctor_check_network(&d);
        doctor_check_limits(&d);
        doctor_check_address(&d);
        good = usable(&d.findings);
        if (o.json)
                print_json(&d.findings, good);
        else
                print_text(&d.findings);
        findings_free(&d.findings);
        return good ? 0 : 1;
}
