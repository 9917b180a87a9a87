/* Keeps NSS and the resolver out of the static binary.
 *
 * libuv's archive members refer to these functions although the agent never calls what uses them
 * (uv_os_homedir, uv_getaddrinfo, …). Defining them here satisfies the linker without glibc's versions,
 * which would load shared libraries of the guest at run time and crash (design 2). tests/check-agent-symbols
 * verifies the result.
 */
#include <errno.h>
#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stddef.h>

int getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size, struct passwd **ret)
{
        (void)uid, (void)entry, (void)buffer, (void)size;
        *ret = NULL;
        return ENOSYS;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
        (void)node, (void)service, (void)hints, (void)ret;
        return EAI_FAIL;
}

void freeaddrinfo(struct addrinfo *list)
{
        (void)list;
}

int getnameinfo(const struct sockaddr *address, socklen_t size, char *host, socklen_t host_size, char *service,
                socklen_t service_size, int flags)
{
        (void)address, (void)size, (void)host, (void)host_size, (void)service, (void)service_size, (void)flags;
        return EAI_FAIL;
}
