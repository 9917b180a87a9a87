/* Kills a process that uses the store, again and again, at random instants (design 7: everything acknowledged is durable).
 *
 * Each round runs this program again as a worker: threads that write through src/store as fast as they can and write one `struct
 * ack` to a pipe after each commit. The parent kills it with SIGKILL, takes what is still in the pipe, opens the store (which is
 * SQLite's recovery) and checks two things: whatever was acknowledged is there, and what was not is there whole or not at all.
 *
 *   groups     a transaction rewrites a group of 1 to 90 keys with one number, and deletes those that the last number had more
 *   transfers  a transaction moves an amount between two accounts, on the condition that neither has changed: the sum stays
 *   builds     the records: register, start, log, ready or failed, delete; every index agrees with what it points at
 *
 * 60 rounds; VMON_SOAK=1: 600. VMON_CRASH_SEED=N repeats a run's instants (not the scheduler's).
 */
#include "temporary.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "store/internal.h"

#define GROUP_THREADS 2
#define GROUPS 12
#define GROUP_MAX 90
#define TRANSFER_THREADS 2
#define ACCOUNTS 8
#define BALANCE 1000
#define ALIASES 4
#define LOG_BATCH 5
#define LIFE_US 60000 /* a worker lives this long at most after its first acknowledgement */

enum ack_kind { ACK_GROUP, ACK_TRANSFER, ACK_REGISTERED, ACK_STARTED, ACK_LOGGED, ACK_READY, ACK_FAILED, ACK_DELETED };

struct ack {
        uint32_t kind, thread, group, number;
        char id[UUID_LEN + 1]; /* of a build; of a template for ACK_DELETED */
};

/* The worker */

struct worker {
        struct store *store;
        struct records *records;
        int out;
        unsigned thread;
};

static void die(const char *what, const struct error *err)
{
        fprintf(stderr, "worker: %s: %s\n", what, err->message);
        _exit(1);
}

static void acknowledge(const struct worker *w, struct ack a)
{
        if (write(w->out, &a, sizeof(a)) != sizeof(a))
                _exit(1);
}

static unsigned size_of(uint32_t number)
{
        return 1 + number * 37 % GROUP_MAX;
}

/* The number in a key's value, its revision; 0 when there is none. */
static uint32_t number_at(struct store *s, const char *key, int64_t *ret_revision)
{
        CLEANUP(store_value_free) struct store_value v = {};
        struct error err;
        int r = store_get(s, key, &v, &err);

        if (r < 0 && r != -ENOENT)
                die(key, &err);
        if (ret_revision)
                *ret_revision = v.revision;
        return v.data ? (uint32_t)strtoul(v.data, NULL, 10) : 0;
}

static void rewrite_group(struct worker *w, unsigned group, uint32_t number, uint32_t last, int64_t revision)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        char key[64], value[1024];
        struct error err;

        for (unsigned i = 0; i < GROUP_MAX; i++) {
                snprintf(key, sizeof(key), "group/%u/%02u/%02u", w->thread, group, i);
                if (i == 0)
                        store_txn_expect(txn, key, revision);
                snprintf(value, sizeof(value), "%u %0*u", number, (int)(number * 131 % 900), i);
                if (i < size_of(number))
                        store_txn_put(txn, key, value, strlen(value));
                else if (last && i < size_of(last))
                        store_txn_delete(txn, key);
        }
        if (store_commit(w->store, txn, &err) < 0)
                die("rewrite a group", &err);
        acknowledge(w, (struct ack){ .kind = ACK_GROUP, .thread = w->thread, .group = group, .number = number });
}

static void *write_groups(void *data)
{
        struct worker *w = data;

        for (unsigned turn = 0;; turn++) {
                unsigned group = turn * 5 % GROUPS;
                int64_t revision;
                char key[64];
                uint32_t last;

                snprintf(key, sizeof(key), "group/%u/%02u/00", w->thread, group);
                last = number_at(w->store, key, &revision);
                rewrite_group(w, group, last + 1, last, revision);
        }
        return NULL;
}

static void put_number(struct store_txn *txn, const char *key, uint32_t number)
{
        char value[16];

        snprintf(value, sizeof(value), "%u", number);
        store_txn_put(txn, key, value, strlen(value));
}

/* One attempt: another thread may have changed an account meanwhile. */
static bool transfer(struct worker *w, unsigned from, unsigned to, const char *counter, uint32_t number)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        int64_t from_revision, to_revision;
        char a[32], b[32];
        uint32_t from_has, to_has;
        struct error err;
        int r;

        snprintf(a, sizeof(a), "account/%u", from);
        snprintf(b, sizeof(b), "account/%u", to);
        from_has = number_at(w->store, a, &from_revision);
        to_has = number_at(w->store, b, &to_revision);
        if (from_has == 0)
                return true;
        store_txn_expect(txn, a, from_revision);
        store_txn_expect(txn, b, to_revision);
        put_number(txn, a, from_has - 1);
        put_number(txn, b, to_has + 1);
        put_number(txn, counter, number);
        r = store_commit(w->store, txn, &err);
        if (r < 0 && err.kind != ERROR_CONFLICT)
                die("transfer", &err);
        if (r == 0)
                acknowledge(w, (struct ack){ .kind = ACK_TRANSFER, .thread = w->thread, .number = number });
        return r == 0;
}

static void *make_transfers(void *data)
{
        struct worker *w = data;
        char counter[32];

        snprintf(counter, sizeof(counter), "transfers/%u", w->thread);
        for (unsigned turn = w->thread;; turn++) {
                uint32_t next = number_at(w->store, counter, NULL) + 1;

                while (!transfer(w, turn % ACCOUNTS, (turn * 3 + 1) % ACCOUNTS == turn % ACCOUNTS ? (turn + 1) % ACCOUNTS :
                                                     (turn * 3 + 1) % ACCOUNTS, counter, next))
                        ;
        }
        return NULL;
}

static void append_lines(struct worker *w, const char *build_id, unsigned first)
{
        struct log_entry entries[LOG_BATCH];
        char text[LOG_BATCH][32];
        struct error err;

        for (unsigned i = 0; i < LOG_BATCH; i++) {
                snprintf(text[i], sizeof(text[i]), "line %u", first + i);
                entries[i] = (struct log_entry){ clock_realtime_ns(), 1, NULL, text[i] };
        }
        if (records_log_append(w->records, build_id, entries, LOG_BATCH, &err) < 0)
                die("append to a log", &err);
}

static void acknowledge_build(struct worker *w, enum ack_kind kind, const char *id, unsigned number)
{
        struct ack a = { .kind = kind, .number = number };

        snprintf(a.id, sizeof(a.id), "%s", id);
        acknowledge(w, a);
}

static void run_build(struct worker *w, const char *id, bool succeeds)
{
        struct build_record result = { .id = (char *)id, .envd_version = (char *)"0.5.20" };
        struct error err;

        if (records_build_start(w->records, id, &err) < 0)
                die("start", &err);
        acknowledge_build(w, ACK_STARTED, id, 0);
        for (unsigned lines = 0; lines < 3 * LOG_BATCH; lines += LOG_BATCH) {
                append_lines(w, id, lines);
                acknowledge_build(w, ACK_LOGGED, id, lines + LOG_BATCH);
        }
        if ((succeeds ? records_build_ready(w->records, &result, &err) : records_build_fail(w->records, id, "it broke", "1", &err)) < 0)
                die("end a build", &err);
        acknowledge_build(w, succeeds ? ACK_READY : ACK_FAILED, id, 0);
}

static void *run_builds(void *data)
{
        struct worker *w = data;
        struct team *team;
        struct error err;

        if (records_team_by_slug(w->records, "crash", &team, &err) < 0 || records_builds_interrupted(w->records, "interrupted", &err) < 0)
                die("begin", &err);
        for (unsigned turn = (unsigned)clock_realtime_ns() % 64;; turn++) {
                static const char *const tags[] = { "default", "v1", NULL };
                char alias[16];
                struct build_request q = { .alias = alias, .tags = tags, .vcpus = 1, .memory_mb = 512 };
                CLEANUP(cleanup_template) struct template_record *t = NULL;
                CLEANUP(cleanup_build) struct build_record *b = NULL;
                char **cancelled;

                snprintf(alias, sizeof(alias), "a%u", turn % ALIASES);
                if (records_build_register(w->records, team, &q, &t, &b, &err) < 0)
                        die("register", &err);
                acknowledge_build(w, ACK_REGISTERED, b->id, 0);
                run_build(w, b->id, turn % 3 != 0);
                if (turn % 4 != 0)
                        continue;
                if (records_template_delete(w->records, t->id, &cancelled, &err) < 0)
                        die("delete", &err);
                acknowledge_build(w, ACK_DELETED, t->id, 0);
                name_list_free(cancelled);
        }
        return NULL;
}

static int work(const char *url, int out)
{
        struct worker w[GROUP_THREADS + TRANSFER_THREADS + 1];
        void *(*run[])(void *data) = { write_groups, write_groups, make_transfers, make_transfers, run_builds };
        pthread_t threads[5];
        struct error err;

        if (store_open(url, &w[0].store, &err) < 0 || records_open(w[0].store, &w[0].records, &err) < 0)
                die("open", &err);
        w[0].out = out;
        for (unsigned i = 0; i < 5; i++) {
                w[i] = w[0];
                w[i].thread = i;
                if (pthread_create(&threads[i], NULL, run[i], &w[i]) != 0)
                        _exit(1);
        }
        pthread_join(threads[0], NULL);
        return 1;
}

/* The parent */

struct build_seen {
        char id[UUID_LEN + 1];
        enum ack_kind kind; /* the last one */
        unsigned lines;
};

struct seen {
        uint32_t group[GROUP_THREADS][GROUPS];
        uint32_t transfers[GROUP_THREADS + TRANSFER_THREADS];
        struct build_seen *builds;
        size_t build_count, checked; /* those of earlier rounds have been checked */
        char **deleted;
        size_t acks;
};

static void take_build_ack(struct seen *s, const struct ack *a)
{
        struct build_seen *b = s->build_count ? &s->builds[s->build_count - 1] : NULL;

        if (a->kind == ACK_REGISTERED) {
                s->builds = xreallocarray(s->builds, s->build_count + 1, sizeof(*s->builds));
                b = &s->builds[s->build_count++];
                *b = (struct build_seen){};
                memcpy(b->id, a->id, sizeof(b->id));
        }
        assert_non_null(b);
        assert_string_equal(b->id, a->id); /* one thread, one build after the other */
        b->kind = (enum ack_kind)a->kind;
        if (a->kind == ACK_LOGGED)
                b->lines = a->number;
}

static void take_ack(struct seen *s, const struct ack *a)
{
        s->acks++;
        switch ((enum ack_kind)a->kind) {
        case ACK_GROUP:
                s->group[a->thread][a->group] = a->number;
                return;
        case ACK_TRANSFER:
                s->transfers[a->thread] = a->number;
                return;
        case ACK_DELETED:
                s->deleted = name_list_add(s->deleted, a->id);
                return;
        default:
                take_build_ack(s, a);
        }
}

/* Takes acknowledgements until `deadline_ns` (monotonic) or, when it is 0, until the end. False at the end. */
static bool take_acks(struct seen *s, int fd, int64_t deadline_ns)
{
        for (;;) {
                int64_t left = deadline_ns - clock_monotonic_ns();
                struct timespec timeout = { .tv_nsec = left > 0 ? left : 0 };
                struct pollfd p = { .fd = fd, .events = POLLIN };
                struct ack a;
                ssize_t n;

                if (deadline_ns && ppoll(&p, 1, &timeout, NULL) == 0)
                        return true;
                n = read(fd, &a, sizeof(a));
                if (n == 0)
                        return false;
                assert_int_equal(n, sizeof(a)); /* writes of less than PIPE_BUF are whole */
                take_ack(s, &a);
        }
}

static pid_t start_worker(const char *url, int *ret_fd)
{
        char fd_text[16];
        int fds[2];
        pid_t pid;

        assert_int_equal(pipe(fds), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                close(fds[0]);
                snprintf(fd_text, sizeof(fd_text), "%d", fds[1]);
                execl("/proc/self/exe", "test_store_crash", "--work", url, fd_text, (char *)NULL);
                _exit(1);
        }
        close(fds[1]);
        *ret_fd = fds[0];
        return pid;
}

/* Kills a worker some random time after its first commit; every fourth is killed while it opens the store. */
static void run_and_kill(struct seen *s, const char *url, unsigned round)
{
        int64_t life_ns = random() % LIFE_US * 1000;
        int status, fd;
        pid_t pid = start_worker(url, &fd);
        bool alive = true;

        if (round % 4 != 3) {
                struct pollfd p = { .fd = fd, .events = POLLIN };

                assert_int_equal(poll(&p, 1, 20000), 1);
        }
        alive = take_acks(s, fd, clock_monotonic_ns() + life_ns);
        kill(pid, SIGKILL);
        if (alive)
                take_acks(s, fd, 0);
        close(fd);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status)); /* a worker that ended by itself has met an error */
}

static void check_group(struct store *store, unsigned thread, unsigned group, uint32_t *acknowledged)
{
        struct store_value *values;
        struct error err;
        char prefix[32];
        uint32_t number;
        size_t count;

        snprintf(prefix, sizeof(prefix), "group/%u/%02u/", thread, group);
        assert_int_equal(store_range(store, prefix, NULL, 1000, &values, &count, &err), 0);
        number = count ? (uint32_t)strtoul(values[0].data, NULL, 10) : 0;
        assert_in_range(number, *acknowledged, *acknowledged + 1);
        assert_int_equal(count, number ? size_of(number) : 0);
        for (size_t i = 0; i < count; i++) {
                assert_int_equal(strtoul(values[i].data, NULL, 10), number);
                assert_int_equal(values[i].revision, values[0].revision);
        }
        *acknowledged = number;
        store_values_free(values, count);
}

static void check_accounts(struct store *store, struct seen *s)
{
        uint32_t sum = 0;
        char key[32];

        for (unsigned i = 0; i < ACCOUNTS; i++) {
                snprintf(key, sizeof(key), "account/%u", i);
                sum += number_at(store, key, NULL);
        }
        assert_int_equal(sum, ACCOUNTS * BALANCE);
        for (unsigned i = GROUP_THREADS; i < GROUP_THREADS + TRANSFER_THREADS; i++) {
                uint32_t number;

                snprintf(key, sizeof(key), "transfers/%u", i);
                number = number_at(store, key, NULL);
                assert_in_range(number, s->transfers[i], s->transfers[i] + 1);
                s->transfers[i] = number;
        }
}

static void check_log(struct records *r, const struct build_seen *seen)
{
        struct log_entry *entries;
        struct error err;
        size_t count;
        char text[32];

        assert_int_equal(records_log_read(r, seen->id, 0, 0, 1000, &entries, &count, &err), 0);
        assert_in_range(count, seen->lines, seen->lines + LOG_BATCH);
        assert_int_equal(count % LOG_BATCH, 0);
        for (size_t i = 0; i < count; i++) {
                snprintf(text, sizeof(text), "line %zu", i);
                assert_string_equal(entries[i].message, text);
        }
        log_entries_free(entries, count);
}

static void check_build(struct records *r, const struct build_seen *seen)
{
        CLEANUP(cleanup_build) struct build_record *b = NULL;
        struct error err;

        assert_int_equal(records_build_get(r, seen->id, &b, &err), 0);
        if (seen->kind == ACK_READY || seen->kind == ACK_FAILED)
                assert_int_equal(b->state, seen->kind == ACK_READY ? BUILD_READY : BUILD_ERROR);
        else /* a later worker fails what it finds interrupted */
                assert_in_range(b->state, seen->kind == ACK_REGISTERED ? BUILD_WAITING : BUILD_BUILDING, BUILD_ERROR);
        check_log(r, seen);
}

/* Every build among the active ones is active; a template that is listed has its alias, and its tags name its ready builds. */
static void check_template(struct records *r, const struct team *team, const struct template_record *t)
{
        CLEANUP_FREE char *holder = NULL;
        struct tag_record *tags;
        struct error err;
        size_t count;

        assert_false(t->deleted);
        assert_int_equal(records_find_text(r, &holder, NULL, &err, "alias/%s/%s", team->slug, t->aliases[0]), 0);
        assert_string_equal(holder, t->id);
        assert_int_equal(records_tags_list(r, t->id, &tags, &count, &err), 0);
        assert_int_equal(count, t->latest_ready ? 2 : 0);
        for (size_t i = 0; i < count; i++) {
                CLEANUP(cleanup_build) struct build_record *b = NULL;

                assert_string_equal(tags[i].build_id, t->latest_ready);
                assert_int_equal(records_build_get(r, tags[i].build_id, &b, &err), 0);
                assert_int_equal(b->state, BUILD_READY);
        }
        tag_records_free(tags, count);
}

static void check_records(struct records *r, struct seen *s)
{
        CLEANUP(cleanup_team) struct team *team = NULL;
        struct template_record **templates;
        struct build_record **active;
        struct error err;
        size_t count;
        bool more;

        for (; s->checked < s->build_count; s->checked++)
                check_build(r, &s->builds[s->checked]);
        assert_int_equal(records_team_by_slug(r, "crash", &team, &err), 0);
        assert_int_equal(records_template_list(r, team->id, NULL, 100, &templates, &count, &more, &err), 0);
        assert_in_range(count, 0, ALIASES);
        for (size_t i = 0; i < count; i++) {
                check_template(r, team, templates[i]);
                assert_false(name_list_has(s->deleted, templates[i]->id));
        }
        template_records_free(templates, count);
        assert_int_equal(records_builds_active(r, &active, &count, &err), 0);
        for (size_t i = 0; i < count; i++)
                assert_in_range(active[i]->state, BUILD_WAITING, BUILD_BUILDING);
        build_records_free(active, count);
}

static void check_all(struct temporary *t, struct seen *s)
{
        for (unsigned thread = 0; thread < GROUP_THREADS; thread++)
                for (unsigned group = 0; group < GROUPS; group++)
                        check_group(t->store, thread, group, &s->group[thread][group]);
        check_accounts(t->store, s);
        check_records(t->records, s);
}

static void close_store(struct temporary *t)
{
        records_close(t->records);
        store_close(t->store);
        t->records = NULL;
        t->store = NULL;
}

static void nothing_acknowledged_is_lost(void **state)
{
        unsigned rounds = getenv("VMON_SOAK") ? 600 : 60;
        const char *seed_text = getenv("VMON_CRASH_SEED");
        unsigned seed = seed_text ? (unsigned)strtoul(seed_text, NULL, 10) : (unsigned)clock_realtime_ns();
        struct temporary *t = *state;
        struct seen s = { .deleted = name_list_copy(NULL) };
        struct error err;
        char key[32];

        print_message("VMON_CRASH_SEED=%u\n", seed);
        srandom(seed);
        for (unsigned i = 0; i < ACCOUNTS; i++) {
                snprintf(key, sizeof(key), "account/%u", i);
                assert_int_equal(store_put(t->store, key, "1000", 4, &err), 0);
        }
        team_free(temporary_team(t, "crash", false));
        for (unsigned round = 0; round < rounds; round++) {
                close_store(t);
                run_and_kill(&s, t->url, round);
                temporary_reopen(t);
                check_all(t, &s);
        }
        s.checked = 0; /* the builds of all rounds once more */
        print_message("%u kills, %zu acknowledgements, %zu builds\n", rounds, s.acks, s.build_count);
        check_all(t, &s);
        assert_true(s.acks > rounds); /* they did work */
        name_list_free(s.deleted);
        free(s.builds);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(nothing_acknowledged_is_lost, temporary_setup, temporary_teardown),
        };

        if (argc == 4 && strcmp(argv[1], "--work") == 0)
                return work(argv[2], atoi(argv[3]));
        return cmocka_run_group_tests(tests, NULL, NULL);
}
