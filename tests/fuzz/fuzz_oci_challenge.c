/* WWW-Authenticate. */
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "oci/challenge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char *text = xstrndup((const char *)data, size);
        struct challenge c = {};
        struct error err;

        if (challenge_parse(text, &c, &err) == 0) {
                if (c.scheme == CHALLENGE_BEARER && !c.realm)
                        abort();
                challenge_free(&c);
        }
        free(text);
        return 0;
}
