/* What the templates*.c files share. */
#pragma once

#include <pthread.h>

#include "api/template-body.h"
#include "api/templates.h"
#include "base/cleanup.h"
#include "base/json.h"

struct log_buffer;

struct template_service {
        struct records *records;
        char *data_dir, *public_url, *node;
        unsigned char upload_key[SECRET_LEN];

        struct build_queue *queue; /* set once, before requests come */
        int (*need_backend)(void *data, const char **ret, struct error *err);
        void *need_backend_data;

        /* build-keeper.c */
        pthread_mutex_t lock; /* of all below */
        pthread_cond_t wake;
        pthread_t keeper;
        bool keeper_runs, closing;
        bool dirty; /* some buffer has entries */
        struct log_buffer *buffers;
};

#define NIL_UUID "00000000-0000-0000-0000-000000000000"

/* build-keeper.c: starts and ends the thread. */
int keeper_start(struct template_service *s, struct error *err);
void keeper_stop(struct template_service *s);
/* From here until the build has ended, template_service_builds_on(parent_id) holds. */
void keeper_hold(struct template_service *s, const char *build_id, const char *parent_id);
/* Makes the build known to the keeper and hands it to the queue, unless it was cancelled meanwhile; takes the job over. On failure
 * the build is failed in the records. */
int keeper_submit(struct template_service *s, struct build_job *job, struct error *err);
/* Ends a build: its last log line, its record, its VMs. */
int keeper_cancel(struct template_service *s, const char *build_id, struct error *err);
/* Ends one that never reached the queue: "Build failed: …" and the record. */
int keeper_fail(struct template_service *s, const char *build_id, const char *reason, const char *step, struct error *err);

/* template-json.c: bodies of answers; new references. Those that read the store return negative errors. */
json_t *json_time(int64_t ns); /* null for 0 */
json_t *json_log_entry(const struct log_entry *e);
json_t *template_create_json(const struct team *team, const struct template_record *t, const struct build_record *b, const char *alias);
json_t *template_legacy_json(const struct template_record *t, const struct build_record *b, const char *alias);
json_t *build_detail_json(const struct build_record *b);
int template_list_json(struct template_service *s, const struct template_record *t, json_t **ret, struct error *err);
int template_detail_json(struct template_service *s, const struct template_record *t, struct build_record *const *builds, size_t count,
                         json_t **ret, struct error *err);

/* templates.c */
/* The template of an ID in a path (no aliases): NOT_FOUND with `format`, which has one %s for the ID. */
int template_by_id(struct template_service *s, const char *id, const char *format, struct template_record **ret, struct error *err);
/* The template of a reference in a path or body. `what` is the prefix of INVALID. NOT_FOUND; FORBIDDEN when it is another
 * team's, public or not. `ret_name` may be NULL, else it is cleared by the caller. */
int template_by_reference(struct template_service *s, const struct team *team, const char *reference, const char *what,
                          struct template_record **ret, struct name_ref *ret_name, struct error *err);
/* limit and nextToken of a query; `*ret_id` is the caller's, NULL when from the start. */
int page_query(const char *query, size_t *ret_limit, struct list_cursor *ret_cursor, char **ret_id, struct error *err);

/* Handlers, by file. */
#define HANDLER(name) int name(void *data, struct api_request *request, struct api_response *response, struct error *err)
HANDLER(templates_create_v3);
HANDLER(templates_create_v2);
HANDLER(templates_files_link);
HANDLER(templates_upload);
int templates_upload_begin(void *data, struct api_request *request, char **ret_path, unsigned long long *ret_limit, struct error *err);
HANDLER(templates_trigger);
HANDLER(templates_status);
HANDLER(templates_logs);
HANDLER(templates_alias);
HANDLER(templates_tags_assign);
HANDLER(templates_tags_delete);
HANDLER(templates_tags_list);
/* Removes uploads that a crash cut off. */
int uploads_clean(struct template_service *s, struct error *err);
