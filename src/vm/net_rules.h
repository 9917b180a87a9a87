/* The nftables rules as text, for net.c and its tests. */
#pragma once

#include "base/buf.h"
#include "vm/net.h"

#define NET_TAP "tap0"
#define NET_UPLINK "up0"
#define NET_HOST_PREFIX "vmon" /* host side: vmon<slot> */

/* Inside a VM's namespace. `resolver` NULL = no name resolution. */
void net_rules_inner(struct buf *out, const char *resolver, bool allow_private);
/* On the host. */
void net_rules_host(struct buf *out, const char *resolver);
