/* QEMU's monitor: one command at a time on the wire, clients queue for it; events go to those who await them.
 *
 * States: greeting awaited -> capabilities sent -> ready -> (closed). A line that breaks the protocol closes it.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/json.h"
#include "base/str.h"
#include "shim.h"
#include "vm/fdpass.h"
#include "vm/qmp.h"

static int send_command(struct shim *s, const char *command, const json_t *arguments, int fd)
{
        CLEANUP_BUF struct buf b = {};

        qmp_format(&b, command, arguments, ++s->monitor.next_id);
        return fd_send(s->monitor.fd, b.data, b.len, fd);
}

void monitor_queue(struct shim *s)
{
        struct monitor *m = &s->monitor;
        const json_t *arguments;
        const char *command;
        int fd;

        while (m->fd >= 0 && m->ready && !m->active) {
                struct client *c = client_next_command(s, &command, &arguments, &fd);

                if (!c)
                        return;
                m->active = c;
                if (send_command(s, command, arguments, fd) < 0)
                        monitor_closed(s);
        }
}

static void handle_return(struct shim *s, const struct qmp_message *q, const json_t *line)
{
        struct monitor *m = &s->monitor;
        struct client *c = m->active;

        if (q->id != m->next_id)
                return;
        if (!m->ready) {
                m->ready = q->kind == QMP_RETURN;
                if (m->ready)
                        client_started(s, NULL);
                return;
        }
        m->active = NULL;
        if (c)
                client_qmp_result(c, line);
}

static void handle_line(struct shim *s, const json_t *line)
{
        struct qmp_message q;

        qmp_classify(line, &q);
        switch (q.kind) {
        case QMP_GREETING:
                if (send_command(s, "qmp_capabilities", NULL, -1) < 0)
                        monitor_closed(s);
                break;
        case QMP_RETURN:
        case QMP_ERROR:
                handle_return(s, &q, line);
                break;
        case QMP_EVENT:
                if (streq(q.text, "SHUTDOWN") && json_bool(q.value, "guest", false))
                        s->monitor.guest_shutdown = true;
                if (streq(q.text, "BLOCK_IO_ERROR") && json_bool(q.value, "nospace", false) && s->end_on_full)
                        shim_end(s, "disk-full");
                client_qmp_event(s, line);
                break;
        case QMP_UNKNOWN:
                break;
        }
}

void monitor_closed(struct shim *s)
{
        struct monitor *m = &s->monitor;

        if (m->fd < 0)
                return;
        close(m->fd);
        m->fd = -1;
        m->active = NULL;
        buf_free(&m->in);
        m->in = (struct buf){};
        client_qmp_lost(s);
}

void monitor_readable(struct shim *s)
{
        struct monitor *m = &s->monitor;
        ssize_t n = fd_recv(m->fd, &m->in, NULL, MSG_DONTWAIT);
        json_t *line;
        int r = 0;

        if (n == -EAGAIN)
                return;
        while (n > 0 && m->fd >= 0 && (r = line_take(&m->in, &line)) > 0) {
                handle_line(s, line);
                json_decref(line);
        }
        if (n <= 0 || r < 0)
                monitor_closed(s);
        else
                monitor_queue(s);
}
