/* One GET to the agent's port, over a connection of its own that the shim makes. HTTP/1.0, so that the end of the connection is
 * the end of the answer and no framing is needed; the guest is not trusted: the answer is bounded in size and time.
 */
#include "sandbox/metrics.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "vm/vm.h"

#define ANSWER_MAX (64 * 1024)
#define ANSWER_TIMEOUT_S 5

static int no_answer(struct error *err, const char *why)
{
        return error_set(err, ERROR_UNAVAILABLE, "the sandbox's agent gave no metrics: %s", why);
}

static int exchange(int fd, const char *token, struct buf *answer, struct error *err)
{
        CLEANUP_BUF struct buf request = {};
        struct timeval limit = { .tv_sec = ANSWER_TIMEOUT_S };
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        buf_adds(&request, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n");
        if (token)
                buf_addf(&request, "X-Access-Token: %s\r\n", token);
        buf_adds(&request, "\r\n");
        /* MSG_NOSIGNAL: the guest may close at any time. */
        if (send(fd, request.data, request.len, MSG_NOSIGNAL) != (ssize_t)request.len)
                return no_answer(err, "the connection broke");
        while (answer->len < ANSWER_MAX) {
                ssize_t n = recv(fd, buf_reserve(answer, 4096), 4096, 0);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return no_answer(err, errno == EAGAIN ? "it took too long" : "the connection broke");
                if (n == 0)
                        return 0;
                buf_grew(answer, n);
        }
        return no_answer(err, "too long an answer");
}

int sandbox_metrics_sample(struct sandbox_manager *m, const struct team *team, const char *id, struct sandbox_metrics *ret, struct error *err)
{
        struct sandbox_info *info = NULL;
        CLEANUP_BUF struct buf answer = {};
        CLEANUP_CLOSE int fd = -1;
        int r = sandbox_get(m, team, id, &info, err);
        if (r < 0)
                return r;
        if (sandbox_dial(m, id, VM_AGENT_PORT, &fd) < 0)
                r = no_answer(err, "it does not listen");
        if (r == 0)
                r = exchange(fd, info->envd_token, &answer, err);
        sandbox_info_free(info);
        return r < 0 ? r : sandbox_metrics_parse(buf_str(&answer), answer.len, ret, err);
}
