/* Bodies of sandbox requests. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/sandbox-body.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_JSON json_t *j = NULL;
        struct sandbox_body b;

        if (json_parse((const char *)data, size, &j, NULL) < 0 || !json_is_object(j))
                return 0;
        if (sandbox_body_parse(j, size % 2, &b, NULL) < 0)
                return 0;
        if (!b.template_ref || b.timeout_s > INT32_MAX || b.timeout_s < INT32_MIN)
                abort();
        sandbox_body_check(&b, NULL);
        return 0;
}
