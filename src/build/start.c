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
        bool ended;                  /* it ran, and ended well */
        struct output_log output;
        struct guest_command command;
};

/* The wait for the ready command. */
struct wait {
        struct background *start;
        int64_t end;               /* monotonic */
        unsigned tries;            /* that ended */
        char last[64];             /* status of the last of them */
        bool running;              /* one is under way */
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
        if (exit.code == 0) {
                start->ended = true;
                return 0;
        }
        return error_set(err, ERROR_INVALID, "start command failed: error running start command: %s", exit.status);
}

/* What a user needs to tell a service that is slow from one that is not there. */
static char *describe_wait(const struct wait *w)
{
        const char *start = w->start->ended ? "; the start command has ended by itself, with exit status 0" : "";

        if (w->running)
                return xasprintf("try %u was still running%s", w->tries + 1, start);
        return xasprintf("%u tries, the last one: %s%s", w->tries, w->last, start);
}

static int check_time(struct pipeline *p, const struct wait *w, struct error *err)
{
        CLEANUP_FREE char *limit = format_seconds(p->run->settings->ready_seconds), *state = NULL;

        if (build_run_stopped(p->run))
                return error_set(err, ERROR_CANCELLED, "the build was told to stop");
        if (clock_monotonic_ns() < w->end)
                return 0;
        state = describe_wait(w);
        return error_set(err, ERROR_INVALID, "ready command failed: ready command timed out after %s (%s)", limit, state);
}

/* One run of the ready command: 1 ready, 0 not yet, negative failed for good. */
static int try_ready(struct pipeline *p, struct wait *w, const char *command, const struct build_context *context, struct error *err)
{
        struct background ready = {};
        struct agent_exit exit = {};
        int r = spawn(p, &ready, command, context, LOG_LEVEL_DEBUG, "[ready] ", true, err);

        if (r < 0)
                r = error_wrap(err, r, "ready command failed");
        w->running = true;
        while (r >= 0) {
                r = agent_stream_poll(ready.stream, POLL_MS, &exit, err);
                if (r < 0)
                        error_wrap(err, r, "ready command failed");
                if (r <= 0)
                        break;
                r = check_start(w->start, 0, err);
                if (r >= 0)
                        r = check_time(p, w, err);
        }
        w->running = false;
        background_end(&ready);
        if (r < 0)
                return r;
        if (exit.code == 0)
                return 1;
        w->tries++;
        snprintf(w->last, sizeof(w->last), "%s", exit.status);
        build_log(&p->run->log, LOG_LEVEL_DEBUG, "Template is not ready: %s", exit.status);
        return 0;
}

/* The pause between two tries, with an eye on the start command. */
static int pause_between(struct pipeline *p, struct wait *w, struct error *err)
{
        int64_t until = clock_monotonic_ns() + BUILD_READY_INTERVAL_MS * NSEC_PER_MSEC;
        int r = 0;

        while (r >= 0 && clock_monotonic_ns() < until) {
                if (w->start->stream)
                        r = check_start(w->start, POLL_MS, err);
                else
                        build_run_pause(p->run, BUILD_READY_INTERVAL_MS);
                if (r >= 0)
                        r = check_time(p, w, err);
        }
        return r;
}

static int wait_ready(struct pipeline *p, struct background *start, const char *command, const struct build_context *context,
                      struct error *err)
{
        struct wait w = {.start = start, .end = clock_monotonic_ns() + p->run->settings->ready_seconds * NSEC_PER_SEC};
        int r;

        build_log(&p->run->log, LOG_LEVEL_INFO, "Waiting for template to be ready: %s", command);
        for (;;) {
                r = try_ready(p, &w, command, context, err);
                if (r < 0)
                        return r;
                if (r > 0)
                        break;
                r = pause_between(p, &w, err);
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
