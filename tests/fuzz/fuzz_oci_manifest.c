/* Indexes, manifests and configs. */
#include <stdint.h>
#include <stdlib.h>

#include "oci/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct manifest m = {};
        struct image_config c = {};
        struct error err;
        size_t chosen;

        if (manifest_parse((const char *)data, size, NULL, &m, &err) == 0) {
                if (m.kind == MANIFEST_INDEX && index_choose(&m, "amd64", &chosen, &err) == 0 && chosen >= m.count)
                        abort();
                manifest_free(&m);
        }
        if (image_config_parse((const char *)data, size, &c, &err) == 0)
                image_config_free(&c);
        return 0;
}
