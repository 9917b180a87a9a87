/* Build logs by offset, level and time against a plain array: chunks of any size, levels and times in any order of growth, pages anywhere.
 * Two bytes an operation: the first chooses, the second is its argument.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "store/records.h"

#define INPUTS_A_STORE 500
#define LINES_MAX 2000
#define BATCH_MAX 64
#define LONG_LINE 700 /* characters: batches of these make chunks that are compressed */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len);

static struct {
        char *dir;
        struct store *store;
        struct records *records;
        unsigned inputs;
} world;

struct line {
        int64_t time_ns;
        int level;
        unsigned number;
};

struct model {
        char build_id[UUID_LEN + 1];
        struct line lines[LINES_MAX];
        size_t count;
        int64_t now_ns;
};

static void world_end(void)
{
        if (!world.dir)
                return;
        records_close(world.records);
        store_close(world.store);
        tree_remove(world.dir, NULL);
        free(world.dir);
        world.dir = NULL;
}

static void world_begin(void)
{
        char *url;
        struct error err;

        if (!world.dir)
                atexit(world_end);
        world_end();
        world.dir = xstrdup("/dev/shm/vmon-fuzz-XXXXXX");
        assert(mkdtemp(world.dir));
        url = xasprintf("sqlite:%s/vmon.db", world.dir);
        assert(store_open(url, &world.store, &err) == 0 && records_open(world.store, &world.records, &err) == 0);
        free(url);
}

static void append(struct model *m, unsigned count, bool long_lines)
{
        struct log_entry entries[BATCH_MAX] = {};
        struct error err;

        for (unsigned i = 0; i < count; i++) {
                struct line *l = &m->lines[m->count];

                m->now_ns += (m->count * 7 + i) % 3 * NSEC_PER_MSEC;
                *l = (struct line){ m->now_ns, (int)((m->count * 5 + count) % 4), (unsigned)m->count };
                m->count++;
                entries[i] = (struct log_entry){ l->time_ns, l->level, NULL, xasprintf("%u %*s", l->number, long_lines ? LONG_LINE : 0, "") };
        }
        assert(records_log_append(world.records, m->build_id, entries, count, &err) == 0);
        for (unsigned i = 0; i < count; i++)
                free(entries[i].message);
}

static void read_page(const struct model *m, int level, size_t offset, size_t limit)
{
        struct log_entry *entries;
        struct error err;
        size_t count, want = 0, seen = 0;

        assert(records_log_read(world.records, m->build_id, level, offset, limit, &entries, &count, &err) == 0);
        for (size_t i = 0; i < m->count && want < limit; i++) {
                if (m->lines[i].level < level || seen++ < offset)
                        continue;
                assert(want < count && entries[want].level == m->lines[i].level && entries[want].time_ns == m->lines[i].time_ns);
                assert(strtoul(entries[want].message, NULL, 10) == m->lines[i].number);
                want++;
        }
        assert(want == count);
        log_entries_free(entries, count);
}

static void seek(const struct model *m, int level, int64_t time_ns)
{
        size_t offset, want = 0;
        struct error err;

        for (size_t i = 0; i < m->count && m->lines[i].time_ns < time_ns; i++)
                want += m->lines[i].level >= level;
        assert(records_log_seek(world.records, m->build_id, level, time_ns, &offset, &err) == 0);
        assert(offset == want);
}

static void operation(struct model *m, unsigned char choice, unsigned char argument)
{
        int level = choice >> 4 & 3;

        switch (choice & 3) {
        case 0:
        case 1:
                if (m->count + argument % BATCH_MAX < LINES_MAX)
                        append(m, argument % BATCH_MAX, choice & 1);
                break;
        case 2:
                read_page(m, level, (size_t)argument * 8, (size_t)(choice >> 2) * 3 % 101);
                break;
        default:
                seek(m, level, (int64_t)argument * 8 * NSEC_PER_MSEC + (choice >> 2 & 3) - 1);
        }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t len)
{
        static struct model m;

        if (world.inputs++ % INPUTS_A_STORE == 0)
                world_begin();
        memset(&m, 0, sizeof(m));
        random_uuid(m.build_id);
        m.now_ns = NSEC_PER_MSEC;
        for (size_t i = 0; i + 1 < len && i < 128; i += 2)
                operation(&m, data[i], data[i + 1]);
        for (int level = 0; level < 4; level++)
                read_page(&m, level, 0, LINES_MAX);
        return 0;
}
