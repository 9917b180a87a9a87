/* nat: the VM's own network namespace (vm/net.h). The shim stays inside: that is how it reaches the guest's ports. */
#include "network.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/mem.h"
#include "vm/net.h"

/* The strings of an array, borrowed; the caller frees the list. What is no string becomes "", which is no address. */
static const char **strings_of(const json_t *list)
{
        const char **ret = xcalloc(json_array_size(list) + 1, sizeof *ret);

        for (size_t i = 0; i < json_array_size(list); i++) {
                const char *s = json_string_value(json_array_get(list, i));

                ret[i] = s ? s : "";
        }
        return ret;
}

int network_begin(struct shim *s, struct error *err)
{
        const json_t *egress = json_object_get(s->config, "egress");
        CLEANUP_FREE const char **allow = strings_of(json_object_get(egress, "allow")), **deny = strings_of(json_object_get(egress, "deny"));
        struct net_config c = {.slot = (unsigned)s->slot,
                               .owner = s->dir,
                               .egress = {allow, deny},
                               .allow_private = json_bool(s->config, "allow_private_network", false)};
        int r;

        if (s->network != VM_NETWORK_NAT)
                return egress ? error_set(err, ERROR_UNAVAILABLE, "network rules need --network nat") : 0;
        if (s->slot < 0)
                return error_set(err, ERROR_UNAVAILABLE, "network nat needs root (run as root, or use --network user)");
        r = net_begin(&c, &s->net, err);
        if (r < 0)
                return r;
        s->tap_fd = net_tap_fd(s->net);
        return 0;
}

int network_finish(struct shim *s, struct error *err)
{
        return s->net ? net_finish(s->net, err) : 0;
}

int network_set_egress(struct shim *s, const json_t *egress, struct error *err)
{
        CLEANUP_FREE const char **allow = strings_of(json_object_get(egress, "allow")), **deny = strings_of(json_object_get(egress, "deny"));
        struct net_egress e = {allow, deny};

        if (!s->net)
                return error_set(err, ERROR_UNAVAILABLE, "network rules need --network nat");
        return net_set_egress(s->net, &e, err);
}

void network_end(struct shim *s)
{
        net_end(s->net);
        s->net = NULL;
}
