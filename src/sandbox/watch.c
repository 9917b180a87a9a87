/* One thread that sleeps on the exit descriptors of all VMs (vm_exit_fd: readable when shim and QEMU are gone).
 *
 * Each registration holds a reference to its entry, so the VM's handle, and with it the descriptor, stays valid until this
 * thread itself has taken the registration out: nobody else removes one. All deaths of one wake-up are first made invisible
 * and then cleaned up after, so that a mass expiry shows at once.
 *
 * The shim ends a VM at its expiry. Should it not (it hangs, or was killed and its QEMU lives), the thread does, a grace
 * period later: the wait ends at the earliest such moment. A byte on wake_fd makes it look at the table again.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "sandbox/manager.h"

#define EVENTS_AT_ONCE 64
#define REAP_RETRY_NS (10 * NSEC_PER_SEC)

void watch_poke(struct sandbox_manager *m)
{
        /* EAGAIN means that it is readable already. */
        if (eventfd_write(m->wake_fd, 1) < 0 && errno != EAGAIN)
                log_warn("the sandbox watcher could not be woken: errno %d", errno);
        pthread_cond_broadcast(&m->due);
        pthread_cond_broadcast(&m->collect_due);
}

int watch_add(struct sandbox_manager *m, struct entry *e, struct error *err)
{
        struct epoll_event event = { .events = EPOLLRDHUP, .data.ptr = e }; /* EPOLLHUP comes unasked; bytes mean nothing */
        pthread_mutex_lock(&m->lock);
        e->references++;
        pthread_mutex_unlock(&m->lock);
        if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, vm_exit_fd(e->vm), &event) < 0) {
                int saved = errno;
                entry_unref(m, e);
                return error_errno(err, saved, "watch sandbox %s", e->id);
        }
        watch_poke(m);
        return 0;
}

/* A burial that failed: the entry stays, invisible, and is tried again as an overdue one. */
static void bury_later(struct sandbox_manager *m, struct entry *e)
{
        int64_t now = clock_realtime_ns();
        pthread_mutex_lock(&m->lock);
        e->state = ENTRY_RUNNING;
        e->info->auto_pause = false; /* it is dead: nothing is left to pause */
        if (e->info->ends_ns > now)
                e->info->ends_ns = now;
        e->reap_ns = now + REAP_RETRY_NS;
        pthread_mutex_unlock(&m->lock);
}

static void log_end(struct sandbox_manager *m, struct entry *e)
{
        pthread_mutex_lock(&m->lock);
        bool in_time = e->info->ends_ns <= clock_realtime_ns();
        pthread_mutex_unlock(&m->lock);
        manager_log(m, e, in_time ? "info" : "error", in_time ? "sandbox ended: its time is over" : "sandbox ended: its machine has stopped", NULL);
}

/* For a VM that is dead or overdue and was claimed. The namespace may outlive a shim that was killed: vm_kill() releases
 * whatever is left. */
void watch_bury(struct sandbox_manager *m, struct entry *e)
{
        struct error err = {};
        pthread_mutex_lock(&e->vm_lock);
        int r = vm_kill(e->vm, &err);
        pthread_mutex_unlock(&e->vm_lock);
        if (r < 0) {
                log_warn("sandbox %s: what its machine left could not be released: %s", e->id, err.message);
                bury_later(m, e);
                return;
        }
        manager_forget(m, e->id);
        log_end(m, e);
        pthread_mutex_lock(&m->lock);
        entry_remove(m, e);
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
}

/* RUNNING -> KILLING for a death that nobody asked for; false when a kill is under way and does the rest. */
static bool claim(struct sandbox_manager *m, struct entry *e)
{
        pthread_mutex_lock(&m->lock);
        bool mine = e->state == ENTRY_RUNNING;
        if (mine)
                e->state = ENTRY_KILLING;
        pthread_mutex_unlock(&m->lock);
        return mine;
}

static void handle_events(struct sandbox_manager *m, struct epoll_event *events, int n)
{
        bool mine[EVENTS_AT_ONCE];
        for (int i = 0; i < n; i++) {
                struct entry *e = events[i].data.ptr;
                if (!e) {
                        eventfd_t ignored;
                        eventfd_read(m->wake_fd, &ignored);
                        continue;
                }
                epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, vm_exit_fd(e->vm), NULL);
                mine[i] = claim(m, e);
        }
        for (int i = 0; i < n; i++) {
                struct entry *e = events[i].data.ptr;
                if (!e)
                        continue;
                if (mine[i])
                        watch_bury(m, e);
                entry_unref(m, e);
        }
}

/* An entry that should have been dead for a while, claimed and with a reference; `ret_next` says when the next one is due. */
static struct entry *take_overdue(struct sandbox_manager *m, int64_t now, int64_t *ret_next)
{
        struct entry *found = NULL;
        int64_t next = INT64_MAX;
        pthread_mutex_lock(&m->lock);
        for (size_t i = 0; i < m->count; i++) {
                struct entry *e = m->entries[i];
                if (e->state != ENTRY_RUNNING || e->info->auto_pause)
                        continue;
                if (!found && e->reap_ns <= now) {
                        found = e;
                        e->references++;
                        e->state = ENTRY_KILLING;
                } else if (e->reap_ns < next) {
                        next = e->reap_ns;
                }
        }
        pthread_mutex_unlock(&m->lock);
        *ret_next = next;
        return found;
}

/* Ends the overdue ones; returns the milliseconds until the next may be, for epoll_wait. */
static int reap_overdue(struct sandbox_manager *m)
{
        int64_t next;
        struct entry *e;
        while ((e = take_overdue(m, clock_realtime_ns(), &next))) {
                log_warn("sandbox %s: its supervisor did not end it in time; ending it now", e->id);
                watch_bury(m, e);
                entry_unref(m, e);
        }
        if (next == INT64_MAX)
                return -1;
        int64_t ms = (next - clock_realtime_ns()) / NSEC_PER_MSEC + 1;
        return ms < 0 ? 0 : ms > 3600 * 1000 ? 3600 * 1000 : (int)ms;
}

static bool stopping(struct sandbox_manager *m)
{
        pthread_mutex_lock(&m->lock);
        bool s = m->stopping;
        pthread_mutex_unlock(&m->lock);
        return s;
}

static void *watcher(void *data)
{
        struct sandbox_manager *m = data;
        struct epoll_event events[EVENTS_AT_ONCE];
        while (!stopping(m)) {
                int n = epoll_wait(m->epoll_fd, events, EVENTS_AT_ONCE, reap_overdue(m));
                if (n < 0 && errno != EINTR) {
                        log_error("the sandbox watcher ended: errno %d", errno);
                        break;
                }
                if (n > 0)
                        handle_events(m, events, n);
        }
        return NULL;
}

int watch_start(struct sandbox_manager *m, struct error *err)
{
        m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
        if (m->epoll_fd < 0 || m->wake_fd < 0 || epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, m->wake_fd, &event) < 0)
                return error_errno(err, errno, "start the sandbox watcher");
        int r = pthread_create(&m->watcher, NULL, watcher, m);
        if (r != 0)
                return error_errno(err, r, "start the sandbox watcher");
        m->watching = true;
        return 0;
}

/* Deaths that were reported, or caused by sandbox_kill(), after the thread's last look. */
static void drain(struct sandbox_manager *m)
{
        struct epoll_event events[EVENTS_AT_ONCE];
        int n;
        while ((n = epoll_wait(m->epoll_fd, events, EVENTS_AT_ONCE, 0)) > 0)
                handle_events(m, events, n);
}

/* The references of the registrations that are left: found through the table, where every watched entry still is. */
static void drop_registrations(struct sandbox_manager *m)
{
        for (size_t i = 0; i < m->count; i++) {
                struct entry *e = m->entries[i];
                if (e->vm && epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, vm_exit_fd(e->vm), NULL) == 0)
                        entry_unref(m, e);
        }
}

void watch_stop(struct sandbox_manager *m)
{
        if (m->watching) {
                pthread_mutex_lock(&m->lock);
                m->stopping = true;
                pthread_mutex_unlock(&m->lock);
                watch_poke(m);
                pthread_join(m->watcher, NULL);
                drain(m);
                drop_registrations(m);
        }
        if (m->epoll_fd >= 0)
                close(m->epoll_fd);
        if (m->wake_fd >= 0)
                close(m->wake_fd);
}
