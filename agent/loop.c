/* Theory of operation: loop_call() queues a record on the caller's stack and waits for it on a condition; the
 * loop takes all queued records at each wake-up of one uv_async_t.
 */
#include "loop.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

struct pending {
        struct pending *next;
        void (*fn)(void *data);
        void *data;
        bool done;
};

uv_loop_t *agent_loop;
static uv_async_t wake_up;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static struct pending *queue;

static void run_queue(uv_async_t *handle)
{
        struct pending *list;

        (void)handle;
        pthread_mutex_lock(&lock);
        list = queue;
        queue = NULL;
        pthread_mutex_unlock(&lock);
        while (list) {
                struct pending *p = list;

                list = p->next;
                p->fn(p->data);
                pthread_mutex_lock(&lock);
                p->done = true;
                pthread_cond_broadcast(&finished);
                pthread_mutex_unlock(&lock);
        }
}

void loop_init(void)
{
        agent_loop = uv_default_loop();
        if (!agent_loop || uv_async_init(agent_loop, &wake_up, run_queue) < 0)
                abort();
}

void loop_call(void (*fn)(void *data), void *data)
{
        struct pending p = { .fn = fn, .data = data };
        struct pending **end;

        pthread_mutex_lock(&lock);
        for (end = &queue; *end; end = &(*end)->next)
                ;
        *end = &p;
        uv_async_send(&wake_up);
        while (!p.done)
                pthread_cond_wait(&finished, &lock);
        pthread_mutex_unlock(&lock);
}

struct timer {
        uv_timer_t handle;
        void (*fn)(void *data);
        void *data;
};

static void fire(uv_timer_t *handle)
{
        struct timer *t = handle->data;

        t->fn(t->data);
}

struct timer *timer_start(uint64_t delay_ms, uint64_t repeat_ms, void (*fn)(void *data), void *data)
{
        struct timer *t = xcalloc(1, sizeof(*t));

        t->fn = fn;
        t->data = data;
        uv_timer_init(agent_loop, &t->handle);
        t->handle.data = t;
        uv_update_time(agent_loop);
        uv_timer_start(&t->handle, fire, delay_ms, repeat_ms);
        return t;
}

void timer_again(struct timer *t)
{
        uv_timer_again(&t->handle);
}

static void free_handle(uv_handle_t *handle)
{
        free(handle->data);
}

struct timer *timer_free(struct timer *t)
{
        if (t)
                uv_close((uv_handle_t *)&t->handle, free_handle);
        return NULL;
}
