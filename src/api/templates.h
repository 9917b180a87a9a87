/* The public API's template resources (template-api 4): routes over the records and the build queue, and the other side of
 * the queue: what builds report goes into the records.
 *
 * Order of making: records, template_service_new(), build_queue_new() with template_service_events(),
 * template_service_set_queue(), api_templates_routes(). Of unmaking: the dispatcher, the queue, the service.
 */
#pragma once

#include <stdint.h>

#include "api/api.h"
#include "build/build.h"
#include "store/records.h"

#define UPLOAD_LINK_SECONDS 1800                   /* template-api 4.3 */
#define BUILD_WAITING_SECONDS (40 * 60)            /* template-api 14.1 */
#define LOG_KEEP_SECONDS (30 * 24 * 3600)          /* product page */
#define LOG_FLUSH_MS 500                           /* product page */

struct template_settings {
        struct records *records;
        const char *data_dir;             /* files/ and builds/ below it */
        const char *public_url;           /* without a slash at the end; upload links are made from it */
        const unsigned char *root_secret; /* SECRET_LEN bytes */
        const char *node;                 /* name of this node, kept with each build */
        /* Can builds begin now? The error (UNAVAILABLE: 503) names the mend. NULL: always. Any thread. */
        int (*need_backend)(void *data, const char **ret, struct error *err);
        void *need_backend_data;
};

struct template_service;

/* Copies the settings (not the records); removes uploads that a crash cut off; starts the thread that flushes logs
 * and ends overdue builds. */
int template_service_new(const struct template_settings *s, struct template_service **ret, struct error *err);
struct build_events template_service_events(struct template_service *s);
/* Until then, and with NULL, triggers answer 503. */
void template_service_set_queue(struct template_service *s, struct build_queue *q);
/* Is the build the parent of one in the making? True from before the queue knows of the child until the records have the child's
 * end. Any thread. */
bool template_service_builds_on(struct template_service *s, const char *build_id);
/* Call when the queue is gone: flushes what is left of the logs. */
void template_service_free(struct template_service *s);

/* `s` must outlive the dispatcher. */
void api_templates_routes(struct api *a, struct template_service *s);
