/* A multipart body in pieces of a size that the first byte gives (agent/multipart.h). */
#include <stdint.h>
#include <stddef.h>

#include "agent/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int part(const char *name, const char *filename, void *data)
{
        (void)name, (void)filename, (void)data;
        return 0;
}

static int content(const void *bytes, size_t len, void *data)
{
        (void)bytes, (void)len, (void)data;
        return 0;
}

static int part_end(void *data)
{
        (void)data;
        return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const struct multipart_ops ops = { part, content, part_end };
        struct multipart m;
        struct error err;
        size_t piece = size ? data[0] + 1u : 1;

        if (multipart_init(&m, "multipart/form-data; boundary=X", &ops, NULL, &err) < 0)
                return 0;
        for (size_t at = 0; at < size; at += piece)
                if (multipart_feed(&m, data + at, at + piece < size ? piece : size - at, &err) < 0)
                        break;
        multipart_finish(&m, &err);
        multipart_free(&m);
        return 0;
}
