/* The query of a /files request and the decision about it (agent/files.h): nothing but the right signature, or the token, opens a file. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/files.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"

#define NOW 1000000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_FREE char *text = xstrndup((const char *)data, size), *message = NULL, *wanted = NULL;
        struct file_query q;

        if (file_query_parse(text, &q, &message) < 0) {
                if (!message || q.path)
                        abort();
                return 0;
        }
        wanted = file_signature(&q, "read", "secret");
        if (!file_refusal(&q, "read", "secret", NULL, NOW) && !streq(wanted, q.signature))
                abort();
        if (!file_refusal(&q, "read", "secret", text, NOW) && !streq(text, "secret") && *text)
                abort();
        if (file_refusal(&q, "read", NULL, text, NOW))
                abort();
        free(q.signature);
        q.signature = xstrdup(wanted);
        if (!q.has_expiration && file_refusal(&q, "read", "secret", NULL, NOW))
                abort();
        if (!file_refusal(&q, "write", "secret", NULL, NOW))
                abort();
        file_query_free(&q);
        return 0;
}
