/* Rules.
 *
 * Theory of operation: what a guest may reach is decided inside its own namespace, where only its own packets are:
 * replies pass, the resolver passes, ranges that are always denied (sandbox-api 13.2) drop, the rest passes. The
 * host's table backs this up for all VMs together: no traffic between VMs, none to the host itself, none into a VM
 * that the VM did not start. Both load as one transaction; "table; delete table; table" is nft's idiom for replacing.
 */
#include "vm/net_rules.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/vm.h"

#define RESOLV_CONF_MAX 65536
/* 0/8 and 224/3 (multicast, reserved, broadcast) are no destinations beyond the first hop either. */
#define ALWAYS_DENIED                                                                                         \
        "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16, " \
        "224.0.0.0/3"

bool net_parse_cidr(const char *text, char out[NET_CIDR_MAX])
{
        char address[NET_ADDRESS_MAX] = "";
        const char *slash = strchr(text, '/');
        size_t len = slash ? (size_t)(slash - text) : strlen(text);
        uint64_t bits = 32;
        struct in_addr a;

        if (len >= sizeof(address) || (slash && !str_to_u64(slash + 1, 32, &bits)))
                return false;
        memcpy(address, text, len);
        if (inet_pton(AF_INET, address, &a) != 1)
                return false;
        a.s_addr &= bits ? htonl(~0u << (32 - bits)) : 0;
        inet_ntop(AF_INET, &a, address, sizeof(address));
        snprintf(out, NET_CIDR_MAX, "%s/%u", address, (unsigned)bits);
        return true;
}

/* One rule an entry: a set refuses ranges that overlap. */
static int add_entries(struct buf *out, const char *const *list, const char *verdict, size_t *count, struct error *err)
{
        char cidr[NET_CIDR_MAX];

        for (; list && *list; list++) {
                if (!net_parse_cidr(*list, cidr))
                        return error_set(err, ERROR_INVALID, "'%s' is no IPv4 address or range", *list);
                if (++*count > NET_EGRESS_MAX)
                        return error_set(err, ERROR_INVALID, "a sandbox's network rules name more than %d addresses", NET_EGRESS_MAX);
                buf_addf(out, " ip daddr %s %s;\n", cidr, verdict);
        }
        return 0;
}

static bool denies_all(const struct net_egress *e)
{
        char cidr[NET_CIDR_MAX];

        for (const char *const *d = e ? e->deny : NULL; d && *d; d++)
                if (net_parse_cidr(*d, cidr) && streq(cidr, "0.0.0.0/0"))
                        return true;
        return false;
}

int net_rules_inner(struct buf *out, const char *resolver, bool allow_private, const struct net_egress *e, struct error *err)
{
        size_t count = 0;
        int r = 0;

        if (denies_all(e))
                resolver = NULL;
        buf_adds(out, "table ip vmon {}\ndelete table ip vmon\n"
                      "table ip vmon {\n");
        if (resolver)
                buf_addf(out,
                         "chain prerouting { type nat hook prerouting priority -100;\n"
                         " iifname \"" NET_TAP "\" ip daddr " VM_GUEST_GATEWAY " meta l4proto { tcp, udp } th dport 53 "
                         "dnat to %s; }\n",
                         resolver);
        buf_adds(out, "chain postrouting { type nat hook postrouting priority 100;\n"
                      " oifname \"" NET_UPLINK "\" masquerade; }\n"
                      "chain forward { type filter hook forward priority 0; policy drop;\n"
                      " ct state established,related accept;\n"
                      " iifname != \"" NET_TAP "\" drop;\n"
                      " ip saddr != " VM_GUEST_ADDRESS " drop;\n");
        if (resolver)
                buf_addf(out, " ip daddr %s meta l4proto { tcp, udp } th dport 53 accept;\n", resolver);
        if (!allow_private)
                buf_adds(out, " ip daddr { " ALWAYS_DENIED " } drop;\n");
        if (e)
                r = add_entries(out, e->allow, "accept", &count, err);
        if (e && r == 0)
                r = add_entries(out, e->deny, "drop", &count, err);
        buf_adds(out, " accept; }\n"
                      "chain input { type filter hook input priority 0; policy drop;\n"
                      " ct state established,related accept;\n"
                      " iifname \"" NET_TAP "\" icmp type echo-request accept; }\n"
                      "}\n");
        return r;
}

void net_rules_host(struct buf *out, const char *resolver)
{
        buf_adds(out, "table ip vmon {}\ndelete table ip vmon\n"
                      "table ip vmon {\n"
                      "chain postrouting { type nat hook postrouting priority 100;\n"
                      " ip saddr 10.200.0.0/16 oifname != \"" NET_HOST_PREFIX "*\" masquerade; }\n"
                      "chain forward { type filter hook forward priority 0;\n"
                      " iifname \"" NET_HOST_PREFIX "*\" oifname \"" NET_HOST_PREFIX "*\" drop;\n"
                      " iifname \"" NET_HOST_PREFIX "*\" ip saddr != 10.200.0.0/16 drop;\n"
                      " iifname \"" NET_HOST_PREFIX "*\" accept;\n"
                      " oifname \"" NET_HOST_PREFIX "*\" ct state established,related accept;\n"
                      " oifname \"" NET_HOST_PREFIX "*\" drop; }\n"
                      "chain input { type filter hook input priority 0;\n");
        /* The host may be its own resolver, under an address that is not a loopback one. */
        if (resolver)
                buf_addf(out,
                         " iifname \"" NET_HOST_PREFIX "*\" ip daddr %s meta l4proto { tcp, udp } th dport 53 accept;\n",
                         resolver);
        buf_adds(out, " iifname \"" NET_HOST_PREFIX "*\" drop; }\n"
                      "}\n");
}

/* The address behind "nameserver" on one line, when it is usable from inside a namespace. */
static bool parse_line(const char *line, size_t len, char out[NET_ADDRESS_MAX])
{
        CLEANUP_FREE char *copy = xstrndup(line, len);
        char *save = NULL, *word = strtok_r(copy, " \t\r", &save), *address = strtok_r(NULL, " \t\r", &save);
        struct in_addr a;

        if (!streq(word, "nameserver") || !address || inet_pton(AF_INET, address, &a) != 1)
                return false;
        if ((ntohl(a.s_addr) >> 24) == 127 || a.s_addr == 0)
                return false;
        inet_ntop(AF_INET, &a, out, NET_ADDRESS_MAX);
        return true;
}

bool net_parse_resolver(const char *text, char out[NET_ADDRESS_MAX])
{
        while (*text) {
                size_t len = strcspn(text, "\n");

                if (parse_line(text, len, out))
                        return true;
                text += len + (text[len] == '\n');
        }
        return false;
}

bool net_host_resolver(char out[NET_ADDRESS_MAX])
{
        static const char *const files[] = {"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", NULL};

        for (const char *const *f = files; *f; f++) {
                CLEANUP_BUF struct buf text = {};

                if (file_read(*f, RESOLV_CONF_MAX, &text, NULL) >= 0 && net_parse_resolver(buf_str(&text), out))
                        return true;
        }
        return false;
}
