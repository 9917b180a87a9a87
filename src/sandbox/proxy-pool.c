/* A short array in the order of arrival: 256 entries are searched faster than a table of them is kept. */
#include "sandbox/proxy-pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"

struct kept {
        struct proxy_target target;
        uint64_t life, since_ms;
        int fd;
};

struct proxy_pool {
        struct kept kept[POOL_MAX]; /* oldest first */
        size_t count;
};

struct proxy_pool *proxy_pool_new(void)
{
        return xcalloc(1, sizeof(struct proxy_pool));
}

static int take_at(struct proxy_pool *p, size_t i)
{
        int fd = p->kept[i].fd;

        memmove(&p->kept[i], &p->kept[i + 1], (p->count - i - 1) * sizeof(p->kept[0]));
        p->count--;
        return fd;
}

void proxy_pool_free(struct proxy_pool *p)
{
        if (!p)
                return;
        while (p->count)
                close(take_at(p, p->count - 1));
        free(p);
}

void proxy_pool_add(struct proxy_pool *p, const struct proxy_target *target, uint64_t life, int fd, uint64_t now_ms)
{
        if (p->count == POOL_MAX)
                close(take_at(p, 0));
        p->kept[p->count++] = (struct kept){.target = *target, .life = life, .since_ms = now_ms, .fd = fd};
}

/* An idle connection has nothing to read: bytes nobody asked for would be taken for the next answer. */
static bool is_usable(const struct kept *k, uint64_t now_ms)
{
        char byte;

        return now_ms - k->since_ms < POOL_KEEP_MS && recv(k->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0;
}

int proxy_pool_take(struct proxy_pool *p, const struct proxy_target *target, uint64_t life, uint64_t now_ms)
{
        for (size_t i = p->count; i-- > 0;) {
                const struct kept *k = &p->kept[i];
                bool usable;
                int fd;

                if (k->target.port != target->port || !streq(k->target.id, target->id))
                        continue;
                usable = k->life == life && is_usable(k, now_ms);
                fd = take_at(p, i);
                if (usable)
                        return fd;
                close(fd);
        }
        return -1;
}

bool proxy_pool_sweep(struct proxy_pool *p, uint64_t now_ms, bool (*current)(void *userdata, const char *id, uint64_t life), void *userdata)
{
        for (size_t i = p->count; i-- > 0;)
                if (!is_usable(&p->kept[i], now_ms) || !current(userdata, p->kept[i].target.id, p->kept[i].life))
                        close(take_at(p, i));
        return p->count > 0;
}
