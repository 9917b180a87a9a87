/* Theory of operation: a netlink socket in the multicast group of the kernel's own uevents. What they say is of no
 * interest: whoever waits looks at /sys and /dev again, so an event that was lost costs only the time-out.
 */
#include "uevent.h"

#include <errno.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define GROUP_KERNEL 1 /* group 2 is udev's */
#define EVENT_MAX 4096

int uevent_open(void)
{
        struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = GROUP_KERNEL };
        int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);

        if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                close(fd);
                return -1;
        }
        return fd;
}

void uevent_wait(int fd, unsigned timeout_ms)
{
        struct pollfd p = { .fd = fd, .events = POLLIN };
        char event[EVENT_MAX];

        if (poll(&p, 1, (int)timeout_ms) <= 0)
                return;
        /* ENOBUFS says that events were lost, which is one too. */
        while (recv(fd, event, sizeof(event), 0) > 0 || errno == ENOBUFS)
                errno = 0;
}
