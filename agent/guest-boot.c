/* Theory of operation: modules by finit_module(2) in the kit's order; the interface by the classic ioctls, which
 * need no netlink code and do all of what the fixed configuration asks.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "guest.h"

#define MODULE_DIR "/modules"
#define ORDER_MAX (64 * 1024)
#define COMMAND_LINE_MAX (16 * 1024)

static int load_module(const char *name, struct error *err)
{
        CLEANUP_FREE char *path = path_join(MODULE_DIR, name);
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

        if (fd < 0)
                return error_errno(err, errno, "open the module %s", path);
        if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST && errno != ENODEV)
                return error_errno(err, errno, "load the module %s", name);
        return 0;
}

int guest_load_modules(struct error *err)
{
        CLEANUP_BUF struct buf order = {};
        char *save = NULL;
        int r;

        if (!path_exists(MODULE_DIR "/order"))
                return 0;
        r = file_read(MODULE_DIR "/order", ORDER_MAX, &order, err);
        if (r < 0)
                return r;
        for (char *name = strtok_r(order.data, "\n", &save); name; name = strtok_r(NULL, "\n", &save)) {
                struct error failure;

                if (*str_trim(name) == 0)
                        continue;
                /* One broken module must not hide the others: what really lacks shows up at its use. */
                if (load_module(str_trim(name), &failure) < 0)
                        log_warn("%s", failure.message);
        }
        return 0;
}

char *guest_kernel_option(const char *name)
{
        CLEANUP_BUF struct buf line = {};
        char *save = NULL;
        size_t len = strlen(name);

        if (file_read("/proc/cmdline", COMMAND_LINE_MAX, &line, NULL) < 0 || !line.data)
                return NULL;
        for (char *word = strtok_r(line.data, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
                if (str_starts(word, name) && word[len] == '=')
                        return xstrdup(word + len + 1);
        return NULL;
}

static void set_address(struct sockaddr *to, const char *text)
{
        struct sockaddr_in address = { .sin_family = AF_INET };

        inet_pton(AF_INET, text, &address.sin_addr);
        memcpy(to, &address, sizeof(address));
}

static int interface_up(int fd, const char *name)
{
        struct ifreq request = {};

        snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
        if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
                return -errno;
        request.ifr_flags |= IFF_UP | IFF_RUNNING;
        return ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

static int interface_address(int fd, const char *name, unsigned long what, const char *address)
{
        struct ifreq request = {};

        snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
        set_address(&request.ifr_addr, address);
        return ioctl(fd, what, &request) < 0 ? -errno : 0;
}

static int default_route(int fd)
{
        struct rtentry route = { .rt_flags = RTF_UP | RTF_GATEWAY };

        set_address(&route.rt_dst, "0.0.0.0");
        set_address(&route.rt_genmask, "0.0.0.0");
        set_address(&route.rt_gateway, GUEST_GATEWAY);
        return ioctl(fd, SIOCADDRT, &route) < 0 && errno != EEXIST ? -errno : 0;
}

int guest_configure_network(struct error *err)
{
        CLEANUP_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        struct ifreq request = { .ifr_name = "eth0", .ifr_mtu = GUEST_MTU };
        int r;

        if (fd < 0)
                return error_errno(err, errno, "create a socket");
        interface_up(fd, "lo");
        if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
                return errno == ENODEV ? 0 : error_errno(err, errno, "find eth0");
        request.ifr_mtu = GUEST_MTU;
        ioctl(fd, SIOCSIFMTU, &request);
        r = interface_address(fd, "eth0", SIOCSIFADDR, GUEST_ADDRESS);
        if (r >= 0)
                r = interface_address(fd, "eth0", SIOCSIFNETMASK, GUEST_NETMASK);
        if (r >= 0)
                r = interface_up(fd, "eth0");
        if (r >= 0)
                r = default_route(fd);
        return r < 0 ? error_errno(err, r, "configure eth0") : 0;
}
