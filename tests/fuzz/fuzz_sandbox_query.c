/* Queries of the sandbox list: "id\nquery". What is taken must be within its limits, and cursors must round-trip. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/sandbox-query.h"
#include "base/cleanup.h"
#include "sandbox/id.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const char *id, int64_t started_ns)
{
        char parsed[SANDBOX_ID_MAX + 1], cursor[CURSOR_MAX], back[SANDBOX_ID_MAX + 1];
        int64_t back_ns;

        if (sandbox_id_parse(id, parsed) < 0)
                return;
        cursor_format(started_ns, parsed, true, cursor);
        if (cursor_parse(cursor, true, &back_ns, back, NULL) < 0 || back_ns != started_ns || strcmp(back, parsed) != 0)
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_FREE char *text = strndup((const char *)data, size);
        char *query = strchr(text, '\n');
        struct sandbox_query q = {};

        if (query)
                *query++ = '\0';
        round_trip(text, (int64_t)size);
        if (!query || sandbox_query_parse(query, &q, NULL) < 0)
                return 0;
        if (q.limit < 1 || q.limit > LIST_LIMIT_MAX || !(q.running || q.paused) || strlen(q.after_id) > SANDBOX_ID_MAX)
                abort();
        sandbox_query_free(&q);
        return 0;
}
