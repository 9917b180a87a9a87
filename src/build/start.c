/* The start command, in the background, and the ready command, polled until it succeeds (template-api 13.2, 13.3).
 *
 * Both are processes of the agent whose streams are polled in turn, so that a start command that fails is noticed while a
 * ready command sleeps. The start command's stream is closed at the end; the process lives on into the snapshot.
 */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "build/limits.h"
#include "build/pipeline.h"

#define POLL_MS 50

struct background {
        struct agent_stream *stream; /* NULL when not running */
        struct output_log output;
        struct guest_command command;
};

static void on_background_output(int stream, const char *data, size_t len, void *b)
{
        output_log_feed(&((struct background *)b)->output, stream, data, len);
}

static int spawn(struct pipeline *p, struct background *b, const char *command, const struct build_context *context,
                 int level, const char *prefix, bool name_streams, struct error *err)
{
        output_log_init(&b->output, &p->run->log, level, prefix, name_streams);
        guest_command_init(&b->command, command, context);
        b->command.process.on_output = on_background_output;
        b->command.process.data = b;
        return agent_spawn(p->vm, &b->command.process, &b->stream, err);
}

static void background_end(struct background *b)
{
        agent_stream_close(b->stream);
        b->stream = NULL;
        output_log_end(&b->output);
        output_log_free(&b->output);
        guest_command_free(&b->command);
}

/* 0, or the error of a start command that failed. One that ended well is fine. */
static int check_start(struct background *start, unsigned wait_ms, struct error *err)
{
        struct agent_exit exit = {};
        int r;

        if (!start->stream)
                return 0;
        r = agent_stream_poll(start->stream, wait_ms, &exit, err);
        if (r < 0)
                return error_wrap(err, r, "start command failed: error running start command");
        if (r > 0)
                return 0;
        agent_stream_close(start->stream);
        start->stream = NULL;
        output_log_end(&start->output);
        if (exit.code == 0)
                return 0;
        return error_set(err, ERROR_INVALID, "start command failed: error running start command: %s", exit.status);
}

static int check_time(struct pipeline *p, int64_t end, struct error *err)
{
        CLEANUP_FREE char *limit = format_seconds(BUILD_READY_SECONDS);

        if (build_run_stopped(p->run))
                return error_set(err, ERROR_CANCELLED, "the build was told to stop");
        if (clock_monotonic_ns() < end)
                return 0;
        return error_set(err, ERROR_INVALID, "ready command failed: ready command timed out after %s", limit);
}

/* One run of the ready command: 1 ready, 0 not yet, negative failed for good. */
static int try_ready(struct pipeline *p, struct background *start, const char *command, const struct build_context *context,
                     int64_t end, struct error *err)
{
        struct background ready = {};
        struct agent_exit exit = {};
        int r = spawn(p, &ready, command, context, LOG_LEVEL_DEBUG, "[ready] ", true, err);

        if (r < 0)
                r = error_wrap(err, r, "ready command failed");
        while (r >= 0) {
                r = agent_stream_poll(ready.stream, POLL_MS, &exit, err);
                if (r < 0)
                        error_wrap(err, r, "ready command failed");
                if (r <= 0)
                        break;
                r = check_start(start, 0, err);
                if (r >= 0)
                        r = check_time(p, end, err);
        }
        background_end(&ready);
        if (r < 0)
                return r;
        if (exit.code == 0)
                return 1;
        build_log(&p->run->log, LOG_LEVEL_DEBUG, "Template is not ready: %s", exit.status);
        return 0;
}

/* The pause between two tries, with an eye on the start command. */
static int pause_between(struct pipeline *p, struct background *start, int64_t end, struct error *err)
{
        int64_t until = clock_monotonic_ns() + BUILD_READY_INTERVAL_MS * NSEC_PER_MSEC;
        int r = 0;

        while (r >= 0 && clock_monotonic_ns() < until) {
                if (start->stream)
                        r = check_start(start, POLL_MS, err);
                else
                        build_run_pause(p->run, BUILD_READY_INTERVAL_MS);
                if (r >= 0)
                        r = check_time(p, end, err);
        }
        return r;
}

static int wait_ready(struct pipeline *p, struct background *start, const char *command, const struct build_context *context,
                      struct error *err)
{
        int64_t end = clock_monotonic_ns() + BUILD_READY_SECONDS * NSEC_PER_SEC;
        int r;

        build_log(&p->run->log, LOG_LEVEL_INFO, "Waiting for template to be ready: %s", command);
        for (;;) {
                r = try_ready(p, start, command, context, end, err);
                if (r < 0)
                        return r;
                if (r > 0)
                        break;
                r = pause_between(p, start, end, err);
                if (r < 0)
                        return r;
        }
        /* Both may have happened before we looked: a command that failed is not worth a snapshot. */
        r = check_start(start, 0, err);
        if (r >= 0)
                build_log(&p->run->log, LOG_LEVEL_INFO, "Template is ready");
        return r;
}

int pipeline_start_and_wait(struct pipeline *p, const char *start_cmd, const char *ready_cmd,
                            const struct build_context *context, struct error *err)
{
        struct background start = {};
        int r = 0;

        if (start_cmd) {
                build_log(&p->run->log, LOG_LEVEL_INFO, "Running start command: %s", start_cmd);
                r = spawn(p, &start, start_cmd, context, LOG_LEVEL_INFO, "[start] ", true, err);
                if (r < 0)
                        r = error_wrap(err, r, "start command failed: error running start command");
        }
        if (r >= 0 && ready_cmd)
                r = wait_ready(p, &start, ready_cmd, context, err);
        if (start_cmd)
                background_end(&start);
        return r;
}
