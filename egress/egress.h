/* vmon-egress: lets a guest's TCP connections out by the name that they ask for (sandbox-api 13.2).
 *
 * Rules of the guest's namespace (vm/net_rules.c) redirect here what is neither an address that is always denied nor one that the guest may reach. Each
 * connection is read until it has said its name (TLS server_name, HTTP Host); if a rule allows that name, it is resolved here, not by the guest, and the
 * connection goes to one of its addresses that is not always denied, at the port that the guest dialled. The address that the guest dialled
 * does not count. Everything else is reset.
 *
 * Start: by the shim, in the namespace, as root, at the first connection. Descriptor EGRESS_FD_CONTROL gives the configuration as one line:
 *   {"uid": N, "resolver": "a.b.c.d", "domains": [pattern…]}
 * and EGRESS_FD_LISTENER is the listening socket. When the control's other end closes, no more connections are accepted and the program ends
 * with the last one that it has. It runs as a user of its own who may nothing, and dies with the shim.
 */
#pragma once

#include <jansson.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "vm/net_egress.h"

/* Of one guest, at once; one more is reset. */
#define EGRESS_CONNECTIONS_MAX 512
/* From accepting to having said the name, and from there to being connected. */
#define EGRESS_NAME_TIMEOUT_MS 10000
#define EGRESS_CONNECT_TIMEOUT_MS 20000
/* Addresses of one name that are tried. */
#define EGRESS_ADDRESSES_MAX 8

/* resolve.c */
int resolver_open(uv_loop_t *loop, const char *server, struct error *err);
struct resolution;
/* Asks for the IPv4 addresses of `name`. `done` gets those that a guest may reach, at most EGRESS_ADDRESSES_MAX, borrowed; none at a failure. It may
 * come before this returns, which is then NULL. */
struct resolution *resolve(const char *name, void (*done)(void *data, const struct in_addr *addresses, size_t count), void *data);
/* `done` will not come any more. */
void resolution_forget(struct resolution *r);

/* dial.c */
struct dial;
/* Tries the addresses in turn. `done` gets a connected socket, which it owns, or -1; it never comes before this returns. */
struct dial *dial_start(uv_loop_t *loop, const struct in_addr *addresses, size_t count, in_port_t port, void (*done)(void *data, int fd), void *data);
/* Gives up; `done` will not come. */
void dial_cancel(struct dial *d);

/* connection.c */
/* Takes over what `listener` has accepted. `domains`: patterns of net_parse_domain(), NULL-terminated, living for ever. */
void connection_accept(uv_stream_t *listener, const char *const *domains);
/* Called whenever the last connection has ended. */
extern void (*connection_none_left)(void);
unsigned connection_count(void);
