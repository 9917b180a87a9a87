/* vmon-shim: the supervisor of one virtual machine.
 *
 * Start: the driver spawns it with one end of a socket pair as descriptor 3, and QEMU's memory and disks under
 * the numbers of enum qemu_fd. The first line on descriptor 3 is the configuration; the answer comes when QEMU's
 * monitor has answered (or start-up failed). From then on descriptor 3 is a client like those of <dir>/shim.sock, and
 * nothing happens when it closes: the shim outlives the driver.
 *
 * Order: slot (uid) -> sockets in <dir> -> network namespace and tap -> virtiofsd -> cgroup -> QEMU -> rest of the network
 * while QEMU starts -> poll loop. End, from any side: QEMU reaped -> virtiofsd -> network -> cgroup -> exit.json -> exit.
 *
 * Protocol: JSON lines, one request at a time per connection, answers {"ok":true,…} or
 * {"error":{"kind":…,"message":…,"errno":…}}; a descriptor travels with the line's first byte.
 *
 *   status                              {"id","shim_pid","qemu_pid","slot","expires_at_ns","limits":[…]}
 *   connect {"port"}                    + descriptor of a TCP connection to the guest (network user: to slirp, which resets it when the
 *                                       guest does not accept)
 *   qmp {"execute","arguments","await"} + optional descriptor; {"return",…} and, with await, {"event":data}
 *   console                             + descriptor of a memfd with the last bytes, at offset 0
 *   set-expiry {"expires_at_ns"}
 *   set-egress {"egress":{"allow":[…],"deny":[…],"domains":[…]}}   what the guest may reach (vm/net.h); also in the configuration
 *   kill {"reason"}                     answered at once; the end shows as end-of-stream
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"
#include "ring.h"
#include "vm/vm.h"

/* Connections served at once; more wait in the backlog. */
#define SHIM_CLIENTS_MAX 256
/* How long a guest may take to accept a connection. */
#define SHIM_CONNECT_TIMEOUT_MS 10000
#define SHIM_CONSOLE_BYTES (64u << 10)
#define SHIM_ERRORS_BYTES (4u << 10)
/* Users of QEMU and of vmon-egress, plus the slot. */
#define UID_BASE 1000000u
#define EGRESS_UID_BASE 1010000u
/* First number for the shim's own descriptors, out of the way of enum qemu_fd. */
#define SHIM_FD_HIGH 300

struct client;
struct egress;
struct net;

struct monitor {
        int fd;
        struct buf in;
        bool ready;            /* capabilities negotiated */
        bool guest_shutdown;   /* SHUTDOWN event by the guest */
        json_int_t next_id;
        struct client *active; /* whose command is at QEMU */
};

struct shim {
        char *id, *dir;
        json_t *config;        /* until QEMU runs */
        int dirfd;
        int slot_fd, slot;     /* -1 without root */
        uid_t uid;
        enum vm_network network;
        struct net *net;
        char *cgroups[4];
        pid_t qemu, virtiofsd;
        int qemu_pidfd, virtiofsd_pidfd;
        int listen_fd, timer_fd, signal_fd;
        int console_fd, errors_fd, share_errors_fd;
        int tap_fd, fs_fd, fs_listen_fd, agent_fd; /* until QEMU runs */
        struct ring console, errors;
        struct monitor monitor;
        struct client *clients;
        unsigned client_count;
        struct forward {
                uint16_t guest, host;
        } *forwards;           /* network user */
        size_t forward_count;
        struct egress *egress; /* newest first */
        unsigned egress_count;
        int64_t expires_at_ns;
        bool ending;
        const char *reason;    /* why it was ended: "killed", "expired"; NULL = by itself */
        bool end_on_full;  /* a write that the host's disk has no room for ends the VM, instead of stopping it until there is */
        char *kill_reason;
        int qemu_status;       /* of waitpid */
        bool qemu_reaped;
};

/* guest.c: QEMU as a child. */
int guest_spawn(struct shim *s, struct error *err);
/* share.c: virtiofsd as a child; makes both ends of the vhost-user socket. No-op without "share" in the config. */
int share_spawn(struct shim *s, struct error *err);

/* slot.c: claims a number (and by it a uid) that no other VM of this host has; held while slot_fd is open. */
int slot_claim(int *ret_slot, int *ret_fd, struct error *err);

/* cgroup.c: limits where the host has them; what is missing is left out. */
void cgroup_create(struct shim *s, unsigned memory_mib, unsigned vcpus);
void cgroup_join(const struct shim *s); /* in the child */
void cgroup_remove(struct shim *s);

/* monitor.c */
void monitor_readable(struct shim *s);
void monitor_queue(struct shim *s); /* sends the next waiting command, if any */
void monitor_closed(struct shim *s);

/* client.c */
struct client *client_new(struct shim *s, int fd, bool starting);
void client_accept(struct shim *s);
size_t client_poll_size(const struct shim *s);
struct pollfd;
size_t client_poll_fill(struct shim *s, struct pollfd *fds);
void client_poll_handle(struct shim *s, const struct pollfd *fds, size_t n);
int client_next_timeout_ms(const struct shim *s);
void client_started(struct shim *s, const struct error *err);
void client_qmp_result(struct client *c, const json_t *line);
void client_qmp_event(struct shim *s, const json_t *line);
struct client *client_next_command(struct shim *s, const char **ret_command, const json_t **ret_arguments, int *ret_fd);
void client_qmp_lost(struct shim *s);
void client_flush(struct shim *s); /* what can leave now */

/* forward.c: QMP requests (the caller decrefs), and what the list says. */
json_t *forward_add_request(unsigned port);
json_t *forward_list_request(void);
void forward_note_all(struct shim *s, const char *list);
unsigned forward_find(const struct shim *s, unsigned port); /* the host's port, or 0 */

/* egress.c: who decides on connections by domain. Takes the listener; -1 = no domains any more. */
void egress_replace(struct shim *s, int listener, const json_t *domains);
void egress_end(struct shim *s);
size_t egress_poll_size(const struct shim *s);
size_t egress_poll_fill(const struct shim *s, struct pollfd *fds);
void egress_poll_handle(struct shim *s, const struct pollfd *fds, size_t n);

/* loop.c */
void shim_end(struct shim *s, const char *reason); /* kills QEMU; the loop ends when it is reaped */
int shim_loop(struct shim *s);
int shim_set_timer(struct shim *s, int64_t expires_at_ns);
