/* The changed memory of a fork: saved from one process, put into another. The processes are children that map one memfd privately,
 * as QEMU does, and do what a line on a pipe says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "vm/delta.h"

#define PAGE 4096u
#define PAGES 4096u
#define MEMORY ((uint64_t)PAGES * PAGE)

static int memory_fd; /* page n starts with the number n */

static int setup(void **state)
{
        (void)state;
        memory_fd = memfd_create("guest", MFD_CLOEXEC);
        assert_int_equal(ftruncate(memory_fd, MEMORY), 0);
        for (uint64_t n = 0; n < PAGES; n++)
                assert_int_equal(pwrite(memory_fd, &n, sizeof n, (off_t)(n * PAGE)), sizeof n);
        return 0;
}

static int teardown(void **state)
{
        (void)state;
        close(memory_fd);
        return 0;
}

/* A child that maps the memory, runs `change` on it, says so and stands still until it is killed. */
static pid_t fork_guest(void (*change)(unsigned char *memory))
{
        int ready[2];
        char byte;
        pid_t pid;

        assert_int_equal(pipe(ready), 0);
        pid = fork();
        if (pid == 0) {
                unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory_fd, 0);

                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (change)
                        change(memory);
                if (write(ready[1], "x", 1) != 1)
                        _exit(1);
                for (;;)
                        pause();
        }
        assert_true(pid > 0);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        close(ready[1]);
        return pid;
}

static void end(pid_t pid)
{
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* All memory of a child, by way of its maps. */
static unsigned char *content(pid_t pid)
{
        CLEANUP_FREE char *maps = xasprintf("/proc/%d/maps", pid), *mem = xasprintf("/proc/%d/mem", pid), *line = NULL;
        unsigned char *all = xmalloc(MEMORY);
        FILE *f = fopen(maps, "re");
        unsigned long start = 0;
        size_t size = 0;
        int fd = open(mem, O_RDONLY | O_CLOEXEC);

        while (!start && getline(&line, &size, f) > 0)
                if (strstr(line, "memfd:guest"))
                        start = strtoul(line, NULL, 16);
        assert_true(start != 0);
        assert_int_equal(pread(fd, all, MEMORY, (off_t)start), MEMORY);
        fclose(f);
        close(fd);
        return all;
}

static int file_new(void)
{
        int fd = memfd_create("delta", MFD_CLOEXEC);

        assert_true(fd >= 0);
        return fd;
}

/* Runs, single pages, the first and the last, zeros in all places, a page written with what it held, and one only read. */
static void change_much(unsigned char *m)
{
        memset(m, 1, PAGE);
        memset(m + (PAGES - 1) * PAGE, 2, PAGE);
        memset(m + 10 * PAGE, 3, 5 * PAGE);
        memset(m + 12 * PAGE, 0, PAGE);
        memset(m + 100 * PAGE, 0, 40 * PAGE);
        m[200 * PAGE + 17] = 9;
        *(volatile unsigned char *)(m + 300 * PAGE) = m[300 * PAGE];
        memset(m + 1000 * PAGE, 7, 700 * PAGE); /* more than one buffer */
        (void)*(volatile unsigned char *)(m + 400 * PAGE);
        /* Advice splits the mapping: the pieces are one memory. */
        madvise(m + 500 * PAGE, 10 * PAGE, MADV_DONTFORK);
}

static void same_memory_comes_back(void **state)
{
        CLEANUP_CLOSE int fd = file_new();
        pid_t from = fork_guest(change_much), to = fork_guest(NULL);
        CLEANUP_FREE unsigned char *before = content(from), *after = NULL;
        struct stat st;
        uint64_t pages = 0;

        (void)state;
        assert_int_equal(memory_delta_save(from, MEMORY, fd, &pages, NULL), 0);
        assert_int_equal(pages, 1 + 1 + 5 + 40 + 1 + 1 + 700);
        assert_int_equal(fstat(fd, &st), 0);
        assert_true(st.st_size < (off_t)((1 + 710) * PAGE)); /* zeros take no room */
        assert_int_equal(memory_delta_load(fd, MEMORY, to, NULL), 0);
        after = content(to);
        assert_memory_equal(before, after, MEMORY);
        end(from);
        end(to);
}

/* What a resumed guest has not touched again is still changed, compared with the template. */
static void a_second_save_holds_the_first(void **state)
{
        CLEANUP_CLOSE int one = file_new(), two = file_new();
        pid_t from = fork_guest(change_much), to = fork_guest(NULL), last = fork_guest(NULL);
        CLEANUP_FREE unsigned char *before = content(from), *after = NULL;

        (void)state;
        assert_int_equal(memory_delta_save(from, MEMORY, one, NULL, NULL), 0);
        assert_int_equal(memory_delta_load(one, MEMORY, to, NULL), 0);
        assert_int_equal(memory_delta_save(to, MEMORY, two, NULL, NULL), 0);
        assert_int_equal(memory_delta_load(two, MEMORY, last, NULL), 0);
        after = content(last);
        assert_memory_equal(before, after, MEMORY);
        end(from);
        end(to);
        end(last);
}

static void nothing_changed(void **state)
{
        CLEANUP_CLOSE int fd = file_new();
        pid_t from = fork_guest(NULL), to = fork_guest(NULL);
        uint64_t pages = 1;

        (void)state;
        assert_int_equal(memory_delta_save(from, MEMORY, fd, &pages, NULL), 0);
        assert_int_equal(pages, 0);
        assert_int_equal(memory_delta_load(fd, MEMORY, to, NULL), 0);
        end(from);
        end(to);
}

static void a_process_without_the_memory(void **state)
{
        CLEANUP_CLOSE int fd = file_new();
        struct error err = {};
        pid_t from = fork_guest(NULL);

        (void)state;
        assert_true(memory_delta_save(from, 2 * MEMORY, fd, NULL, &err) < 0);
        assert_non_null(strstr(err.message, "maps no guest memory"));
        end(from);
        assert_true(memory_delta_save(from, MEMORY, fd, NULL, &err) < 0);
}

static void refused(int fd, uint64_t memory)
{
        struct memory_delta_header h;
        struct memory_delta_run *runs = NULL;
        struct error err = {};

        assert_int_equal(memory_delta_read_table(fd, memory, &h, &runs, &err), -EINVAL);
        assert_non_null(strstr(err.message, "damaged"));
        assert_null(runs);
}

/* Each field, and each length, with the file otherwise whole. */
static void damaged_files_are_refused(void **state)
{
        CLEANUP_CLOSE int fd = file_new();
        pid_t from = fork_guest(change_much);
        struct memory_delta_header h, bad;
        struct memory_delta_run *runs;
        struct stat st;

        (void)state;
        assert_int_equal(memory_delta_save(from, MEMORY, fd, NULL, NULL), 0);
        end(from);
        assert_int_equal(memory_delta_read_table(fd, MEMORY, &h, &runs, NULL), 0);
        assert_true(h.runs > 3);
        refused(fd, MEMORY * 2);
        for (size_t i = 0; i < sizeof h / sizeof(uint64_t); i++) {
                bad = h;
                ((uint64_t *)&bad)[i] += 1;
                assert_int_equal(pwrite(fd, &bad, sizeof bad, 0), sizeof bad);
                refused(fd, MEMORY);
        }
        assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
        const struct memory_delta_run bads[] = {{PAGES, 1, 0}, {runs[1].first, 0, 0}, {runs[1].first, UINT32_MAX, 0},
                                                {runs[0].first, runs[1].count, runs[1].zero}, {runs[1].first, runs[1].count, 2},
                                                {runs[1].first, runs[1].count + 1, runs[1].zero}};
        for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
                assert_int_equal(pwrite(fd, &bads[i], sizeof *bads, (off_t)(h.table + sizeof *runs)), sizeof *bads);
                refused(fd, MEMORY);
        }
        assert_int_equal(pwrite(fd, &runs[1], sizeof *runs, (off_t)(h.table + sizeof *runs)), sizeof *runs);
        assert_int_equal(fstat(fd, &st), 0);
        const off_t lengths[] = {0, 8, sizeof h, PAGE, st.st_size - 1, st.st_size + 1};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                CLEANUP_CLOSE int cut = file_new();
                CLEANUP_FREE char *all = xcalloc(1, (size_t)st.st_size + 1);

                assert_int_equal(pread(fd, all, (size_t)st.st_size, 0), st.st_size);
                assert_int_equal(pwrite(cut, all, (size_t)lengths[i], 0), lengths[i]);
                refused(cut, MEMORY);
        }
        free(runs);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(same_memory_comes_back, setup, teardown),
                cmocka_unit_test_setup_teardown(a_second_save_holds_the_first, setup, teardown),
                cmocka_unit_test_setup_teardown(nothing_changed, setup, teardown),
                cmocka_unit_test_setup_teardown(a_process_without_the_memory, setup, teardown),
                cmocka_unit_test_setup_teardown(damaged_files_are_refused, setup, teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
