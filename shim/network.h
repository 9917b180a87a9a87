/* The shim's side of the VM's network (vm/net.h does the work). */
#pragma once

#include "shim.h"

/* The strings of an array, borrowed; the caller frees the list. What is no string becomes "", which is neither address nor domain. */
const char **network_strings(const json_t *list);

/* Namespace and tap: what QEMU needs to start. No-op unless the network is nat. */
int network_begin(struct shim *s, struct error *err);
/* Addresses, veth, filter rules. */
int network_finish(struct shim *s, struct error *err);
/* Undoes both; safe in any state. */
int network_set_egress(struct shim *s, const json_t *egress, struct error *err); /* net_set_egress(); NULL = none */
void network_end(struct shim *s);
