/* Theory of operation. The reader thread waits with edge-triggered epoll: a virtio port whose host end is closed
 * reports a hang-up for ever, and only edges tell of a change (the driver wakes the queue when the host comes and
 * goes). Reading 0 bytes there means "no host": a half-read request is dropped.
 *
 * `ping` is answered by the reader itself; everything else goes through a bounded queue to the worker thread, so
 * that requests are handled in order and a long unpack does not keep the host from seeing that we live.
 *
 * The port is close-on-exec and opened again by the next role after switch_root; nobody else in the guest can
 * open it meanwhile because it is exclusive and we hold it.
 */
#include "serial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"
#include "bare.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "uevent.h"

#define PORT_NAME "vmon.agent"
#define WRITE_TIMEOUT_MS 10000
#define PORT_RETRY_FAST_MS 20
#define PORT_RETRY_SLOW_MS 1000
#define PORT_FAST_TRIES 500

struct queued {
        struct queued *next;
        json_t *request;
};

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER, write_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static struct queued *queue;
static size_t queue_length;
static int channel = -1;

static const char *kind_name(enum error_kind kind)
{
        switch (kind) {
        case ERROR_INVALID:
                return "invalid";
        case ERROR_NOT_FOUND:
                return "not-found";
        case ERROR_UNAVAILABLE:
        case ERROR_LIMIT:
                return "unavailable";
        default:
                return "internal";
        }
}

/* Writes one line; a host that is gone or does not read for ten seconds loses it. */
static void write_line(json_t *message)
{
        CLEANUP_FREE char *text = json_text(message);
        CLEANUP_FREE char *line = xasprintf("%s\n", text);
        size_t len = strlen(line), done = 0;

        pthread_mutex_lock(&write_lock);
        while (done < len && channel >= 0) {
                ssize_t n = write(channel, line + done, len - done);
                struct pollfd p = { channel, POLLOUT, 0 };

                if (n > 0)
                        done += (size_t)n;
                else if (n < 0 && errno == EINTR)
                        continue;
                else if (n < 0 && errno != EAGAIN)
                        break;
                else if (poll(&p, 1, WRITE_TIMEOUT_MS) <= 0 || (p.revents & (POLLHUP | POLLERR)))
                        break;
        }
        pthread_mutex_unlock(&write_lock);
        json_decref(message);
}

static void answer(json_t *id, const char *member, json_t *value)
{
        json_t *message = json_object();

        json_object_set(message, "id", id);
        json_object_set_new(message, member, value);
        write_line(message);
}

void serial_event(json_t *id, json_t *event)
{
        answer(id, "event", event);
}

static void answer_error(json_t *id, const struct error *err)
{
        CLEANUP_FREE char *clean = utf8_scrub(err->message, strlen(err->message));

        answer(id, "error", json_pack("{s:s,s:s}", "kind", kind_name(err->kind), "message", clean));
}

static void handle_request(json_t *request)
{
        json_t *id = json_object_get(request, "id"), *result = NULL;
        void (*after)(void) = NULL;
        struct error err;

        if (serial_operation(request, id, &result, &after, &err) < 0)
                answer_error(id, &err);
        else
                answer(id, "result", result ? result : json_object());
        if (after)
                after();
}

static void *work(void *data)
{
        for (;;) {
                struct queued *q;

                pthread_mutex_lock(&queue_lock);
                while (!queue)
                        pthread_cond_wait(&queue_filled, &queue_lock);
                q = queue;
                queue = q->next;
                queue_length--;
                pthread_mutex_unlock(&queue_lock);
                handle_request(q->request);
                json_decref(q->request);
                free(q);
        }
        return data;
}

static bool enqueue(json_t *request)
{
        struct queued *q = xcalloc(1, sizeof(*q)), **end;
        bool room;

        q->request = request;
        pthread_mutex_lock(&queue_lock);
        room = queue_length < SERIAL_QUEUE_MAX;
        if (room) {
                for (end = &queue; *end; end = &(*end)->next)
                        ;
                *end = q;
                queue_length++;
                pthread_cond_signal(&queue_filled);
        }
        pthread_mutex_unlock(&queue_lock);
        if (!room)
                free(q);
        return room;
}

static void take_line(const char *line, size_t len)
{
        json_t *request = NULL, *id;
        struct error err;

        if (len == 0)
                return;
        if (json_parse(line, len, &request, &err) < 0 || !json_is_object(request)) {
                if (request)
                        error_set(&err, ERROR_INVALID, "a request is a JSON object");
                json_decref(request);
                id = json_null();
                answer_error(id, &err);
                return;
        }
        id = json_object_get(request, "id");
        if (!json_is_integer(id)) {
                error_set(&err, ERROR_INVALID, "a request needs an integer id");
                answer_error(json_null(), &err);
                json_decref(request);
        } else if (streq(json_str(request, "op"), "ping")) {
                answer(id, "result", json_pack("{s:s,s:s,s:i,s:b}", "version", ENVD_VERSION, "mode",
                                               agent_mode_name(agent_options.mode), "pid", (int)getpid(), "shell", (int)bare_has_shell("")));
                json_decref(request);
        } else if (!enqueue(request)) {
                error_set(&err, ERROR_UNAVAILABLE, "%d requests are waiting already", SERIAL_QUEUE_MAX);
                answer_error(id, &err);
                json_decref(request);
        }
}

/* Hands complete lines on; false when a line grows beyond the limit (it is dropped up to its end). */
static void take_bytes(struct buf *b, bool *overlong)
{
        char *end;

        while (b->len > 0 && (end = memchr(b->data, '\n', b->len))) {
                size_t len = (size_t)(end - b->data);

                if (!*overlong)
                        take_line(b->data, len);
                *overlong = false;
                buf_consume(b, len + 1);
        }
        if (b->len > SERIAL_LINE_MAX) {
                struct error err;

                if (!*overlong) {
                        error_set(&err, ERROR_INVALID, "a request line is longer than %d bytes", SERIAL_LINE_MAX);
                        answer_error(json_null(), &err);
                }
                *overlong = true;
                buf_clear(b);
        }
}

/* Reads until the peer is gone for good (sockets); a port is read for ever. */
static void read_channel(int fd, bool port)
{
        CLEANUP_CLOSE int epoll = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET };
        CLEANUP_BUF struct buf b = {};
        bool overlong = false;

        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
        for (;;) {
                ssize_t n = read(fd, buf_reserve(&b, 64 * 1024), 64 * 1024);

                if (n > 0) {
                        buf_grew(&b, (size_t)n);
                        take_bytes(&b, &overlong);
                        continue;
                }
                if (n < 0 && errno == EINTR)
                        continue;
                if (n == 0 || errno != EAGAIN) {
                        buf_clear(&b);
                        overlong = false;
                        if (!port)
                                return;
                }
                epoll_wait(epoll, &event, 1, -1);
        }
}

static void set_channel(int fd)
{
        pthread_mutex_lock(&write_lock);
        channel = fd;
        pthread_mutex_unlock(&write_lock);
}

/* Device path of the virtio port, NULL while there is none. Without udev only sysfs knows the name. */
static char *find_port(void)
{
        CLEANUP_CLOSEDIR DIR *dir = opendir("/sys/class/virtio-ports");
        struct dirent *e;

        while (dir && (e = readdir(dir))) {
                CLEANUP_FREE char *path = xasprintf("/sys/class/virtio-ports/%s/name", e->d_name);
                CLEANUP_BUF struct buf name = {};

                if (e->d_name[0] == '.' || file_read(path, 256, &name, NULL) < 0 || !name.data)
                        continue;
                if (streq(str_trim(name.data), PORT_NAME))
                        return xasprintf("/dev/%s", e->d_name);
        }
        return NULL;
}

static int open_port(const char *path)
{
        CLEANUP_CLOSE int events = uevent_open();

        for (unsigned tries = 0;; tries++) {
                CLEANUP_FREE char *found = path ? xstrdup(path) : find_port();
                int fd = found ? open(found, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY) : -1;

                if (fd >= 0)
                        return fd;
                if (tries == PORT_FAST_TRIES)
                        log_warn("serial channel %s: %s; trying on", found ? found : PORT_NAME,
                                 found ? strerror(errno) : "no such port");
                /* A uevent tells of a new port and of its name; nothing tells that another opener has let go of it. */
                uevent_wait(events, tries < PORT_FAST_TRIES ? PORT_RETRY_FAST_MS : PORT_RETRY_SLOW_MS);
        }
}

static void serve_socket(const char *path)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        unlink(path);
        if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 1) < 0) {
                log_error("serial channel %s: %s", path, strerror(errno));
                return;
        }
        for (;;) {
                int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (fd < 0)
                        continue;
                set_channel(fd);
                read_channel(fd, false);
                set_channel(-1);
                close(fd);
        }
}

static void *read_requests(void *data)
{
        const char *path = data;
        struct stat st;

        if (path && (stat(path, &st) < 0 || !S_ISCHR(st.st_mode))) {
                serve_socket(path);
                return NULL;
        }
        int fd = open_port(path);

        set_channel(fd);
        read_channel(fd, true);
        return NULL;
}

void serial_start(const char *path)
{
        pthread_t reader, worker;

        if (pthread_create(&worker, NULL, work, NULL) != 0 || pthread_create(&reader, NULL, read_requests, (void *)path) != 0)
                abort();
        pthread_detach(worker);
        pthread_detach(reader);
}
