#include "cmd/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"

int service_notify(const char *state)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        const char *path = getenv("NOTIFY_SOCKET");
        size_t len = path ? strlen(path) : 0;
        if (len == 0)
                return 0;
        if ((path[0] != '/' && path[0] != '@') || len >= sizeof address.sun_path)
                return -EINVAL;
        memcpy(address.sun_path, path, len);
        if (path[0] == '@')
                address.sun_path[0] = '\0'; /* the abstract namespace */
        CLEANUP_CLOSE int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
        if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, size) < 0)
                return -errno;
        return 0;
}
