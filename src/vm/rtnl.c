/* The kernel answers synchronously: when send() returns, the answer is queued. So one request is one send and one or
 * two recv, and no state is kept between requests but the socket. */
#include "vm/rtnl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int rtnl_open(int protocol)
{
        struct sockaddr_nl address = {.nl_family = AF_NETLINK};
        int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);

        if (fd < 0)
                return -errno;
        if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                int r = -errno;

                close(fd);
                return r;
        }
        return fd;
}

static void *append(struct rtnl_message *m, const void *data, size_t len)
{
        size_t at = NLMSG_ALIGN(m->header.nlmsg_len);

        if (at + NLMSG_ALIGN(len) > sizeof(m->bytes))
                abort();
        if (len && data)
                memcpy(m->bytes + at, data, len);
        m->header.nlmsg_len = (uint32_t)(at + len);
        return m->bytes + at;
}

void rtnl_begin(struct rtnl_message *m, uint16_t type, uint16_t flags, const void *body, size_t len)
{
        memset(m, 0, sizeof(*m));
        m->header.nlmsg_len = NLMSG_HDRLEN;
        m->header.nlmsg_type = type;
        m->header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        append(m, body, len);
}

void rtnl_add(struct rtnl_message *m, uint16_t type, const void *data, size_t len)
{
        struct rtattr a = {.rta_type = type, .rta_len = (uint16_t)RTA_LENGTH(len)};

        append(m, &a, sizeof(a));
        append(m, data, len);
}

void rtnl_adds(struct rtnl_message *m, uint16_t type, const char *s)
{
        rtnl_add(m, type, s, strlen(s) + 1);
}

void rtnl_addu32(struct rtnl_message *m, uint16_t type, uint32_t value)
{
        rtnl_add(m, type, &value, sizeof(value));
}

struct rtattr *rtnl_nest(struct rtnl_message *m, uint16_t type, const void *head, size_t len)
{
        struct rtattr a = {.rta_type = type};
        struct rtattr *nest = append(m, &a, sizeof(a));

        append(m, head, len);
        return nest;
}

void rtnl_nest_end(struct rtnl_message *m, struct rtattr *nest)
{
        /* A nest holds the padding of its last member; a message that ended before it would be cut. */
        m->header.nlmsg_len = NLMSG_ALIGN(m->header.nlmsg_len);
        nest->rta_len = (uint16_t)(m->bytes + m->header.nlmsg_len - (char *)nest);
}

int rtnl_call(int fd, struct rtnl_message *m, struct rtnl_message *reply)
{
        static uint32_t sequence;
        struct rtnl_message answer;

        m->header.nlmsg_seq = ++sequence;
        if (send(fd, m->bytes, m->header.nlmsg_len, 0) < 0)
                return -errno;
        for (;;) {
                ssize_t n = recv(fd, answer.bytes, sizeof(answer.bytes), MSG_TRUNC);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < (ssize_t)NLMSG_HDRLEN)
                        return n < 0 ? -errno : -EBADMSG;
                /* Left over from a call that was given up. */
                if (answer.header.nlmsg_seq != m->header.nlmsg_seq)
                        continue;
                if (answer.header.nlmsg_type == NLMSG_ERROR)
                        return ((struct nlmsgerr *)NLMSG_DATA(&answer.header))->error;
                if (reply)
                        memcpy(reply, &answer, sizeof(answer));
        }
}
