/* The first bytes of a guest's connection: whatever is found is a name, and stays it whatever comes after. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vm/net_sniff.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char name[NET_DOMAIN_MAX] = "", again[NET_DOMAIN_MAX], before[NET_DOMAIN_MAX];
        enum net_sniff found = net_sniff(data, size, name), half = net_sniff(data, size / 2, before);

        if (found == NET_SNIFF_NAME && (!net_parse_domain(name, again) || strcmp(name, again) != 0 || name[0] == '*'))
                abort();
        if (found == NET_SNIFF_MORE && size >= NET_SNIFF_MAX)
                abort();
        /* More bytes never change a verdict. */
        if (half != NET_SNIFF_MORE && (half != found || (found == NET_SNIFF_NAME && strcmp(name, before) != 0)))
                abort();
        return 0;
}
