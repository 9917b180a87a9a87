/* The nftables rules as text, for net.c and its tests. */
#pragma once

#include "base/buf.h"
#include "vm/net.h"

#define NET_TAP "tap0"
#define NET_UPLINK "up0"
#define NET_HOST_PREFIX "vmon" /* host side: vmon<slot> */

/* Inside a VM's namespace, replacing what is there. `resolver` NULL = no name resolution, and none either for a guest to which everything is
 * denied: names would carry data out. `e` NULL = no rules of its own. ERROR_INVALID naming an entry that is no address or range;
 * `out` is then of no use. */
int net_rules_inner(struct buf *out, const char *resolver, bool allow_private, const struct net_egress *e, struct error *err);
/* On the host. */
void net_rules_host(struct buf *out, const char *resolver);
