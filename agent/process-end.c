/* How processes ended: in words, and for those who ask within 30 s (envd.md 2.1). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "process-internal.h"

struct ended {
        struct ended *next;
        pid_t pid;
        char *tag;
        struct process_end end;
        int64_t at_ns;
};

static struct ended *ended_list;

static const char *signal_text(int number, char *out, size_t size)
{
        static const char *const names[] = {
                [SIGHUP] = "hangup", [SIGINT] = "interrupt", [SIGQUIT] = "quit", [SIGILL] = "illegal instruction",
                [SIGTRAP] = "trace/breakpoint trap", [SIGABRT] = "aborted", [SIGBUS] = "bus error",
                [SIGFPE] = "floating point exception", [SIGKILL] = "killed", [SIGUSR1] = "user defined signal 1",
                [SIGSEGV] = "segmentation fault", [SIGUSR2] = "user defined signal 2", [SIGPIPE] = "broken pipe",
                [SIGALRM] = "alarm clock", [SIGTERM] = "terminated", [SIGSTKFLT] = "stack fault",
                [SIGCHLD] = "child exited", [SIGCONT] = "continued", [SIGSTOP] = "stopped (signal)",
                [SIGTSTP] = "stopped", [SIGTTIN] = "stopped (tty input)", [SIGTTOU] = "stopped (tty output)",
                [SIGURG] = "urgent I/O condition", [SIGXCPU] = "CPU time limit exceeded",
                [SIGXFSZ] = "file size limit exceeded", [SIGVTALRM] = "virtual timer expired",
                [SIGPROF] = "profiling timer expired", [SIGWINCH] = "window changed", [SIGIO] = "I/O possible",
                [SIGPWR] = "power failure", [SIGSYS] = "bad system call",
        };

        if (number > 0 && (size_t)number < sizeof(names) / sizeof(names[0]) && names[number])
                return names[number];
        snprintf(out, size, "signal %d", number);
        return out;
}

void process_describe(int status, struct process_end *ret)
{
        char number[24];

        ret->exited = WIFEXITED(status);
        ret->code = ret->exited ? WEXITSTATUS(status) : -1;
        if (ret->exited)
                snprintf(ret->status, sizeof(ret->status), "exit status %d", ret->code);
        else
                snprintf(ret->status, sizeof(ret->status), "signal: %s%s",
                         signal_text(WTERMSIG(status), number, sizeof(number)),
                         WCOREDUMP(status) ? " (core dumped)" : "");
}

void process_forget_ended(pid_t pid, const char *tag)
{
        int64_t limit = clock_monotonic_ns() - PROCESS_RETAIN_MS * NSEC_PER_MSEC;

        for (struct ended **at = &ended_list; *at; ) {
                struct ended *e = *at;

                if (e->at_ns >= limit && e->pid != pid && !(tag && streq(e->tag, tag))) {
                        at = &e->next;
                        continue;
                }
                *at = e->next;
                free(e->tag);
                free(e);
        }
}

static void forget_old(void)
{
        process_forget_ended(0, NULL);
}

void process_retain(pid_t pid, const char *tag, const struct process_end *end)
{
        struct ended *e = xcalloc(1, sizeof(*e));

        forget_old();
        *e = (struct ended){ ended_list, pid, xstrdup_or_null(tag), *end, clock_monotonic_ns() };
        ended_list = e;
}

const struct process_end *process_ended_by_pid(pid_t pid, pid_t *ret_pid)
{
        forget_old();
        for (struct ended *e = ended_list; e; e = e->next)
                if (e->pid == pid) {
                        *ret_pid = pid;
                        return &e->end;
                }
        return NULL;
}

const struct process_end *process_ended_by_tag(const char *tag, pid_t *ret_pid)
{
        forget_old();
        for (struct ended *e = ended_list; e; e = e->next)
                if (e->tag && streq(e->tag, tag)) {
                        *ret_pid = e->pid;
                        return &e->end;
                }
        return NULL;
}
