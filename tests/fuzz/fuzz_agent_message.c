/* A JSON message of an RPC or of the serial channel, through every typed reader (agent/protojson.h). */
#include <stdint.h>
#include <stddef.h>

#include "agent/protojson.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        CLEANUP_JSON json_t *m = NULL;
        CLEANUP_BUF struct buf bytes = {};
        json_t *inner;
        const char *text;
        uint32_t number;
        bool flag;
        struct error err;

        if (proto_parse((const char *)data, size, &m, &err) < 0)
                return 0;
        proto_string(m, "path", &text, &err);
        proto_uint32(m, "pid", &number, &err);
        proto_bool(m, "includeEntry", &flag, &err);
        proto_bytes(m, "stdin", &bytes, &err);
        proto_message(m, "process", &inner, &err);
        proto_strings(m, "args", &inner, &err);
        proto_map(m, "envs", &inner, &err);
        return 0;
}
