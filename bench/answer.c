/* The guest's side of bench/run proxy: answers every request for PATH with a file of zeros, 100 bytes, or MB for /large.
 * usage: answer PORT LARGE_MB. One process, one thread: what is measured is the proxy, not this. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define FDS 4096
#define SMALL 100

static struct connection {
        char in[4096];
        size_t in_len;
        size_t out; /* bytes of the body still to be sent */
        int close;
} *connections[FDS];

static char zeros[256 * 1024];

static void drop(int fd)
{
        free(connections[fd]);
        connections[fd] = NULL;
        close(fd);
}

/* 0 when the connection waits for its peer, -1 when it has ended. */
static int advance(int fd, size_t large)
{
        struct connection *c = connections[fd];

        for (;;) {
                while (c->out > 0) {
                        ssize_t n = send(fd, zeros, c->out < sizeof zeros ? c->out : sizeof zeros, MSG_NOSIGNAL);

                        if (n < 0)
                                return errno == EAGAIN ? 0 : -1;
                        c->out -= (size_t)n;
                        if (c->out == 0 && c->close)
                                return -1;
                }
                ssize_t n = recv(fd, c->in + c->in_len, sizeof c->in - 1 - c->in_len, 0);
                if (n <= 0)
                        return n < 0 && errno == EAGAIN ? 0 : -1;
                c->in_len += (size_t)n;
                c->in[c->in_len] = '\0';
                if (!strstr(c->in, "\r\n\r\n")) {
                        if (c->in_len == sizeof c->in - 1)
                                return -1;
                        continue;
                }
                size_t size = strncmp(c->in, "GET /large ", 11) == 0 ? large : SMALL;
                char head[256];
                int len = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %zu\r\n\r\n", size);
                c->close = strstr(c->in, "HTTP/1.0\r\n") || strcasestr(c->in, "connection: close");
                c->in_len = 0;
                if (size == SMALL) { /* one segment */
                        memset(head + len, 0, SMALL);
                        len += SMALL;
                }
                if (send(fd, head, (size_t)len, MSG_NOSIGNAL) != len)
                        return -1;
                c->out = size == SMALL ? 0 : size;
                if (c->out == 0 && c->close)
                        return -1;
        }
}

int main(int argc, char **argv)
{
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0), one = 1;
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argc == 3 ? argv[1] : "0"))};
        struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ready[64];

        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (argc != 3 || bind(listener, (struct sockaddr *)&any, sizeof any) < 0 || listen(listener, 1024) < 0 ||
            epoll_ctl(poll, EPOLL_CTL_ADD, listener, &e) < 0 || daemon(0, 0) < 0) {
                perror("answer PORT LARGE_MB");
                return 1;
        }
        for (;;) {
                int n = epoll_wait(poll, ready, 64, -1);

                for (int i = 0; i < n; i++) {
                        int fd = ready[i].data.fd;

                        while (fd == listener && (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                                e = (struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = fd};
                                if (fd >= FDS || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e) < 0) {
                                        close(fd);
                                } else {
                                        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                                        connections[fd] = calloc(1, sizeof **connections);
                                }
                                fd = listener;
                        }
                        if (fd >= 0 && fd != listener && connections[fd] && advance(fd, (size_t)atol(argv[2]) << 20) < 0)
                                drop(fd);
                }
        }
}
