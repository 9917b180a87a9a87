/* What an administrator has said about a node: node/<name>. A node without a record takes work. */
#include <stdlib.h>

#include "base/mem.h"
#include "store/internal.h"

int records_node_cordon(struct records *r, const char *name, bool cordoned, struct error *err)
{
        CLEANUP_FREE char *key = xasprintf("node/%s", name);

        return cordoned ? store_put(r->store, key, "{\"cordoned\":true}", sizeof("{\"cordoned\":true}") - 1, err) :
                          store_delete(r->store, key, err);
}

int records_node_admits(struct records *r, const char *name, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        int x = records_find_json(r, &j, NULL, err, "node/%s", name);

        if (x == 0 && json_bool(j, "cordoned", false))
                x = error_set(err, ERROR_UNAVAILABLE, "node '%s' is cordoned and takes no new work; 'vmon admin uncordon %s' ends that", name, name);
        return x;
}
