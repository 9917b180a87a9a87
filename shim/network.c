/* nat: the VM's own network namespace (vm/net.h). The shim stays inside: that is how it reaches the guest's ports. */
#include "network.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/mem.h"
#include "vm/net.h"

const char **network_strings(const json_t *list)
{
        const char **ret = xcalloc(json_array_size(list) + 1, sizeof *ret);

        for (size_t i = 0; i < json_array_size(list); i++) {
                const char *s = json_string_value(json_array_get(list, i));

                ret[i] = s ? s : "";
        }
        return ret;
}

struct lists {
        const char **allow, **deny, **domains;
};

static struct lists lists_of(const json_t *egress)
{
        return (struct lists){network_strings(json_object_get(egress, "allow")), network_strings(json_object_get(egress, "deny")),
                              network_strings(json_object_get(egress, "domains"))};
}

static void lists_free(struct lists *l)
{
        free(l->allow);
        free(l->deny);
        free(l->domains);
}

int network_begin(struct shim *s, struct error *err)
{
        const json_t *egress = json_object_get(s->config, "egress");
        CLEANUP(lists_free) struct lists l = lists_of(egress);
        struct net_config c = {.slot = (unsigned)s->slot,
                               .owner = s->dir,
                               .egress = {l.allow, l.deny, l.domains},
                               .allow_private = json_bool(s->config, "allow_private_network", false)};
        int r;

        if (s->network != VM_NETWORK_NAT)
                return egress ? error_set(err, ERROR_UNAVAILABLE, "network rules need --network nat") : 0;
        if (s->slot < 0)
                return error_set(err, ERROR_UNAVAILABLE, "network nat needs root (run as root, or use --network user)");
        r = net_begin(&c, &s->net, err);
        if (r < 0)
                return r;
        egress_replace(s, net_take_listener(s->net), json_object_get(egress, "domains"));
        s->tap_fd = net_tap_fd(s->net);
        return 0;
}

int network_finish(struct shim *s, struct error *err)
{
        return s->net ? net_finish(s->net, err) : 0;
}

int network_set_egress(struct shim *s, const json_t *egress, struct error *err)
{
        CLEANUP(lists_free) struct lists l = lists_of(egress);
        struct net_egress e = {l.allow, l.deny, l.domains};
        int r;

        if (!s->net)
                return error_set(err, ERROR_UNAVAILABLE, "network rules need --network nat");
        r = net_set_egress(s->net, &e, err);
        if (r == 0)
                egress_replace(s, net_take_listener(s->net), json_object_get(egress, "domains"));
        return r;
}

void network_end(struct shim *s)
{
        egress_end(s);
        net_end(s->net);
        s->net = NULL;
}
