/* What the commands of `vmon admin` share; private to src/cmd. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

struct admin {
        const char *url, *token_file, *data_dir;
        bool json;
        bool text; /* the answer's body is shown as it is */
        bool dry_run;
        unsigned timeout_s;   /* of drain; 0: none */
        const char *words[3]; /* command and its arguments */
        int word_count;
        json_t *body; /* of create-team, set-limits, block-team */
        char *token;
};

/* One request. The answer's body as JSON (NULL when empty), or with a->text as one string. A status of 400 and above becomes an error with
 * the driver's message. */
int admin_call(struct admin *a, const char *method, const char *path, const json_t *body, json_t **ret, struct error *err);
/* Fetches rows and prints them: a line each with the columns (NULL-terminated), or as JSON. */
int admin_list(struct admin *a, const char *path, const char *const *columns, struct error *err);
void admin_print_json(const json_t *j);
/* --data-dir or its default. The caller frees. */
char *admin_data_dir(const struct admin *a);

/* admin_store.c */
int admin_cordon(struct admin *a, struct error *err); /* cordon, uncordon */
int admin_drain(struct admin *a, struct error *err);
int admin_backup(struct admin *a, struct error *err);
int admin_restore(struct admin *a, struct error *err);
int admin_audit(struct admin *a, struct error *err);
