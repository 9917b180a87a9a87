/* Create bodies and page tokens from clients. The first byte chooses. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "api/template-body.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len);

static void token(const char *text)
{
        struct error err;
        int64_t time;
        char *id;

        if (page_token_parse(text, &time, &id, &err) == 0) {
                assert(*id);
                free(id);
        }
}

static void create(const char *text, size_t len, bool v2)
{
        struct create_body b = {};
        struct error err;
        json_t *j;

        if (json_parse(text, len, &j, &err) < 0)
                return;
        if (json_is_object(j) && create_body_parse(j, v2, "acme", &b, &err) == 0) {
                assert(name_is_alias(b.name.alias) && b.tags[0] && name_list_len(b.tags) <= NAME_TAGS_MAX && b.vcpus >= 1);
                create_body_clear(&b);
        }
        json_decref(j);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len)
{
        char *text;

        if (len == 0)
                return 0;
        text = xstrndup((const char *)data + 1, len - 1);
        if (data[0] % 3 == 0)
                token(text);
        else
                create(text, strlen(text), data[0] % 3 == 1);
        free(text);
        return 0;
}
