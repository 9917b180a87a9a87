/* What vm_restore() needs of an open template. */
#pragma once

#include "vm/kit.h"
#include "vm/manifest.h"

struct vm_template {
        char *build_dir;
        struct vm_manifest manifest;
        json_t *manifest_json;
        struct kit *kit;
        int memory_fd;       /* sealed memfd */
        int device_state_fd; /* sealed memfd too: one read for all forks */
};
