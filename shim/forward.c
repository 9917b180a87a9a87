/* Network `user`: the guest's ports are reached through QEMU's slirp, which forwards a port of the host's loopback to each that is asked for.
 * QEMU chooses the host's port; its list of forwards ("info usernet") tells which one it is.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "shim.h"

static json_t *monitor_command(char *line)
{
        json_t *request = json_pack("{s:s, s:{s:s}}", "execute", "human-monitor-command", "arguments", "command-line", line);

        free(line);
        return request;
}

json_t *forward_add_request(unsigned port)
{
        return monitor_command(xasprintf("hostfwd_add net0 tcp:127.0.0.1:0-" VM_GUEST_ADDRESS ":%u", port));
}

json_t *forward_list_request(void)
{
        return monitor_command(xstrdup("info usernet"));
}

unsigned forward_find(const struct shim *s, unsigned port)
{
        for (size_t i = 0; i < s->forward_count; i++)
                if (s->forwards[i].guest == port)
                        return s->forwards[i].host;
        return 0;
}

static void note(struct shim *s, unsigned guest, unsigned host)
{
        if (forward_find(s, guest) || guest > UINT16_MAX || host == 0 || host > UINT16_MAX)
                return;
        s->forwards = xreallocarray(s->forwards, s->forward_count + 1, sizeof *s->forwards);
        s->forwards[s->forward_count++] = (struct forward){(uint16_t)guest, (uint16_t)host};
}

/* "  TCP[HOST_FORWARD]  12  127.0.0.1 40231  169.254.0.21 49983  0 0" */
void forward_note_all(struct shim *s, const char *list)
{
        CLEANUP_FREE char *copy = xstrdup(list);
        char *save = NULL, guest_address[64];
        unsigned host, guest;

        for (char *line = strtok_r(copy, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save))
                if (sscanf(line, " TCP[HOST_FORWARD] %*d %*63s %u %63s %u", &host, guest_address, &guest) == 3 && streq(guest_address, VM_GUEST_ADDRESS))
                        note(s, guest, host);
}
