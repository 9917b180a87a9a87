/* nat: the VM's own network namespace (vm/net.h). The shim stays inside: that is how it reaches the guest's ports. */
#include "network.h"

#include "base/json.h"
#include "vm/net.h"

int network_begin(struct shim *s, struct error *err)
{
        struct net_config c = {.slot = (unsigned)s->slot,
                               .owner = s->dir,
                               .allow_private = json_bool(s->config, "allow_private_network", false)};

        int r;

        if (s->network != VM_NETWORK_NAT)
                return 0;
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

void network_end(struct shim *s)
{
        net_end(s->net);
        s->net = NULL;
}
