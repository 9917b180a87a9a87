/* What a sandbox may reach (sandbox-api 13): kept with it as the API was told, handed to its supervisor as lists of IPv4 addresses and
 * ranges, and of domains. Guests have no IPv6, so entries of that kind have nothing to do. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/manager.h"
#include "vm/net.h"
#include "vm/net_domain.h"

static void sort_entries(const json_t *list, json_t *addresses, json_t *domains)
{
        char cidr[NET_CIDR_MAX], domain[NET_DOMAIN_MAX];
        size_t n;
        json_t *v;
        json_array_foreach((json_t *)list, n, v)
                if (net_parse_cidr(json_string_value(v) ?: "", cidr))
                        json_array_append(addresses, v);
                else if (net_parse_domain(json_string_value(v) ?: "", domain))
                        json_array_append_new(domains, json_string(domain));
}

json_t *manager_egress(const struct sandbox_info *i)
{
        json_t *allow = json_array(), *deny = json_array(), *domains = json_array();
        sort_entries(json_object_get(i->network, "allowOut"), allow, domains);
        sort_entries(json_object_get(i->network, "denyOut"), deny, domains);
        if (json_is_false(i->allow_internet_access))
                json_array_append_new(deny, json_string("0.0.0.0/0"));
        if (json_array_size(allow) + json_array_size(deny) > 0)
                return json_pack("{s:o, s:o, s:o}", "allow", allow, "deny", deny, "domains", domains);
        json_decref(allow);
        json_decref(deny);
        json_decref(domains);
        return NULL;
}

int manager_check_network(const struct sandbox_manager *m, const struct sandbox_info *i, struct error *err)
{
        json_t *egress = m->network == VM_NETWORK_NAT ? NULL : manager_egress(i);
        if (!egress)
                return 0;
        json_decref(egress);
        return error_set(err, ERROR_INVALID, "this server runs with --network user, which cannot restrict what a sandbox reaches; leave "
                                             "allowOut, denyOut and allow_internet_access out, or run it as root with --network nat");
}

/* Store first, then the running rules: after a crash between the two adoption sets them again. */
static int apply(struct sandbox_manager *m, struct entry *e, const struct sandbox_info *changed, struct error *err)
{
        json_t *record = sandbox_record_write(changed, e->envd_token[0] != '\0', e->public_traffic), *egress = manager_egress(changed);
        int r = records_sandbox_put(m->records, e->id, record, err);
        if (r == 0)
                r = vm_set_egress(e->vm, egress, err);
        json_decref(record);
        json_decref(egress);
        return r;
}

static json_t *copy_json(const json_t *j)
{
        return j ? json_deep_copy(j) : NULL;
}

/* Takes `network`. */
static void set_network(struct sandbox_info *i, json_t *network, const json_t *allow_internet_access)
{
        json_decref(i->network);
        json_decref(i->allow_internet_access);
        i->network = network;
        i->allow_internet_access = copy_json(allow_internet_access);
}

static int change(struct sandbox_manager *m, struct entry *e, const json_t *allow_out, const json_t *deny_out,
                  const json_t *allow_internet_access, struct error *err)
{
        pthread_mutex_lock(&m->lock);
        struct sandbox_info *old = sandbox_info_copy(e->info), *changed = sandbox_info_copy(e->info);
        pthread_mutex_unlock(&m->lock);
        json_t *network = json_pack("{s:b, s:o, s:o}", "allowPublicTraffic", e->public_traffic, "allowOut", copy_json(allow_out) ?: json_array(),
                                    "denyOut", copy_json(deny_out) ?: json_array());
        json_t *mask = json_object_get(old->network, "maskRequestHost"); /* no matter of egress: it stays */
        if (mask)
                json_object_set(network, "maskRequestHost", mask);
        set_network(changed, network, allow_internet_access);
        int r = manager_check_network(m, changed, err);
        if (r == 0) {
                r = apply(m, e, changed, err);
                if (r < 0 && apply(m, e, old, NULL) < 0)
                        log_warn("sandbox %s: its network rules could not be put back", e->id);
        }
        if (r == 0) {
                pthread_mutex_lock(&m->lock);
                set_network(e->info, copy_json(network), allow_internet_access);
                pthread_mutex_unlock(&m->lock);
        }
        sandbox_info_free(old);
        sandbox_info_free(changed);
        return r;
}

int sandbox_set_network(struct sandbox_manager *m, const struct team *team, const char *id, const json_t *allow_out, const json_t *deny_out,
                        const json_t *allow_internet_access, struct error *err)
{
        struct entry *e = manager_acquire(m, team, id);
        if (!e) {
                struct sandbox_info *info = NULL;
                int r = sandbox_get(m, team, id, &info, err);
                sandbox_info_free(info);
                return r < 0 ? r : error_set(err, ERROR_CONFLICT, "Sandbox \"%s\" is not running: its network cannot be changed", id);
        }
        pthread_mutex_lock(&e->vm_lock);
        int r = change(m, e, allow_out, deny_out, allow_internet_access, err);
        pthread_mutex_unlock(&e->vm_lock);
        entry_unref(m, e);
        return r < 0 ? error_wrap(err, r, "change the network of sandbox %s", id) : 0;
}
