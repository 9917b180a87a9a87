#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "build/queue.h"

/* The fake pipeline: a build named "hold…" runs until its VM is killed or it is released; "fail" fails in step 3; others
 * succeed at once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct buf story; /* "<what> <id> <detail>|" */
static int running, most, started, ended, kills;
static bool release_all, refuse_ready;
static char *top;
static struct build_queue *queue;

static void tell(const char *what, const char *id, const char *detail)
{
        pthread_mutex_lock(&lock);
        buf_addf(&story, "%s %s %s|", what, id, detail ? detail : "-");
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
}

static void on_log(void *data, const char *id, int level, const char *step, const char *message)
{
        (void)data;
        (void)step;
        if (level == LOG_LEVEL_ERROR || str_starts(message, "Build finished"))
                tell("log", id, level == LOG_LEVEL_ERROR ? message : "finished");
}

static void on_started(void *data, const char *id)
{
        (void)data;
        (void)id;
        pthread_mutex_lock(&lock);
        started++;
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
}

static void end(void)
{
        pthread_mutex_lock(&lock);
        ended++;
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
}

static int on_ready(void *data, const struct build_job *job, const struct build_outcome *o, struct error *err)
{
        (void)data;
        (void)o;
        if (refuse_ready) {
                end();
                return error_set(err, ERROR_CONFLICT, "not wanted any more");
        }
        tell("ready", job->build_id, NULL);
        end();
        return 0;
}

static void on_failed(void *data, const char *id, const char *reason, const char *step)
{
        CLEANUP_FREE char *detail = xasprintf("%s@%s", reason, step ? step : "none");

        (void)data;
        tell("failed", id, detail);
        end();
}

static int fake_run(struct build_run *r, struct build_outcome *ret, struct error *err)
{
        (void)ret;
        build_run_vm(r, r->job->build_id);
        pthread_mutex_lock(&lock);
        running++;
        most = running > most ? running : most;
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
        if (str_starts(r->job->build_id, "hold")) {
                pthread_mutex_lock(&lock);
                while (!release_all && !kills)
                        pthread_cond_wait(&change, &lock); /* as a guest call: only the end of the VM ends it */
                pthread_mutex_unlock(&lock);
        }
        build_run_vm(r, NULL);
        pthread_mutex_lock(&lock);
        running--;
        pthread_mutex_unlock(&lock);
        build_run_phase(r, "3");
        if (streq(r->job->build_id, "fail"))
                return error_set(err, ERROR_INVALID, "failed to run command 'x': exit status 3");
        if (build_run_stopped(r))
                return error_set(err, ERROR_INTERNAL, "the guest went away");
        return 0;
}

static void fake_kill(const char *dir)
{
        (void)dir;
        pthread_mutex_lock(&lock);
        kills++;
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
}

static const struct build_events events = {
        .log = on_log, .started = on_started, .ready = on_ready, .failed = on_failed};
static const struct build_queue_ops ops = {.run = fake_run, .kill_vm = fake_kill};

static void make(unsigned max_builds, unsigned max_seconds)
{
        struct build_settings s = {.data_dir = top, .max_builds = max_builds, .max_seconds = max_seconds,
                                   .step_cache_bytes = 1 << 20};
        struct error err = {};

        if (build_queue_new_with(&s, &events, &ops, &queue, &err) < 0)
                fail_msg("%s", err.message);
}

static void submit(const char *id)
{
        struct build_job *j = xcalloc(1, sizeof(*j));

        j->build_id = xstrdup(id);
        assert_int_equal(build_queue_submit(queue, j, NULL), 0);
}

static void wait_for(const int *counter, int value)
{
        pthread_mutex_lock(&lock);
        while (*counter < value)
                pthread_cond_wait(&change, &lock);
        pthread_mutex_unlock(&lock);
}

static int start(void **state)
{
        char name[] = "/tmp/test-queue-XXXXXX";

        (void)state;
        top = xstrdup(mkdtemp(name));
        running = most = started = ended = kills = 0;
        release_all = refuse_ready = false;
        buf_clear(&story);
        return 0;
}

static int stop(void **state)
{
        (void)state;
        build_queue_free(queue);
        queue = NULL;
        tree_remove(top, NULL);
        free(top);
        buf_free(&story);
        return 0;
}

static void at_most_max_builds_at_once(void **state)
{
        (void)state;
        make(2, 3600);
        submit("hold1");
        submit("hold2");
        submit("hold3");
        wait_for(&running, 2);
        pthread_mutex_lock(&lock);
        release_all = true;
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
        wait_for(&ended, 3);
        assert_int_equal(most, 2);
        assert_non_null(strstr(buf_str(&story), "log hold3 finished|ready hold3"));
}

static void a_failure_has_its_step(void **state)
{
        (void)state;
        make(1, 3600);
        submit("fail");
        wait_for(&ended, 1);
        assert_string_equal(buf_str(&story), "log fail Build failed: failed to run command 'x': exit status 3|"
                                             "failed fail failed to run command 'x': exit status 3@3|");
}

static void cancels_a_running_build(void **state)
{
        (void)state;
        make(1, 3600);
        submit("hold");
        wait_for(&running, 1);
        build_queue_cancel(queue, "nobody");
        build_queue_cancel(queue, "hold");
        wait_for(&ended, 1);
        assert_true(kills > 0);
        assert_string_equal(buf_str(&story), "log hold Build failed: build was cancelled|"
                                             "failed hold build was cancelled@none|");
}

static void cancels_a_queued_build(void **state)
{
        (void)state;
        make(1, 3600);
        submit("hold");
        submit("later");
        wait_for(&started, 1);
        build_queue_cancel(queue, "later");
        wait_for(&ended, 1);
        assert_string_equal(buf_str(&story), "log later Build failed: build was cancelled|"
                                             "failed later build was cancelled@none|");
        assert_int_equal(started, 1);
}

static void an_overlong_build_fails(void **state)
{
        (void)state;
        make(1, 1);
        submit("hold");
        wait_for(&ended, 1);
        assert_string_equal(buf_str(&story),
                            "log hold Build failed: build status polling timed out. Maximum build time is 1s.|"
                            "failed hold build status polling timed out. Maximum build time is 1s.@none|");
}

static void an_unwanted_result_is_removed(void **state)
{
        CLEANUP_FREE char *dir = xasprintf("%s/builds/quick", top);

        (void)state;
        make(1, 3600);
        assert_int_equal(dir_make(dir, 0700, NULL), 0);
        refuse_ready = true;
        submit("quick");
        wait_for(&ended, 2);
        assert_false(path_exists(dir));
        assert_non_null(strstr(buf_str(&story), "failed quick not wanted any more"));
}

static void closing_cancels_everything(void **state)
{
        (void)state;
        make(1, 3600);
        submit("hold");
        submit("later");
        wait_for(&started, 1);
        build_queue_free(queue);
        queue = NULL;
        assert_int_equal(ended, 2);
        assert_non_null(strstr(buf_str(&story), "failed hold build was cancelled"));
        assert_non_null(strstr(buf_str(&story), "failed later build was cancelled"));
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
        const struct CMUnitTest tests[] = {
                T(at_most_max_builds_at_once), T(a_failure_has_its_step), T(cancels_a_running_build),
                T(cancels_a_queued_build), T(an_overlong_build_fails), T(an_unwanted_result_is_removed),
                T(closing_cancels_everything),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
