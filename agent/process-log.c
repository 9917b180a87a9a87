#include "base/buf.h"
#include "journal.h"
#include "process-internal.h"

static json_t *event_fields(const char *type, pid_t pid, const char *tag)
{
        json_t *fields = json_pack("{s:s, s:i}", "event_type", type, "pid", (int)pid);

        if (tag)
                json_object_set_new(fields, "tag", journal_text(tag));
        return fields;
}

void process_log_start(pid_t pid, const struct process_start *s)
{
        CLEANUP_BUF struct buf command = {};
        json_t *fields = event_fields("process_start", pid, s->tag);

        spawn_command_line(&s->spawn, &command);
        json_object_set_new(fields, "command", journal_text(buf_str(&command)));
        json_object_set_new(fields, "cwd", journal_text(s->spawn.cwd));
        json_object_set_new(fields, "user", journal_text(s->spawn.user->name));
        journal_add("info", "process", "process started", fields);
}

void process_log_end(pid_t pid, const char *tag, bool pty, const uint64_t bytes[STREAM_PTY + 1], const struct process_end *end)
{
        json_t *fields = event_fields("process_end", pid, tag);

        json_object_set_new(fields, "status", json_string(end->status));
        json_object_set_new(fields, "exit_code", json_integer(end->code));
        if (pty) {
                json_object_set_new(fields, "pty_bytes", json_integer((json_int_t)bytes[STREAM_PTY]));
        } else {
                json_object_set_new(fields, "stdout_bytes", json_integer((json_int_t)bytes[STREAM_STDOUT]));
                json_object_set_new(fields, "stderr_bytes", json_integer((json_int_t)bytes[STREAM_STDERR]));
        }
        journal_add("info", "process", "process ended", fields);
}
