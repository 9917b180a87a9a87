/* A very small rtnetlink: build one request, send it, take the acknowledgement. */
#pragma once

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stddef.h>
#include <stdint.h>

#define RTNL_MESSAGE_MAX 2048

struct rtnl_message {
        union {
                struct nlmsghdr header;
                char bytes[RTNL_MESSAGE_MAX];
        };
};

/* A socket of `protocol` (NETLINK_ROUTE, NETLINK_NETFILTER) bound to the caller's present network namespace, where it
 * stays when the caller moves to another. Returns the descriptor or -errno. */
int rtnl_open(int protocol);

/* Starts a request with its family header (`body` of `len` bytes). */
void rtnl_begin(struct rtnl_message *m, uint16_t type, uint16_t flags, const void *body, size_t len);
/* Adds an attribute; aborts when the message is full (all requests here are of bounded size). */
void rtnl_add(struct rtnl_message *m, uint16_t type, const void *data, size_t len);
void rtnl_adds(struct rtnl_message *m, uint16_t type, const char *s);
void rtnl_addu32(struct rtnl_message *m, uint16_t type, uint32_t value);
/* Opens and closes a nested attribute; `head` bytes (zeroed) follow its header. */
struct rtattr *rtnl_nest(struct rtnl_message *m, uint16_t type, const void *head, size_t len);
void rtnl_nest_end(struct rtnl_message *m, struct rtattr *nest);

/* Sends the request and waits for the kernel's answer: 0 or its -errno. With `reply` the first answer that is no
 * acknowledgement is stored there. */
int rtnl_call(int fd, struct rtnl_message *m, struct rtnl_message *reply);
