/* Identifiers of sandboxes. They become DNS label parts and are cut at "-" by clients and by the traffic proxy, hence the
 * narrow alphabet; "i" in front keeps the label from starting with a digit.
 */
#include "sandbox/id.h"

#include <errno.h>
#include <string.h>

#include "base/rand.h"

static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";

void sandbox_id_new(char *out)
{
        out[0] = 'i';
        random_id(out + 1, SANDBOX_ID_LEN - 1);
}

int sandbox_id_parse(const char *s, char *ret)
{
        size_t len = strspn(s, alphabet);
        if (len == 0 || len > SANDBOX_ID_MAX)
                return -EINVAL;
        if (s[len] == '-') {
                size_t client = strspn(s + len + 1, alphabet);
                if (client == 0 || client > SANDBOX_ID_MAX || s[len + 1 + client] != '\0')
                        return -EINVAL;
        } else if (s[len] != '\0') {
                return -EINVAL;
        }
        memcpy(ret, s, len);
        ret[len] = '\0';
        return 0;
}
