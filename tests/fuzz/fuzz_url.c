/* Percent-decoding and queries: "key\nquery". Encoding must round-trip. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "http/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const char *s)
{
        CLEANUP_FREE char *encoded = url_encode(s, false), *decoded = url_decode(encoded, strlen(encoded), false);

        if (!decoded || strcmp(decoded, s) != 0)
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_FREE char *text = strndup((const char *)data, size), *decoded = url_decode(text, strlen(text), true);
        CLEANUP_FREE char *value = NULL;
        char *query = strchr(text, '\n');
        bool malformed = false;

        round_trip(text);
        if (decoded && strlen(decoded) > strlen(text))
                abort();
        if (!query)
                return 0;
        *query++ = '\0';
        value = query_get(query, text, &malformed);
        if (value && malformed)
                abort();
        return 0;
}
