/* See fdpass.h. Socket paths go through /proc/self/fd/<dir>/, for sun_path holds 108 bytes only. */
#include "vm/fdpass.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"

int fd_send(int socket, const void *data, size_t len, int fd)
{
        union {
                char space[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control = {};
        const char *p = data;
        bool first = true;

        while (len) {
                struct iovec io = {.iov_base = (void *)p, .iov_len = len};
                struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
                ssize_t n;

                if (first && fd >= 0) {
                        m.msg_control = control.space;
                        m.msg_controllen = sizeof control.space;
                        *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                                              .cmsg_len = CMSG_LEN(sizeof(int))};
                        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
                }
                n = sendmsg(socket, &m, MSG_NOSIGNAL);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EAGAIN && !first) {
                        struct pollfd pfd = {.fd = socket, .events = POLLOUT};

                        poll(&pfd, 1, 1000);
                        continue;
                }
                if (n < 0)
                        return -errno;
                first = false;
                p += n;
                len -= (size_t)n;
        }
        return 0;
}

static void take_fds(struct msghdr *m, int *fd)
{
        for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
                size_t n;

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < n; i++) {
                        int one;

                        memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof one);
                        if (fd && *fd >= 0)
                                close(*fd);
                        if (fd)
                                *fd = one;
                        else
                                close(one);
                }
        }
}

ssize_t fd_recv(int socket, struct buf *b, int *fd, int flags)
{
        union {
                char space[CMSG_SPACE(4 * sizeof(int))];
                struct cmsghdr align;
        } control;
        char chunk[4096];
        struct iovec io = {.iov_base = chunk, .iov_len = sizeof chunk};
        struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
        ssize_t n;

        do
                n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC | flags);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        take_fds(&m, fd);
        buf_add(b, chunk, (size_t)n);
        return n;
}

int line_take(struct buf *b, json_t **ret)
{
        char *end = b->len ? memchr(b->data, '\n', b->len) : NULL;
        json_t *j;
        size_t len;

        if (!end)
                return b->len > LINE_MAX_BYTES ? -EMSGSIZE : 0;
        len = (size_t)(end - b->data);
        if (len > LINE_MAX_BYTES)
                return -EMSGSIZE;
        if (json_parse(b->data, len, &j, NULL) < 0)
                return -EBADMSG;
        buf_consume(b, len + 1);
        if (!json_is_object(j)) {
                json_decref(j);
                return -EBADMSG;
        }
        *ret = j;
        return 1;
}

int line_send(int socket, const json_t *message, int fd)
{
        CLEANUP_BUF struct buf b = {};
        CLEANUP_FREE char *text = json_text(message);

        buf_adds(&b, text);
        buf_addc(&b, '\n');
        return fd_send(socket, b.data, b.len, fd);
}

int line_receive(int socket, struct buf *b, int timeout_ms, json_t **ret, int *fd)
{
        int64_t end = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;

        for (;;) {
                struct pollfd p = {.fd = socket, .events = POLLIN};
                int64_t left = timeout_ms < 0 ? -1 : (end - clock_monotonic_ns() + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC;
                ssize_t n;
                int r = line_take(b, ret);

                if (r != 0)
                        return r < 0 ? r : 0;
                if (timeout_ms >= 0 && left <= 0)
                        left = 0;
                r = poll(&p, 1, (int)left);
                if (r < 0 && errno != EINTR)
                        return -errno;
                if (r == 0)
                        return -ETIMEDOUT;
                if (r < 0)
                        continue;
                n = fd_recv(socket, b, fd, 0);
                if (n < 0)
                        return (int)n;
                if (n == 0)
                        return -EPIPE;
        }
}

static int address(int dirfd, const char *name, struct sockaddr_un *ret)
{
        int n;

        *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
        n = snprintf(ret->sun_path, sizeof ret->sun_path, "/proc/self/fd/%d/%s", dirfd, name);
        return n < 0 || (size_t)n >= sizeof ret->sun_path ? -ENAMETOOLONG : 0;
}

int unix_connect_at(int dirfd, const char *name)
{
        CLEANUP_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_un a;

        if (fd < 0)
                return -errno;
        if (address(dirfd, name, &a) < 0)
                return -ENAMETOOLONG;
        if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
                return -errno;
        return STEAL_FD(fd);
}

int unix_listen_at(int dirfd, const char *name, int backlog)
{
        CLEANUP_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_un a;

        if (fd < 0)
                return -errno;
        if (address(dirfd, name, &a) < 0)
                return -ENAMETOOLONG;
        unlinkat(dirfd, name, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, backlog) < 0)
                return -errno;
        return STEAL_FD(fd);
}
