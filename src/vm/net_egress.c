#include "vm/net_egress.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/subprocess.h"
#include "vm/fdpass.h"
#include "vm/net.h"
#include "vm/net_rules.h"

static _Noreturn void run_child(const struct net_egress_start *s, const char *path, int control)
{
        char *argv[] = {(char *)path, NULL}, *env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
        int null = open("/dev/null", O_RDWR);
        sigset_t none;

        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        if (s->in_child)
                s->in_child(s->data);
        /* Out of each other's way first. */
        control = fcntl(control, F_DUPFD, EGRESS_FD_LISTENER + 1);
        if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || dup2(s->listener, EGRESS_FD_LISTENER) < 0 ||
            dup2(control, EGRESS_FD_CONTROL) < 0)
                _exit(127);
        syscall(SYS_close_range, EGRESS_FD_LISTENER + 1, ~0u, CLOSE_RANGE_CLOEXEC);
        execve(path, argv, env);
        _exit(127);
}

static json_t *configuration(const struct net_egress_start *s)
{
        char resolver[NET_ADDRESS_MAX];
        json_t *domains = json_array();

        for (const char *const *d = s->domains; *d; d++)
                json_array_append_new(domains, json_string(*d));
        return json_pack("{s:i, s:s, s:o}", "uid", (int)s->uid, "resolver", net_host_resolver(resolver) ? resolver : NET_PUBLIC_RESOLVER, "domains", domains);
}

int net_egress_spawn(const struct net_egress_start *s, pid_t *ret_pid, int *ret_control, struct error *err)
{
        CLEANUP_FREE char *path = program_beside("vmon-egress");
        CLEANUP_JSON json_t *config = configuration(s);
        CLEANUP_CLOSE int ours = -1, theirs = -1;
        int pair[2], r;

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
                return error_errno(err, errno, "start vmon-egress");
        ours = pair[0];
        theirs = pair[1];
        *ret_pid = fork();
        if (*ret_pid == 0)
                run_child(s, path, theirs);
        if (*ret_pid < 0)
                return error_errno(err, errno, "start vmon-egress");
        r = line_send(ours, config, -1);
        if (r < 0) /* it will see the end of the line, and end */
                return error_errno(err, r, "configure vmon-egress");
        *ret_control = STEAL_FD(ours);
        return 0;
}
