/* Network `nat`: a namespace of its own for each VM.
 *
 *   guest eth0 169.254.0.21 --- tap0 169.254.0.22 | namespace of the shim | up0 10.200.x.y+2 --- vmonN .y+1 | host
 *
 * Guest addresses and MACs are the same in every VM (vm.h), so that snapshots fit everywhere; the namespace
 * translates them to a per-slot address, the host that one to its own. Needs root. Everything but the host's
 * table `vmon` disappears with the last process in the namespace, however that ended.
 */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define NET_GATEWAY_MAC "02:fc:00:00:00:06"
#define NET_MTU 1400
/* Slots: each takes a /30 of 10.200.0.0/16. */
#define NET_SLOTS 16384
/* Longest dotted IPv4 address with NUL. */
#define NET_ADDRESS_MAX 16

/* Longest "a.b.c.d/n" with NUL. */
#define NET_CIDR_MAX 19
/* Entries of both lists of a guest's rules together. */
#define NET_EGRESS_MAX 1024

/* What a guest may reach, beyond what it may never (sandbox-api 13.2): `allow` beats `deny`, what neither names is allowed.
 * NULL-terminated lists of IPv4 addresses and ranges, or NULL; guests have no IPv6. `domains` (patterns of net_domain.h, or NULL) are for a guest
 * to which all else is denied: TCP to whatever is not allowed by address goes to the listener of net_take_listener(). */
struct net_egress {
        const char *const *allow, *const *deny, *const *domains;
};

/* "a.b.c.d" or "a.b.c.d/n", written with the host's bits cleared into `out`; false for anything else. */
bool net_parse_cidr(const char *text, char out[NET_CIDR_MAX]);

/* Is it in one of the ranges that no sandbox ever reaches? */
bool net_always_denied(struct in_addr address);

struct net_config {
        unsigned slot;       /* below NET_SLOTS, held by the caller alone on this host */
        bool allow_private;  /* lifts the denial of private ranges (sandbox-api 13.2); for builds on a site whose
                                package mirror or registry has a private address */
        const char *owner;   /* alias of the host's end of the link, for whoever looks at it (`ip link`); cut at 255 bytes;
                                or NULL. Borrowed until net_finish() */
        struct net_egress egress; /* borrowed until net_begin() returns */
};

struct net;

/* Moves the calling process (one thread only) to a new network namespace and makes the tap there. Sets up the host
 * side first when it is missing. Rules are being loaded when this returns; no traffic passes before they are.
 * ERROR_UNAVAILABLE names what the host lacks. On failure the process may be left in the new namespace. */
int net_begin(const struct net_config *c, struct net **ret, struct error *err);

/* The tap for QEMU's `-netdev tap,fd=`: without vnet header and offloads: a snapshot records the
 * header, and slirp has none. Owned by the handle. */
int net_tap_fd(const struct net *n);

/* The rest: addresses, link to the host, rules loaded. May run while QEMU starts; call before the guest runs. */
int net_finish(struct net *n, struct error *err);

/* Replaces what the guest may reach; connections that are open stay. On failure (ERROR_INVALID for an entry that is no address or
 * range) the old rules hold. Called by a process in the namespace. */
int net_set_egress(struct net *n, const struct net_egress *e, struct error *err);

/* Where the guest's connections arrive that its `domains` decide on (egress/egress.h), since the last net_begin() or net_set_egress(): the caller's
 * from now on. -1 when there are no domains, or it was taken. */
int net_take_listener(struct net *n);

/* Releases tap and link at once (they would also go with the namespace). NULL is fine. */
void net_end(struct net *n);

/* Makes the host ready: IPv4 forwarding and the nftables table `vmon` with masquerading, guests kept from one another
 * and from the host's own addresses. Idempotent; replaces an older table atomically. net_begin() calls it when the
 * table is missing; `vmon serve` at every start. */
int net_host_setup(struct error *err);

/* The first nameserver of a resolv.conf text that is an IPv4 address outside 127/8; false when there is none. */
bool net_parse_resolver(const char *text, char out[NET_ADDRESS_MAX]);

/* The host's resolver by /etc/resolv.conf, else systemd-resolved's upstream list; false when there is none: names then
 * do not resolve in guests. */
bool net_host_resolver(char out[NET_ADDRESS_MAX]);
