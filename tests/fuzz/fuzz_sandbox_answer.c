/* What an agent answers about itself: metrics and log entries, of which a guest may make up anything. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "sandbox/history.h"
#include "sandbox/metrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_JSON json_t *j = NULL;
        CLEANUP_BUF struct buf lines = {};
        struct history_cursor c = {};
        struct sandbox_metrics m;
        int status;

        if (sandbox_answer_parse((const char *)data, size, &status, &j, NULL) < 0 || !j)
                return 0;
        if (sandbox_metrics_read(json_object_get(j, "metrics"), &m, NULL) == 0 && (m.cpu_count < 1 || !(m.cpu_used_pct >= 0 && m.cpu_used_pct <= 100)))
                abort();
        history_lines(j, 1000, &c, &lines);
        for (const char *p = buf_str(&lines); *p; p = strchr(p, '\n') + 1)
                if (strncmp(p, "{\"t\":", 5) != 0 || !strchr(p, '\n'))
                        abort();
        return 0;
}
