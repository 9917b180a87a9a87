/* Theory of operation: once a second the LISTEN sockets of /proc/net/tcp and tcp6 are compared with the forwards
 * that exist. A port that is bound to 127.0.0.1 or ::1 gets a listener on the guest's outer address; one whose
 * listener went loses it (connections under way go on). The loopback address is the one that was seen.
 */
#include "forward.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "http/relay.h"
#include "loop.h"

#define SCAN_MS 1000
#define FORWARDS_MAX 1024
#define BACKLOG 128
#define STATE_LISTEN 0x0A

struct forward {
        struct forward *next;
        uv_tcp_t listener;
        unsigned port;
        bool v6, seen;
};

static struct forward *forwards;
static unsigned forward_count;

static void on_connected(uv_connect_t *request, int status)
{
        struct relay *r = request->data;

        free(request);
        if (status < 0)
                relay_close(r);
        else
                relay_start(r, 0);
}

static void on_connection(uv_stream_t *listener, int status)
{
        struct forward *f = listener->data;
        struct sockaddr_storage address;
        uv_connect_t *request;
        struct relay *r;

        if (status < 0)
                return;
        r = relay_new(agent_loop, NULL, NULL);
        if (f->v6)
                uv_ip6_addr("::1", (int)f->port, (struct sockaddr_in6 *)&address);
        else
                uv_ip4_addr("127.0.0.1", (int)f->port, (struct sockaddr_in *)&address);
        request = xcalloc(1, sizeof(*request));
        request->data = r;
        if (uv_accept(listener, (uv_stream_t *)relay_stream(r, RELAY_FROM)) < 0 ||
            uv_tcp_connect(request, relay_stream(r, RELAY_TO), (struct sockaddr *)&address, on_connected) < 0) {
                free(request);
                relay_close(r);
        }
}

static void forward_closed(uv_handle_t *handle)
{
        free(handle->data);
}

/* A port that cannot be bound (somebody listens on the outer address himself) is tried again at each scan. */
static void add_forward(unsigned port, bool v6)
{
        struct forward *f = xcalloc(1, sizeof(*f));
        struct sockaddr_in address;

        *f = (struct forward){ .port = port, .v6 = v6, .seen = true };
        uv_tcp_init(agent_loop, &f->listener);
        f->listener.data = f;
        uv_ip4_addr(GUEST_ADDRESS, (int)port, &address);
        if (uv_tcp_bind(&f->listener, (struct sockaddr *)&address, 0) < 0 ||
            uv_listen((uv_stream_t *)&f->listener, BACKLOG, on_connection) < 0) {
                uv_close((uv_handle_t *)&f->listener, forward_closed);
                return;
        }
        f->next = forwards;
        forwards = f;
        forward_count++;
}

static void see_listener(unsigned port, bool v6)
{
        for (struct forward *f = forwards; f; f = f->next)
                if (f->port == port) {
                        f->seen = true;
                        return;
                }
        if (forward_count < FORWARDS_MAX)
                add_forward(port, v6);
}

static void scan_table(const char *path, const char *loopback, bool v6)
{
        CLEANUP_FCLOSE FILE *f = fopen(path, "re");
        char line[512], address[40];
        unsigned port, state;

        while (f && fgets(line, sizeof(line), f))
                if (sscanf(line, " %*d: %39[0-9A-F]:%4X %*[0-9A-F]:%*4X %2X", address, &port, &state) == 3 &&
                    state == STATE_LISTEN && strcmp(address, loopback) == 0)
                        see_listener(port, v6);
}

static void scan(void *data)
{
        char v4[9];

        (void)data;
        for (struct forward *f = forwards; f; f = f->next)
                f->seen = false;
        /* The table prints the address as one host-endian word. */
        snprintf(v4, sizeof(v4), "%08X", (unsigned)htonl(INADDR_LOOPBACK));
        scan_table("/proc/net/tcp", v4, false);
        scan_table("/proc/net/tcp6", htonl(1) == 1 ? "00000000000000000000000000000001" : "00000000000000000000000001000000",
                   true);
        for (struct forward **at = &forwards; *at; ) {
                struct forward *f = *at;

                if (f->seen) {
                        at = &f->next;
                        continue;
                }
                *at = f->next;
                forward_count--;
                uv_close((uv_handle_t *)&f->listener, forward_closed);
        }
}

void forward_start(void)
{
        timer_start(SCAN_MS, SCAN_MS, scan, NULL);
}
