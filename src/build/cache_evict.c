/* What goes when there is no room.
 *
 * Theory of operation: using a layer uses all that it stands on, so the least recently used layer is always a leaf that no build
 * uses, together with those below it that nothing else has used since: a run, each of whose layers was last used for the leaf.
 * All of a run is equally old, and its inner layers are worth less than its leaf: only the leaf is a build's result. So an inner
 * layer of the run goes first, merged into its child, if that gives back at least half of its bytes: what the child overwrites
 * or removes. Most often it does not (two steps write different files), and then the leaf goes, which gives back all that it has.
 *
 * Where every layer is in use, one build fills the cache. Its inner layers may still be merged, because it has links of the
 * files that it needs: for the limit of layers whatever that gives back, for the one of bytes under the same condition. The layer
 * that a build has on top is never merged: the build is about to add to it.
 */
#include <string.h>

#include "base/str.h"
#include "build/cache_internal.h"

bool cache_fits(const struct build_cache *c, unsigned layers, uint64_t bytes)
{
        return c->count + layers <= c->max_layers && c->bytes + bytes <= c->max_bytes;
}

static struct entry *oldest_leaf(const struct build_cache *c)
{
        struct entry *oldest = NULL;

        for (struct entry *e = c->first; e; e = e->next)
                if (!e->pins && !e->busy && !cache_child(c, e) && (!oldest || e->used_ns < oldest->used_ns))
                        oldest = e;
        return oldest;
}

void cache_evict_leaves(struct build_cache *c)
{
        while (!cache_fits(c, 0, 0)) {
                struct entry *oldest = oldest_leaf(c);

                if (!oldest)
                        return;
                cache_drop_one(c, oldest);
        }
}

static bool known_to_fail(const struct entry *lower, const struct entry *upper, uint64_t min_gain)
{
        return streq(lower->tried_child, upper->instance) && lower->tried_gain < (int64_t)min_gain;
}

struct pair {
        struct entry *lower, *upper;
};

/* Of the least recently used pairs that may be merged and were not last used after `newest_ns`, the cheapest. */
static struct pair choose(const struct build_cache *c, int64_t newest_ns, bool any_gain)
{
        struct pair best = {};

        for (struct entry *e = c->first; e; e = e->next) {
                struct entry *child = cache_only_child(c, e);

                if (!child || e->busy || child->busy || e->pins != child->pins)
                        continue;
                if (e->used_ns > newest_ns || known_to_fail(e, child, any_gain ? 0 : e->bytes / 2))
                        continue;
                if (!best.lower || e->used_ns < best.lower->used_ns ||
                    (e->used_ns == best.lower->used_ns && e->bytes + child->bytes < best.lower->bytes + best.upper->bytes))
                        best = (struct pair){e, child};
        }
        return best;
}

bool cache_evict_one(struct build_cache *c, bool for_bytes)
{
        struct entry *leaf = oldest_leaf(c);
        bool any_gain = !leaf && !for_bytes;
        struct pair p = choose(c, leaf ? leaf->used_ns : INT64_MAX, any_gain);

        if (p.lower)
                cache_merge(c, p.lower, p.upper, any_gain ? 0 : p.lower->bytes / 2);
        else if (leaf)
                cache_drop_one(c, leaf);
        return p.lower || leaf;
}
