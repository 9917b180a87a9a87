/* A layer's tar, applied below a temporary root (agent/layer.h). Needs root for owners to succeed; failing is fine. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/layer.h"
#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char root[] = "/tmp/vmon-fuzz-layer-XXXXXX";
        struct layer_stats stats = {};
        struct error err;

        if (!mkdtemp(root))
                abort();
        layer_apply_memory(data, size, root, false, &stats, &err);
        tree_remove(root, NULL);
        return 0;
}
