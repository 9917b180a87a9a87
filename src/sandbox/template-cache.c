/* A list of open snapshots ordered from the most to the least recently used. An item is `opening` while one thread runs
 * vm_template_open() without the lock; others that want the same build wait for it on the condition. Items with users are
 * never closed; of the unused ones the oldest beyond `idle_max` are, outside the lock.
 */
#include "sandbox/template-cache.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/str.h"

struct item {
        struct item *next;
        char *build_id;
        struct vm_template *template_; /* NULL while opening */
        unsigned users;
        bool forgotten; /* closed as soon as unused, whatever the bound */
};

struct template_cache {
        pthread_mutex_t lock;
        pthread_cond_t opened;
        struct item *first;
        char *kit_root, *backend;
        size_t idle_max;
};

struct template_cache *template_cache_new(const char *kit_root, const char *backend, size_t idle_max)
{
        struct template_cache *c = xcalloc(1, sizeof *c);
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->opened, NULL);
        c->kit_root = xstrdup_or_null(kit_root);
        c->backend = xstrdup_or_null(backend);
        c->idle_max = idle_max;
        return c;
}

static void item_free(struct item *i)
{
        if (!i)
                return;
        if (i->template_)
                vm_template_close(i->template_);
        free(i->build_id);
        free(i);
}

static void items_free(struct item *first)
{
        while (first) {
                struct item *next = first->next;
                item_free(first);
                first = next;
        }
}

void template_cache_free(struct template_cache *c)
{
        if (!c)
                return;
        items_free(c->first);
        pthread_cond_destroy(&c->opened);
        pthread_mutex_destroy(&c->lock);
        free(c->kit_root);
        free(c->backend);
        free(c);
}

static struct item *unlink_item(struct template_cache *c, struct item *i)
{
        for (struct item **p = &c->first; *p; p = &(*p)->next)
                if (*p == i) {
                        *p = i->next;
                        i->next = NULL;
                        return i;
                }
        return NULL;
}

static void push_front(struct template_cache *c, struct item *i)
{
        i->next = c->first;
        c->first = i;
}

static struct item *find(struct template_cache *c, const char *build_id)
{
        for (struct item *i = c->first; i; i = i->next)
                if (streq(i->build_id, build_id))
                        return i;
        return NULL;
}

/* Takes out the unused items beyond the limit; the caller closes them without the lock. */
static struct item *take_surplus(struct template_cache *c)
{
        struct item *surplus = NULL;
        size_t idle = 0;
        for (struct item **p = &c->first; *p;) {
                struct item *i = *p;
                if (i->users > 0 || (!i->forgotten && ++idle <= c->idle_max)) {
                        p = &i->next;
                        continue;
                }
                *p = i->next;
                i->next = surplus;
                surplus = i;
        }
        return surplus;
}

/* Called with the lock, which is given up meanwhile. */
static int open_item(struct template_cache *c, struct item *i, const char *build_dir, struct error *err)
{
        struct vm_template *t = NULL;
        pthread_mutex_unlock(&c->lock);
        int r = vm_template_open(build_dir, c->kit_root, c->backend, &t, err);
        pthread_mutex_lock(&c->lock);
        pthread_cond_broadcast(&c->opened);
        if (r < 0) {
                item_free(unlink_item(c, i));
                return r;
        }
        i->template_ = t;
        return 0;
}

int template_cache_acquire(struct template_cache *c, const char *build_id, const char *build_dir, struct vm_template **ret, struct error *err)
{
        int r = 0;
        pthread_mutex_lock(&c->lock);
        struct item *i = find(c, build_id);
        /* After a failure the item is gone: the waiters then try, and report, for themselves. */
        while (i && !i->template_) {
                pthread_cond_wait(&c->opened, &c->lock);
                i = find(c, build_id);
        }
        if (i) {
                push_front(c, unlink_item(c, i));
                i->users++;
        } else {
                i = xcalloc(1, sizeof *i);
                i->build_id = xstrdup(build_id);
                i->users = 1;
                push_front(c, i);
                r = open_item(c, i, build_dir, err);
        }
        if (r == 0)
                *ret = i->template_;
        struct item *surplus = take_surplus(c);
        pthread_mutex_unlock(&c->lock);
        items_free(surplus);
        return r;
}

bool template_cache_has_backend(struct template_cache *c)
{
        pthread_mutex_lock(&c->lock);
        bool has = c->backend != NULL;
        pthread_mutex_unlock(&c->lock);
        return has;
}

void template_cache_set_backend(struct template_cache *c, const char *backend)
{
        pthread_mutex_lock(&c->lock);
        if (!c->backend)
                c->backend = xstrdup(backend);
        pthread_mutex_unlock(&c->lock);
}

bool template_cache_uses(struct template_cache *c, const char *build_id)
{
        pthread_mutex_lock(&c->lock);
        const struct item *i = find(c, build_id);
        bool uses = i && i->users > 0;
        pthread_mutex_unlock(&c->lock);
        return uses;
}

void template_cache_forget(struct template_cache *c, const char *build_id)
{
        pthread_mutex_lock(&c->lock);
        struct item *i = find(c, build_id);
        if (i)
                i->forgotten = true;
        struct item *surplus = take_surplus(c);
        pthread_mutex_unlock(&c->lock);
        items_free(surplus);
}

void template_cache_release(struct template_cache *c, struct vm_template *t)
{
        if (!t)
                return;
        pthread_mutex_lock(&c->lock);
        for (struct item *i = c->first; i; i = i->next)
                if (i->template_ == t)
                        i->users--;
        struct item *surplus = take_surplus(c);
        pthread_mutex_unlock(&c->lock);
        items_free(surplus);
}
