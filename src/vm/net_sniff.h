/* The name that the first bytes of a connection ask for: TLS server_name or HTTP/1 Host. */
#pragma once

#include <stddef.h>

#include "vm/net_domain.h"

/* Enough for any ClientHello and for request heads with large cookies; what has no name within that has none. */
#define NET_SNIFF_MAX 65536

enum net_sniff {
        NET_SNIFF_MORE, /* so far so good */
        NET_SNIFF_NAME, /* `name` is written, as net_parse_host() does */
        NET_SNIFF_NONE, /* another protocol, no name, two names, an address, or malformed */
};

/* `data` from the connection's first byte on. Never more than NET_SNIFF_MAX bytes are waited for. */
enum net_sniff net_sniff(const void *data, size_t len, char name[NET_DOMAIN_MAX]);
