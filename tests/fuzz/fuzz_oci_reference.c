/* Image references and Content-Range; a reference that parses must parse again from its own full text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "oci/download.h"
#include "oci/oci.h"
#include "oci/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char *text = xstrndup((const char *)data, size);
        struct oci_reference r = {}, again = {};
        uint64_t from, to, total;
        struct error err;

        if (oci_reference_parse(text, &r, &err) == 0) {
                char *full = reference_text(&r);

                if (oci_reference_parse(full, &again, &err) < 0 || !streq(again.registry, r.registry) ||
                    !streq(again.repository, r.repository) || !streq(again.tag, r.tag) || !streq(again.digest, r.digest))
                        abort();
                free(full);
                oci_reference_free(&again);
                oci_reference_free(&r);
        }
        if (content_range_parse(text, &from, &to, &total) && (from > to || to >= total))
                abort();
        free(text);
        return 0;
}
