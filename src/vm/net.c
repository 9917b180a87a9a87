/* Making a VM's network.
 *
 * Theory of operation: a netlink socket belongs to the namespace in which it was opened, so the host's is opened
 * before the process unshares and the link to the host is made through it afterwards. All requests go over
 * rtnetlink directly: starting `ip` once costs more than everything here. Only the rules are loaded by a program,
 * nft, which starts in net_begin() and is waited for in net_finish(), so that it runs beside QEMU's start.
 *
 * Slots make the names and addresses unique. A namespace is torn down by the kernel a moment after its last process
 * is gone; a link of that name that still exists when a slot is reused is such a leftover and is deleted.
 */
#include "vm/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/subprocess.h"
#include "vm/net_rules.h"
#include "vm/rtnl.h"
#include "vm/vm.h"

#define RULES_MAX 61440         /* below a pipe's 64 KiB */
#define LISTENER_BACKLOG 128
#define ALIAS_MAX 255           /* the kernel's IFALIASZ without its NUL */
#define HOST_NETWORK 0x0ac80000u /* 10.200.0.0 */

extern char **environ;

struct net {
        struct net_config config;
        char link[IFNAMSIZ]; /* the host's end */
        int host, inner;     /* rtnetlink sockets */
        int namespace;
        int tap;
        int listener;        /* for connections that domains decide on, -1 = none or taken */
        int nft_errors;      /* its standard error, -1 when it is not running */
        pid_t nft;
};

static int write_sysctl(const char *path, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);

        if (fd < 0 || write(fd, "1", 1) != 1)
                return error_errno(err, errno, "set %s to 1", path);
        return 0;
}

/* Is the host's table there? A question to the kernel, where asking nft would be a process. */
static bool host_table_exists(void)
{
        struct nfgenmsg body = {.nfgen_family = AF_INET, .version = NFNETLINK_V0};
        struct rtnl_message m;
        CLEANUP_CLOSE int fd = rtnl_open(NETLINK_NETFILTER);

        rtnl_begin(&m, (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETTABLE, 0, &body, sizeof(body));
        rtnl_adds(&m, NFTA_TABLE_NAME, "vmon");
        return fd >= 0 && rtnl_call(fd, &m, NULL) == 0;
}

int net_host_setup(struct error *err)
{
        CLEANUP_BUF struct buf rules = {};
        char resolver[NET_ADDRESS_MAX];
        int r = write_sysctl("/proc/sys/net/ipv4/ip_forward", err);

        if (r >= 0) {
                net_rules_host(&rules, net_host_resolver(resolver) ? resolver : NULL);
                r = subprocess_feed((const char *const[]){"nft", "-f", "-", NULL}, rules.data, rules.len, NULL, err);
        }
        return r < 0 ? error_wrap(err, r, "set up the host's network (needs root and nftables)") : 0;
}

/* Starts nft on `rules` with its errors in a pipe. */
static int nft_spawn(const struct buf *rules, pid_t *ret, int *ret_errors)
{
        int in[2] = {-1, -1}, errors[2] = {-1, -1};
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attr;
        sigset_t none;
        int r = -EIO;

        if (pipe2(in, O_CLOEXEC) < 0 || pipe2(errors, O_CLOEXEC) < 0)
                return -errno;
        posix_spawn_file_actions_init(&actions);
        posix_spawnattr_init(&attr);
        sigemptyset(&none);
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
        posix_spawn_file_actions_adddup2(&actions, in[0], 0);
        posix_spawn_file_actions_adddup2(&actions, errors[1], 1);
        posix_spawn_file_actions_adddup2(&actions, errors[1], 2);
        /* The rules fit the pipe, so this cannot block, and the reader exists: no SIGPIPE. */
        if (rules->len <= RULES_MAX && write(in[1], rules->data, rules->len) == (ssize_t)rules->len)
                r = -posix_spawnp(ret, "nft", &actions, &attr, (char *[]){"nft", "-f", "-", NULL}, environ);
        posix_spawnattr_destroy(&attr);
        posix_spawn_file_actions_destroy(&actions);
        close(in[0]);
        close(in[1]);
        close(errors[1]);
        if (r < 0)
                close(errors[0]);
        else
                *ret_errors = errors[0];
        return r;
}

static int nft_wait(struct net *n, struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        int status = -1;
        ssize_t got;

        while ((got = read(n->nft_errors, buf_reserve(&text, 1024), 1024)) > 0 || (got < 0 && errno == EINTR))
                if (got > 0 && text.len < ERROR_MESSAGE_MAX)
                        buf_grew(&text, (size_t)got);
        close(n->nft_errors);
        n->nft_errors = -1;
        while (waitpid(n->nft, &status, 0) < 0 && errno == EINTR)
                ;
        if (status == 0)
                return 0;
        return error_set(err, ERROR_INTERNAL, "nft refused the rules (status %d): %s", status, buf_str(&text));
}

/* On every address of the namespace; the rules let nothing in but what they have redirected. */
static int listen_anywhere(int *ret, unsigned *ret_port, struct error *err)
{
        CLEANUP_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct sockaddr_in a = {.sin_family = AF_INET};
        socklen_t len = sizeof(a);

        if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0 || listen(fd, LISTENER_BACKLOG) < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0)
                return error_errno(err, errno, "listen for connections by domain");
        *ret_port = ntohs(a.sin_port);
        *ret = STEAL_FD(fd);
        return 0;
}

/* Starts nft with the rules. On success the listener for domains is n->listener, where there are any. */
static int load_rules(struct net *n, const struct net_egress *e, struct error *err)
{
        CLEANUP_BUF struct buf text = {};
        CLEANUP_CLOSE int listener = -1;
        char resolver[NET_ADDRESS_MAX];
        struct net_rules rules = {.resolver = net_host_resolver(resolver) ? resolver : NULL, .allow_private = n->config.allow_private, .egress = e};
        int r = 0;

        if (e->domains && *e->domains)
                r = listen_anywhere(&listener, &rules.listener_port, err);
        if (r == 0)
                r = net_rules_inner(&text, &rules, err);
        if (r < 0)
                return r;
        r = nft_spawn(&text, &n->nft, &n->nft_errors);
        if (r < 0)
                return error_errno(err, r, "start nft (apt-get install nftables)");
        if (n->listener >= 0)
                close(n->listener);
        n->listener = STEAL_FD(listener);
        return 0;
}

int net_set_egress(struct net *n, const struct net_egress *e, struct error *err)
{
        int r = load_rules(n, e, err);

        if (r == 0)
                r = nft_wait(n, err);
        if (r < 0 && n->listener >= 0) {
                close(n->listener);
                n->listener = -1;
        }
        return r;
}

int net_take_listener(struct net *n)
{
        return STEAL_FD(n->listener);
}

static int open_tap(struct net *n, struct error *err)
{
        struct ifreq request = {.ifr_name = NET_TAP, .ifr_flags = IFF_TAP | IFF_NO_PI};

        n->tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (n->tap < 0)
                return error_errno(err, errno, "open /dev/net/tun (load module tun)");
        /* One set for every guest whatever the host can do: snapshots keep it (design 6). */
        if (ioctl(n->tap, TUNSETIFF, &request) < 0 || ioctl(n->tap, TUNSETOFFLOAD, 0) < 0)
                return error_errno(err, errno, "make the tap device");
        return 0;
}

static int begin(struct net *n, struct error *err)
{
        int r;

        n->host = rtnl_open(NETLINK_ROUTE);
        if (n->host < 0)
                return error_errno(err, n->host, "open rtnetlink");
        if (unshare(CLONE_NEWNET) < 0)
                return error_errno(err, errno, "make a network namespace (network nat needs root; try --network user)");
        r = load_rules(n, &n->config.egress, err);
        n->config.egress = (struct net_egress){};
        if (r < 0)
                return r;
        n->inner = rtnl_open(NETLINK_ROUTE);
        n->namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (n->inner < 0 || n->namespace < 0)
                return error_errno(err, n->inner < 0 ? n->inner : errno, "open the network namespace");
        return open_tap(n, err);
}

int net_begin(const struct net_config *c, struct net **ret, struct error *err)
{
        struct net *n;
        int r;

        if (c->slot >= NET_SLOTS)
                return error_set(err, ERROR_INVALID, "network slot %u is not below %d", c->slot, NET_SLOTS);
        if (!host_table_exists()) {
                r = net_host_setup(err);
                if (r < 0)
                        return r;
        }
        n = xmalloc(sizeof(*n));
        *n = (struct net){.config = *c, .host = -1, .inner = -1, .namespace = -1, .tap = -1, .listener = -1, .nft_errors = -1};
        snprintf(n->link, sizeof(n->link), NET_HOST_PREFIX "%u", c->slot);
        r = begin(n, err);
        if (r < 0) {
                net_end(n);
                return error_wrap(err, r, "network nat");
        }
        *ret = n;
        return 0;
}

int net_tap_fd(const struct net *n)
{
        return n->tap;
}

static int delete_link(int fd, const char *name)
{
        struct ifinfomsg body = {.ifi_family = AF_UNSPEC};
        struct rtnl_message m;

        rtnl_begin(&m, RTM_DELLINK, 0, &body, sizeof(body));
        rtnl_adds(&m, IFLA_IFNAME, name);
        return rtnl_call(fd, &m, NULL);
}

/* The pair: `link` on the host, NET_UPLINK in the namespace. */
static int create_pair(const struct net *n)
{
        struct ifinfomsg body = {.ifi_family = AF_UNSPEC};
        struct rtnl_message m;
        struct rtattr *info, *data, *peer;

        rtnl_begin(&m, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body, sizeof(body));
        rtnl_adds(&m, IFLA_IFNAME, n->link);
        rtnl_addu32(&m, IFLA_MTU, NET_MTU);
        info = rtnl_nest(&m, IFLA_LINKINFO, NULL, 0);
        rtnl_adds(&m, IFLA_INFO_KIND, "veth");
        data = rtnl_nest(&m, IFLA_INFO_DATA, NULL, 0);
        peer = rtnl_nest(&m, VETH_INFO_PEER, &body, sizeof(body));
        rtnl_adds(&m, IFLA_IFNAME, NET_UPLINK);
        rtnl_addu32(&m, IFLA_MTU, NET_MTU);
        rtnl_addu32(&m, IFLA_NET_NS_FD, (uint32_t)n->namespace);
        rtnl_nest_end(&m, peer);
        rtnl_nest_end(&m, data);
        rtnl_nest_end(&m, info);
        return rtnl_call(n->host, &m, NULL);
}

/* The index of an interface, or -errno. */
static int link_index(int fd, const char *name)
{
        struct ifinfomsg body = {.ifi_family = AF_UNSPEC};
        struct rtnl_message m, reply = {};
        int r;

        rtnl_begin(&m, RTM_GETLINK, 0, &body, sizeof(body));
        rtnl_adds(&m, IFLA_IFNAME, name);
        r = rtnl_call(fd, &m, &reply);
        if (r < 0)
                return r;
        return ((struct ifinfomsg *)NLMSG_DATA(&reply.header))->ifi_index;
}

/* Brings an interface up; `mac` (6 bytes) and `mtu` where given. */
static int link_up(int fd, int index, const unsigned char *mac, uint32_t mtu)
{
        struct ifinfomsg body = {.ifi_family = AF_UNSPEC, .ifi_index = index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
        struct rtnl_message m;

        rtnl_begin(&m, RTM_NEWLINK, 0, &body, sizeof(body));
        if (mac)
                rtnl_add(&m, IFLA_ADDRESS, mac, 6);
        if (mtu)
                rtnl_addu32(&m, IFLA_MTU, mtu);
        return rtnl_call(fd, &m, NULL);
}

/* Says in the list of the host's links whose VM is behind this one. Only for the eye: a failure changes nothing. */
static void link_alias(int fd, int index, const char *owner)
{
        struct ifinfomsg body = {.ifi_family = AF_UNSPEC, .ifi_index = index};
        CLEANUP_FREE char *alias = xasprintf("%.*s", ALIAS_MAX, owner);
        struct rtnl_message m;

        rtnl_begin(&m, RTM_NEWLINK, 0, &body, sizeof(body));
        rtnl_adds(&m, IFLA_IFALIAS, alias);
        rtnl_call(fd, &m, NULL);
}

/* No IPv6 link-local address, no router solicitations on the host's end. Without IPv6 in the kernel: nothing to do. */
static void link_without_ipv6(int fd, int index)
{
        struct ifinfomsg body = {.ifi_family = AF_UNSPEC, .ifi_index = index};
        struct rtnl_message m;
        struct rtattr *families, *inet6;
        uint8_t none = IN6_ADDR_GEN_MODE_NONE;

        rtnl_begin(&m, RTM_NEWLINK, 0, &body, sizeof(body));
        families = rtnl_nest(&m, IFLA_AF_SPEC, NULL, 0);
        inet6 = rtnl_nest(&m, AF_INET6, NULL, 0);
        rtnl_add(&m, IFLA_INET6_ADDR_GEN_MODE, &none, sizeof(none));
        rtnl_nest_end(&m, inet6);
        rtnl_nest_end(&m, families);
        rtnl_call(fd, &m, NULL);
}

/* `address` in network order. */
static int address_add(int fd, int index, uint32_t address, unsigned prefix)
{
        struct ifaddrmsg body = {.ifa_family = AF_INET, .ifa_prefixlen = (uint8_t)prefix, .ifa_index = (unsigned)index};
        struct rtnl_message m;

        rtnl_begin(&m, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body, sizeof(body));
        rtnl_addu32(&m, IFA_LOCAL, address);
        rtnl_addu32(&m, IFA_ADDRESS, address);
        return rtnl_call(fd, &m, NULL);
}

static int route_default(int fd, uint32_t gateway)
{
        struct rtmsg body = {.rtm_family = AF_INET,
                             .rtm_table = RT_TABLE_MAIN,
                             .rtm_protocol = RTPROT_BOOT,
                             .rtm_scope = RT_SCOPE_UNIVERSE,
                             .rtm_type = RTN_UNICAST};
        struct rtnl_message m;

        rtnl_begin(&m, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &body, sizeof(body));
        rtnl_addu32(&m, RTA_GATEWAY, gateway);
        return rtnl_call(fd, &m, NULL);
}

static void parse_mac(const char *text, unsigned char out[6])
{
        sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &out[0], &out[1], &out[2], &out[3], &out[4], &out[5]);
}

/* The guest's MAC is known: the first connection to a fork need not wait for ARP. */
static int neighbour_add(int fd, int index, uint32_t address, const char *mac)
{
        struct ndmsg body = {.ndm_family = AF_INET, .ndm_ifindex = index, .ndm_state = NUD_PERMANENT};
        unsigned char bytes[6];
        struct rtnl_message m;

        parse_mac(mac, bytes);
        rtnl_begin(&m, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &body, sizeof(body));
        rtnl_addu32(&m, NDA_DST, address);
        rtnl_add(&m, NDA_LLADDR, bytes, sizeof(bytes));
        return rtnl_call(fd, &m, NULL);
}

static int finish_host_end(const struct net *n, uint32_t address)
{
        int index, r = create_pair(n);

        if (r == -EEXIST) {
                r = delete_link(n->host, n->link);
                if (r == 0 || r == -ENODEV)
                        r = create_pair(n);
        }
        if (r < 0)
                return r;
        index = link_index(n->host, n->link);
        if (index < 0)
                return index;
        if (n->config.owner)
                link_alias(n->host, index, n->config.owner);
        link_without_ipv6(n->host, index);
        r = address_add(n->host, index, address, 30);
        return r < 0 ? r : link_up(n->host, index, NULL, 0);
}

static int finish_uplink(const struct net *n, uint32_t address, uint32_t gateway)
{
        int index = link_index(n->inner, NET_UPLINK), r;

        if (index < 0)
                return index;
        r = address_add(n->inner, index, address, 30);
        if (r >= 0)
                r = link_up(n->inner, index, NULL, 0);
        return r < 0 ? r : route_default(n->inner, gateway);
}

static int finish_tap(const struct net *n)
{
        int index = link_index(n->inner, NET_TAP), r;
        unsigned char mac[6];

        if (index < 0)
                return index;
        parse_mac(NET_GATEWAY_MAC, mac);
        r = address_add(n->inner, index, inet_addr(VM_GUEST_GATEWAY), VM_GUEST_PREFIX);
        if (r >= 0)
                r = link_up(n->inner, index, mac, NET_MTU);
        return r < 0 ? r : neighbour_add(n->inner, index, inet_addr(VM_GUEST_ADDRESS), VM_GUEST_MAC);
}

int net_finish(struct net *n, struct error *err)
{
        uint32_t host = HOST_NETWORK + n->config.slot * 4 + 1;
        int r;

        /* Before any interface is up. The file is missing where the kernel has no IPv6. */
        write_sysctl("/proc/sys/net/ipv6/conf/all/disable_ipv6", NULL);
        write_sysctl("/proc/sys/net/ipv6/conf/default/disable_ipv6", NULL);
        r = finish_tap(n);
        if (r < 0)
                return error_errno(err, r, "network nat: configure the tap");
        /* Rules before there is a way out. */
        r = nft_wait(n, err);
        if (r < 0)
                return error_wrap(err, r, "network nat");
        r = finish_host_end(n, htonl(host));
        if (r < 0)
                return error_errno(err, r, "network nat: link %s to the host", n->link);
        r = finish_uplink(n, htonl(host + 1), htonl(host));
        if (r < 0)
                return error_errno(err, r, "network nat: configure the uplink");
        r = write_sysctl("/proc/sys/net/ipv4/ip_forward", err);
        return r < 0 ? error_wrap(err, r, "network nat") : 0;
}

static void close_if_open(int fd)
{
        if (fd >= 0)
                close(fd);
}

void net_end(struct net *n)
{
        if (!n)
                return;
        if (n->nft_errors >= 0)
                nft_wait(n, NULL);
        /* By its name in the namespace: the host's name may by now belong to another. */
        if (n->inner >= 0)
                delete_link(n->inner, NET_UPLINK);
        close_if_open(n->host);
        close_if_open(n->inner);
        close_if_open(n->namespace);
        close_if_open(n->tap);
        close_if_open(n->listener);
        free(n);
}
