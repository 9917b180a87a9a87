/* The nftables rules as text, for net.c and its tests. */
#pragma once

#include "base/buf.h"
#include "vm/net.h"

#define NET_TAP "tap0"
#define NET_UPLINK "up0"
#define NET_HOST_PREFIX "vmon" /* host side: vmon<slot> */
/* Reachable for names by guests whose rules name domains (sandbox-api 13.2). */
#define NET_PUBLIC_RESOLVER "8.8.8.8"

struct net_rules {
        const char *resolver; /* NULL = no name resolution, and none either for a guest to which everything is denied, domains included: names
                                 would carry data out */
        bool allow_private;
        const struct net_egress *egress; /* NULL = no rules of its own */
        unsigned listener_port;          /* with domains: where TCP is redirected to */
};

/* Inside a VM's namespace, replacing what is there. ERROR_INVALID naming an entry that is no address, range or domain; `out` is then of no use. */
int net_rules_inner(struct buf *out, const struct net_rules *r, struct error *err);
/* On the host. */
void net_rules_host(struct buf *out, const char *resolver);
