/* A build context's archive, copied below a temporary root (agent/copy.h). Needs root for its staging directory and the owners. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/copy.h"
#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char root[] = "/tmp/vmon-fuzz-copy-XXXXXX", archive[64], target[64];
        struct copy_request request = {.archive = archive, .source = ".", .target = target, .owner = "1:1", .mode = ""};
        struct copy_result result;
        struct error err;

        if (!mkdtemp(root))
                abort();
        snprintf(archive, sizeof(archive), "%s/archive", root);
        snprintf(target, sizeof(target), "%s/target/", root);
        if (file_write_atomic(archive, data, size, 0600, NULL) < 0)
                abort();
        copy_from_archive(&request, &result, &err);
        tree_remove(root, NULL);
        return 0;
}
