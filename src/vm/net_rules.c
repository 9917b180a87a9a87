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
#include "vm/net_domain.h"
#include "vm/vm.h"

#define RESOLV_CONF_MAX 65536

/* 0/8 and 224/3 (multicast, reserved, broadcast) are no destinations beyond the first hop either. */
static const struct {
        const char *address;
        unsigned bits;
} always_denied[] = {{"0.0.0.0", 8},     {"10.0.0.0", 8},    {"100.64.0.0", 10},  {"127.0.0.0", 8},
                     {"169.254.0.0", 16}, {"172.16.0.0", 12}, {"192.168.0.0", 16}, {"224.0.0.0", 3}};

static uint32_t mask_of(unsigned bits)
{
        return bits ? htonl(~0u << (32 - bits)) : 0;
}

bool net_always_denied(struct in_addr address)
{
        for (size_t i = 0; i < sizeof(always_denied) / sizeof(*always_denied); i++)
                if ((address.s_addr & mask_of(always_denied[i].bits)) == inet_addr(always_denied[i].address))
                        return true;
        return false;
}

/* " ip daddr { range, … } verdict;" */
static void add_always_denied(struct buf *out, const char *match, const char *verdict)
{
        buf_addf(out, "%s ip daddr {", match);
        for (size_t i = 0; i < sizeof(always_denied) / sizeof(*always_denied); i++)
                buf_addf(out, "%s %s/%u", i ? "," : "", always_denied[i].address, always_denied[i].bits);
        buf_addf(out, " } %s;\n", verdict);
}

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
        a.s_addr &= mask_of((unsigned)bits);
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

static int check_domains(const char *const *list, size_t *count, struct error *err)
{
        char pattern[NET_DOMAIN_MAX];

        for (; list && *list; list++) {
                if (!net_parse_domain(*list, pattern))
                        return error_set(err, ERROR_INVALID, "'%s' is no domain", *list);
                if (++*count > NET_EGRESS_MAX)
                        return error_set(err, ERROR_INVALID, "a sandbox's network rules name more than %d domains", NET_EGRESS_MAX);
        }
        return 0;
}

static bool by_domain(const struct net_rules *r)
{
        return r->egress && r->egress->domains && *r->egress->domains;
}

/* TCP that no address decides on, to who can read which name it is for. */
static void add_redirect(struct buf *out, const struct net_rules *r)
{
        if (!r->allow_private)
                add_always_denied(out, " iifname \"" NET_TAP "\"", "return");
        buf_adds(out, " ip daddr " NET_PUBLIC_RESOLVER " tcp dport 53 return;\n");
        buf_addf(out, " jump allowed;\n"
                      " iifname \"" NET_TAP "\" ip saddr " VM_GUEST_ADDRESS " meta l4proto tcp redirect to :%u;\n", r->listener_port);
}

static void add_prerouting(struct buf *out, const struct net_rules *r, const char *resolver)
{
        if (!resolver && !by_domain(r))
                return;
        buf_adds(out, "chain prerouting { type nat hook prerouting priority -100;\n");
        if (resolver)
                buf_addf(out,
                         " iifname \"" NET_TAP "\" ip daddr " VM_GUEST_GATEWAY " meta l4proto { tcp, udp } th dport 53 "
                         "dnat to %s;\n",
                         resolver);
        if (by_domain(r))
                add_redirect(out, r);
        buf_adds(out, "}\n");
}

/* A chain of its own where two others need it. */
static int add_allowed(struct buf *out, const struct net_rules *r, size_t *count, struct error *err)
{
        int ret;

        if (!by_domain(r))
                return 0;
        buf_adds(out, "chain allowed {\n");
        ret = add_entries(out, r->egress->allow, "accept", count, err);
        buf_adds(out, "}\n");
        return ret < 0 ? ret : check_domains(r->egress->domains, count, err);
}

static int add_forward(struct buf *out, const struct net_rules *r, const char *resolver, size_t *count, struct error *err)
{
        int ret = 0;

        buf_adds(out, "chain forward { type filter hook forward priority 0; policy drop;\n"
                      " ct state established,related accept;\n"
                      " iifname != \"" NET_TAP "\" drop;\n"
                      " ip saddr != " VM_GUEST_ADDRESS " drop;\n");
        if (resolver)
                buf_addf(out, " ip daddr %s meta l4proto { tcp, udp } th dport 53 accept;\n", resolver);
        if (!r->allow_private)
                add_always_denied(out, "", "drop");
        if (by_domain(r))
                buf_adds(out, " ip daddr " NET_PUBLIC_RESOLVER " meta l4proto { tcp, udp } th dport 53 accept;\n"
                              " jump allowed;\n");
        else if (r->egress)
                ret = add_entries(out, r->egress->allow, "accept", count, err);
        if (r->egress && ret == 0)
                ret = add_entries(out, r->egress->deny, "drop", count, err);
        buf_adds(out, " accept; }\n");
        return ret;
}

int net_rules_inner(struct buf *out, const struct net_rules *r, struct error *err)
{
        const char *resolver = denies_all(r->egress) && !by_domain(r) ? NULL : r->resolver;
        size_t count = 0;
        int ret;

        buf_adds(out, "table ip vmon {}\ndelete table ip vmon\n"
                      "table ip vmon {\n");
        ret = add_allowed(out, r, &count, err);
        add_prerouting(out, r, resolver);
        buf_adds(out, "chain postrouting { type nat hook postrouting priority 100;\n"
                      " oifname \"" NET_UPLINK "\" masquerade; }\n");
        if (ret == 0)
                ret = add_forward(out, r, resolver, &count, err);
        buf_adds(out, "chain input { type filter hook input priority 0; policy drop;\n"
                      " ct state established,related accept;\n");
        if (by_domain(r))
                buf_addf(out, " iifname \"" NET_TAP "\" tcp dport %u ct status dnat accept;\n", r->listener_port);
        buf_adds(out, " iifname \"" NET_TAP "\" icmp type echo-request accept; }\n");
        /* Whoever takes the program over that reads the names gets no further than the guest. */
        if (by_domain(r) && !r->allow_private) {
                buf_adds(out, "chain output { type filter hook output priority 0;\n"
                              " oifname != \"" NET_UPLINK "\" accept;\n"
                              " ct state established,related accept;\n");
                if (resolver)
                        buf_addf(out, " ip daddr %s meta l4proto { tcp, udp } th dport 53 accept;\n", resolver);
                add_always_denied(out, "", "drop");
                buf_adds(out, "}\n");
        }
        buf_adds(out, "}\n");
        return ret;
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
