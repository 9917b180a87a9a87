/* Between process.c and the files beside it. Loop thread only. */
#pragma once

#include "process.h"

/* process-end.c: the ends of processes, kept for PROCESS_RETAIN_MS. */
/* Keeps a copy. */
void process_retain(pid_t pid, const char *tag, const struct process_end *end);
/* What a new process with this PID or tag (or NULL) replaces, and what is too old. */
void process_forget_ended(pid_t pid, const char *tag);

/* process-log.c: a process's part of the sandbox's log (envd.md appendix D): what began and how it ended, without what it said. */
void process_log_start(pid_t pid, const struct process_start *s);
/* `bytes` came, by stream. */
void process_log_end(pid_t pid, const char *tag, bool pty, const uint64_t bytes[STREAM_PTY + 1], const struct process_end *end);
