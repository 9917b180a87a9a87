/* The public API's sandbox resources (sandbox-api 5 to 17): routes over the sandbox manager. */
#pragma once

#include "api/api.h"
#include "sandbox/sandbox.h"
#include "store/records.h"

struct sandboxes_api {
        struct sandbox_manager *manager;
        struct records *records;
        const char *data_dir;
};

/* Adds all routes; `s` must outlive the dispatcher. */
void api_sandboxes_routes(struct api *a, struct sandboxes_api *s);
