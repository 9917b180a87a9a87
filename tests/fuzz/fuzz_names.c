/* Names and tags from clients: what parses must match the grammar, and parse again to itself. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "store/names.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len)
{
        char *text = xstrndup((const char *)data, len), *tag = NULL, *slug;
        struct name_ref n = {};
        struct error err;

        if (name_parse(text, &n, &err) == 0) {
                struct name_ref again = {};
                char *key = name_key(&n);

                assert(name_is_alias(n.alias) && (!n.namespace_ || name_is_alias(n.namespace_)) && (!n.tag || name_is_tag(n.tag)));
                assert(name_parse(key, &again, NULL) == 0 && streq(again.alias, n.alias) && streq(again.namespace_, n.namespace_));
                name_ref_clear(&again);
                free(key);
        } else {
                assert(utf8_valid(err.message, strlen(err.message)));
        }
        name_ref_clear(&n);
        if (name_tag_normalise(text, &tag, &err) == 0)
                assert(name_is_tag(tag));
        free(tag);
        slug = name_slug(text);
        assert(name_is_alias(slug));
        free(slug);
        free(text);
        return 0;
}
