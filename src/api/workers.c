/* Two lists under one lock: jobs waiting for a thread, jobs waiting for the loop.
 *
 * At most one thread is being woken at a time, and it wakes the next when it finds more work than its own: with short jobs a few
 * threads that are awake take them all, and with jobs that block the others follow one by one. The loop is woken by the first
 * of the jobs that it takes together.
 */
#include "api/workers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

struct list {
        struct job *first, **last;
};

struct workers {
        pthread_mutex_t lock;
        pthread_cond_t more;
        struct list queue, finished;
        bool stopping;
        unsigned idle; /* threads that wait */
        bool waking;   /* one of them was signalled and has not run yet */
        uv_async_t wake;
        pthread_t *threads;
        unsigned count;
};

static void list_init(struct list *l)
{
        l->first = NULL;
        l->last = &l->first;
}

static void list_put(struct list *l, struct job *j)
{
        j->next = NULL;
        *l->last = j;
        l->last = &j->next;
}

static struct job *list_get(struct list *l)
{
        struct job *j = l->first;

        if (!j)
                return NULL;
        l->first = j->next;
        if (!l->first)
                l->last = &l->first;
        return j;
}

/* Under the lock. */
static void wake_one(struct workers *w)
{
        if (!w->queue.first || w->idle == 0 || w->waking)
                return;
        w->waking = true;
        pthread_cond_signal(&w->more);
}

static void run_job(struct workers *w, struct job *j)
{
        bool first;

        wake_one(w);
        pthread_mutex_unlock(&w->lock);
        j->run(j);
        pthread_mutex_lock(&w->lock);
        first = !w->finished.first;
        list_put(&w->finished, j);
        if (!first)
                return;
        pthread_mutex_unlock(&w->lock);
        uv_async_send(&w->wake);
        pthread_mutex_lock(&w->lock);
}

static void *worker_main(void *arg)
{
        struct workers *w = arg;

        pthread_mutex_lock(&w->lock);
        for (;;) {
                struct job *j = list_get(&w->queue);

                if (j) {
                        run_job(w, j);
                        continue;
                }
                if (w->stopping)
                        break;
                w->idle++;
                pthread_cond_wait(&w->more, &w->lock);
                w->idle--;
                w->waking = false;
        }
        pthread_mutex_unlock(&w->lock);
        return NULL;
}

static void finish_jobs(struct workers *w)
{
        struct list done;

        pthread_mutex_lock(&w->lock);
        done = w->finished;
        list_init(&w->finished);
        pthread_mutex_unlock(&w->lock);
        for (struct job *j = done.first, *next; j; j = next) {
                next = j->next; /* done() may submit or free it */
                j->done(j);
        }
}

static void on_wake(uv_async_t *a)
{
        finish_jobs(a->data);
}

static void on_wake_closed(uv_handle_t *h)
{
        struct workers *w = h->data;

        pthread_mutex_destroy(&w->lock);
        pthread_cond_destroy(&w->more);
        free(w->threads);
        free(w);
}

static void join_threads(struct workers *w)
{
        pthread_mutex_lock(&w->lock);
        w->stopping = true;
        pthread_cond_broadcast(&w->more);
        pthread_mutex_unlock(&w->lock);
        while (w->count)
                pthread_join(w->threads[--w->count], NULL);
}

static int start_threads(struct workers *w, unsigned n)
{
        sigset_t all, old;
        int r = 0;

        /* Signals are the loop thread's. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        w->threads = xcalloc(n, sizeof(*w->threads));
        while (!r && w->count < n) {
                r = pthread_create(&w->threads[w->count], NULL, worker_main, w);
                w->count += r == 0;
        }
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        return -r;
}

int workers_new(uv_loop_t *loop, unsigned threads, struct workers **ret)
{
        struct workers *w = xcalloc(1, sizeof(*w));
        int r;

        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->more, NULL);
        list_init(&w->queue);
        list_init(&w->finished);
        r = uv_async_init(loop, &w->wake, on_wake);
        if (r < 0) {
                free(w);
                return r;
        }
        w->wake.data = w;
        r = start_threads(w, threads ? threads : 1);
        if (r < 0) {
                workers_free(w);
                return r;
        }
        *ret = w;
        return 0;
}

void workers_submit(struct workers *w, struct job *j)
{
        if (!w->count) { /* ending: what a finished job still wants done is done at once */
                j->run(j);
                j->done(j);
                return;
        }
        pthread_mutex_lock(&w->lock);
        list_put(&w->queue, j);
        wake_one(w);
        pthread_mutex_unlock(&w->lock);
}

struct workers *workers_free(struct workers *w)
{
        if (!w)
                return NULL;
        join_threads(w);
        finish_jobs(w);
        uv_close((uv_handle_t *)&w->wake, on_wake_closed);
        return NULL;
}
