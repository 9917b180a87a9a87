#include "store/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

struct pending {
        struct pending *next;
        struct store_event event;
};

struct watch_hub {
        pthread_mutex_t lock; /* of it and of all its watches */
        struct store_watch *watches;
};

struct store_watch {
        struct watch_hub *hub;
        struct store_watch *next;
        char *prefix;
        pthread_cond_t arrived;
        struct pending *first, **last;
        size_t count, bytes;
        bool lost;
};

struct watch_hub *watch_hub_new(void)
{
        struct watch_hub *h = xcalloc(1, sizeof(*h));

        pthread_mutex_init(&h->lock, NULL);
        return h;
}

void watch_hub_free(struct watch_hub *h)
{
        if (!h)
                return;
        pthread_mutex_destroy(&h->lock);
        free(h);
}

struct store_watch *watch_hub_add(struct watch_hub *h, const char *prefix)
{
        struct store_watch *w = xcalloc(1, sizeof(*w));

        w->hub = h;
        w->prefix = xstrdup(prefix);
        w->last = &w->first;
        clock_cond_init(&w->arrived);
        pthread_mutex_lock(&h->lock);
        w->next = h->watches;
        h->watches = w;
        pthread_mutex_unlock(&h->lock);
        return w;
}

static void forget_all(struct store_watch *w)
{
        while (w->first) {
                struct pending *p = w->first;

                w->first = p->next;
                store_value_free(&p->event.value);
                free(p);
        }
        w->last = &w->first;
        w->count = w->bytes = 0;
}

static void deliver(struct store_watch *w, const struct store_write *write, int64_t revision)
{
        struct pending *p;

        if (w->lost) /* until its reader knows */
                return;
        if (w->count == WATCH_EVENTS_MAX || w->bytes + write->len > WATCH_BYTES_MAX) {
                forget_all(w);
                w->lost = true;
                return;
        }
        p = xcalloc(1, sizeof(*p));
        p->event.kind = write->data ? STORE_EVENT_PUT : STORE_EVENT_DELETE;
        p->event.value = (struct store_value){ .key = xstrdup(write->key), .len = write->len, .revision = revision };
        if (write->data)
                p->event.value.data = xmemdup(write->data, write->len + 1);
        *w->last = p;
        w->last = &p->next;
        w->count++;
        w->bytes += write->len;
}

void watch_hub_publish(struct watch_hub *h, const struct store_txn *t, int64_t revision)
{
        pthread_mutex_lock(&h->lock);
        for (struct store_watch *w = h->watches; w; w = w->next) {
                bool any = false;

                for (size_t i = 0; i < t->write_count; i++)
                        if (str_starts(t->writes[i].key, w->prefix)) {
                                deliver(w, &t->writes[i], revision);
                                any = true;
                        }
                if (any)
                        pthread_cond_signal(&w->arrived);
        }
        pthread_mutex_unlock(&h->lock);
}

int store_watch_next(struct store_watch *w, int timeout_ms, struct store_event *ret)
{
        int64_t until = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;
        struct timespec at = { .tv_sec = until / NSEC_PER_SEC, .tv_nsec = until % NSEC_PER_SEC };
        int rc = 0, got = 1;

        *ret = (struct store_event){};
        pthread_mutex_lock(&w->hub->lock);
        while (!w->first && !w->lost && rc == 0)
                rc = timeout_ms < 0 ? pthread_cond_wait(&w->arrived, &w->hub->lock) : pthread_cond_timedwait(&w->arrived, &w->hub->lock, &at);
        if (w->first) {
                struct pending *p = w->first;

                *ret = p->event;
                w->first = p->next;
                if (!w->first)
                        w->last = &w->first;
                w->count--;
                w->bytes -= p->event.value.len;
                free(p);
        } else if (w->lost) {
                w->lost = false;
                ret->kind = STORE_EVENT_LOST;
        } else {
                got = 0;
        }
        pthread_mutex_unlock(&w->hub->lock);
        return got;
}

void store_watch_free(struct store_watch *w)
{
        if (!w)
                return;
        pthread_mutex_lock(&w->hub->lock);
        for (struct store_watch **p = &w->hub->watches; *p; p = &(*p)->next)
                if (*p == w) {
                        *p = w->next;
                        break;
                }
        pthread_mutex_unlock(&w->hub->lock);
        forget_all(w);
        pthread_cond_destroy(&w->arrived);
        free(w->prefix);
        free(w);
}
