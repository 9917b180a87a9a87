/* The shim's side of the VM's network (vm/net.h does the work). */
#pragma once

#include "shim.h"

/* Namespace and tap: what QEMU needs to start. No-op unless the network is nat. */
int network_begin(struct shim *s, struct error *err);
/* Addresses, veth, filter rules. */
int network_finish(struct shim *s, struct error *err);
/* Undoes both; safe in any state. */
int network_set_egress(struct shim *s, const json_t *egress, struct error *err); /* net_set_egress(); NULL = none */
void network_end(struct shim *s);
