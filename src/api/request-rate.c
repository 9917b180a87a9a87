#include "api/request-rate.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

struct bucket {
        char *team_id;
        double tokens;
        int64_t filled_ns;
};

struct request_rate {
        pthread_mutex_t lock;
        struct bucket *buckets; /* one for each team with a limit that has made a request: as many as an administrator made */
        size_t count;
};

struct request_rate *request_rate_new(void)
{
        struct request_rate *r = xcalloc(1, sizeof(*r));

        pthread_mutex_init(&r->lock, NULL);
        return r;
}

struct request_rate *request_rate_free(struct request_rate *r)
{
        if (!r)
                return NULL;
        for (size_t i = 0; i < r->count; i++)
                free(r->buckets[i].team_id);
        free(r->buckets);
        pthread_mutex_destroy(&r->lock);
        free(r);
        return NULL;
}

static struct bucket *bucket_of(struct request_rate *r, const char *team_id, unsigned per_second, int64_t now_ns)
{
        for (size_t i = 0; i < r->count; i++)
                if (streq(r->buckets[i].team_id, team_id))
                        return &r->buckets[i];
        r->buckets = xreallocarray(r->buckets, r->count + 1, sizeof(*r->buckets));
        r->buckets[r->count] = (struct bucket){ xstrdup(team_id), per_second, now_ns };
        return &r->buckets[r->count++];
}

static bool take(struct bucket *b, unsigned per_second, int64_t now_ns)
{
        b->tokens += (double)(now_ns - b->filled_ns) / NSEC_PER_SEC * per_second;
        b->filled_ns = now_ns;
        if (b->tokens > per_second)
                b->tokens = per_second;
        if (b->tokens < 1)
                return false;
        b->tokens--;
        return true;
}

bool request_rate_take(struct request_rate *r, const char *team_id, unsigned per_second, int64_t now_ns)
{
        bool ok;

        if (per_second == 0)
                return true;
        pthread_mutex_lock(&r->lock);
        ok = take(bucket_of(r, team_id, per_second, now_ns), per_second, now_ns);
        pthread_mutex_unlock(&r->lock);
        return ok;
}
