/* A VM without a VM, for test_net.sh: makes the network of slot N as the shim does, and a second namespace whose
 * eth0 has the guest's addresses; frames are carried between the two taps. Prints
 *   "shim PID guest PID microseconds"
 * and runs until its standard input ends ("end" first on a line: net_end(), so that nothing may be left) or it is
 * killed. The guest process dies with it.
 *
 * usage: net_helper SLOT [allow-private] [deny=CIDR]… [allow=CIDR]… [domain=NAME]…
 * "set [deny=CIDR]… [allow=CIDR]… [domain=NAME]…" on a line replaces the rules. Connections by domain are vmon-egress's, beside this program.
 */
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/subprocess.h"
#include "vm/net.h"
#include "vm/net_egress.h"
#include "vm/vm.h"

static void die(const char *what)
{
        perror(what);
        _exit(1);
}

/* The guest's side: its own namespace with a tap named eth0; hands the descriptor over and sleeps. */
static int guest_tap(void)
{
        struct ifreq request = {.ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI};
        static const char *const commands[][10] = {
                {"ip", "link", "set", "eth0", "address", VM_GUEST_MAC, "mtu", "1400", "up", NULL},
                {"ip", "addr", "add", VM_GUEST_ADDRESS "/30", "dev", "eth0", NULL},
                {"ip", "route", "add", "default", "via", VM_GUEST_GATEWAY, NULL},
        };
        int fd;

        if (unshare(CLONE_NEWNET) < 0)
                die("unshare");
        fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
        if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0)
                die("guest tap");
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
                struct error err = {};

                if (subprocess_run(commands[i], NULL, &err) < 0) {
                        fprintf(stderr, "%s\n", err.message);
                        _exit(1);
                }
        }
        return fd;
}

static void send_fd(int channel, int fd)
{
        char control[CMSG_SPACE(sizeof(int))] = {}, byte = 0;
        struct iovec io = {&byte, 1};
        struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);

        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
        if (sendmsg(channel, &m, 0) < 0)
                die("sendmsg");
}

static int receive_fd(int channel)
{
        char control[CMSG_SPACE(sizeof(int))] = {}, byte;
        struct iovec io = {&byte, 1};
        struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
        int fd;

        if (recvmsg(channel, &m, 0) <= 0 || !CMSG_FIRSTHDR(&m))
                die("recvmsg");
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
        return fd;
}

static pid_t start_guest(int *ret_tap)
{
        int channel[2];
        pid_t pid;

        if (socketpair(AF_UNIX, SOCK_STREAM, 0, channel) < 0)
                die("socketpair");
        pid = fork();
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                send_fd(channel[1], guest_tap());
                for (;;)
                        pause();
        }
        close(channel[1]);
        *ret_tap = receive_fd(channel[0]);
        close(channel[0]);
        return pid;
}

static void carry(int from, int to)
{
        char frame[65536];
        ssize_t n;

        while ((n = read(from, frame, sizeof(frame))) > 0)
                if (write(to, frame, (size_t)n) < 0)
                        return; /* an interface going down loses frames */
}

/* Sorts "deny=…" and "allow=…" out of `words`, which are borrowed. */
static struct net_egress egress_of(char **words, int count, bool *ret_private)
{
        static const char *allow[32], *deny[32], *domains[32];
        size_t allowed = 0, denied = 0, named = 0;

        for (int i = 0; i < count && i < 30; i++) {
                if (strncmp(words[i], "allow=", 6) == 0)
                        allow[allowed++] = words[i] + 6;
                else if (strncmp(words[i], "deny=", 5) == 0)
                        deny[denied++] = words[i] + 5;
                else if (strncmp(words[i], "domain=", 7) == 0)
                        domains[named++] = words[i] + 7;
                else if (strcmp(words[i], "allow-private") == 0)
                        *ret_private = true;
        }
        allow[allowed] = deny[denied] = domains[named] = NULL;
        return (struct net_egress){allow, deny, domains};
}

/* As the shim does, but at once: the program for the listener of the present rules; the one before ends with its connections. */
static void serve_domains(struct net *net, unsigned slot, const struct net_egress *e)
{
        static int control = -1;
        struct net_egress_start start = {.listener = net_take_listener(net), .uid = 1010000 + slot, .domains = e->domains};
        struct error err = {};
        pid_t pid;

        if (control >= 0)
                close(control);
        control = -1;
        if (start.listener < 0)
                return;
        if (net_egress_spawn(&start, &pid, &control, &err) < 0)
                die(err.message);
        close(start.listener);
}

/* Answers "set" or the reason on standard output. */
static void set_rules(struct net *net, unsigned slot, char *line)
{
        char *words[32], *save = NULL;
        struct error err = {};
        int count = 0;
        bool ignored;

        for (char *w = strtok_r(line, " \n", &save); w && count < 32; w = strtok_r(NULL, " \n", &save))
                words[count++] = w;
        struct net_egress e = egress_of(words, count, &ignored);
        bool done = net_set_egress(net, &e, &err) == 0;
        if (done)
                serve_domains(net, slot, &e);
        printf("%s\n", done ? "set" : err.message);
        fflush(stdout);
}

int main(int argc, char **argv)
{
        struct net_config config = {.slot = argc > 1 ? (unsigned)atoi(argv[1]) : 0, .owner = "/data/helper"};
        struct net_egress egress;
        struct error err = {};
        struct net *net = NULL;
        int64_t start = clock_monotonic_ns();
        char line[1024] = "";
        int tap;
        pid_t guest;

        egress = egress_of(argv + 2, argc > 2 ? argc - 2 : 0, &config.allow_private);
        config.egress = egress;
        if (net_begin(&config, &net, &err) < 0 || net_finish(net, &err) < 0) {
                fprintf(stderr, "net_helper: %s\n", err.message);
                return 1;
        }
        start = clock_monotonic_ns() - start;
        serve_domains(net, config.slot, &egress);
        guest = start_guest(&tap);
        printf("shim %d guest %d microseconds %lld\n", getpid(), guest, (long long)start / 1000);
        fflush(stdout);
        for (;;) {
                struct pollfd fds[3] = {{.fd = 0, .events = POLLIN},
                                        {.fd = tap, .events = POLLIN},
                                        {.fd = net_tap_fd(net), .events = POLLIN}};

                if (poll(fds, 3, -1) < 0)
                        continue;
                if (fds[0].revents) {
                        ssize_t n = read(0, line, sizeof(line) - 1);

                        line[n > 0 ? n : 0] = '\0';
                        if (strncmp(line, "set", 3) == 0) {
                                set_rules(net, config.slot, line);
                                continue;
                        }
                        if (n > 0 && strncmp(line, "end", 3) == 0)
                                net_end(net);
                        return 0;
                }
                carry(tap, net_tap_fd(net));
                carry(net_tap_fd(net), tap);
        }
}
